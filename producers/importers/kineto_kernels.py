"""All kernels of a Kineto trace with their launches, steps and matrix multiplications, as columns for their metrics.

A kernel is joined to its launch by ``correlation``, and to the multiplication that launched it by thread and time:
``External id`` has other meanings in older traces. Of a launch that starts several kernels (a CUDA graph) only the
first has an issue latency.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.detectors.path.rank_metrics import Profile, gpu_times, measure_windows
from irregulars.errors import InputError
from irregulars.messages.bounds import LATEST_NS, MOST_EXACT
from irregulars.messages.device_events import DeviceEvent
from irregulars.messages.records import PAUSES, UNKNOWN
from irregulars.producers.importers.imported import RankRows

Array = np.ndarray
_LOADS: Final = re.compile(r"enumerate\(DataLoader\)#\w+\.__next__")
# Classes of kernels by their names: the first that fits; the others are of none
_SORTS: Final = {
    "copy": "memcpy|memset|copy|transpose|nchwtonhwc|nhwctonchw|catarray", "attention": "flash|fmha|attention|sdpa",
    "convolution": "conv|implicit_gemm|wgrad|dgrad|fprop|scudnn", "gemm": "gemm|gemv|cublas|nvjet|cijk|matmul|splitk",
    "norm": "norm|bn_", "softmax": "softmax", "optimizer": "multi_tensor|adam", "embedding": "embedding|index|gather",
    "elementwise": "elementwise", "reduce": "reduce", "triton": "triton", "": "",
}  # fmt: skip
# Multiplications, with the place of the first matrix among their inputs; `linear` and `matmul` call them
_KINDS: Final = {"mm": 0, "_scaled_mm": 0, "_int_mm": 0, "bmm": 0, "addmm": 1, "_addmm_activation": 1, "baddbmm": 1}
_LAUNCHES: Final = ("cuda_runtime", "cuda_driver", "runtime")
_MOST_EVENTS: Final = 4_000_000
_MOST_NAMES: Final = 1 << 16  # of kernels; the others count as one


class TimedSpan(NamedTuple):
    """An action of a thread: ns since the epoch."""

    start_ns: int
    end_ns: int
    thread: object
    name: str = ""
    size_bytes: float = math.nan
    peer: int = -1


class KernelParser:
    """Gather the kernels of one trace: `add` each of its events, then `profile` once."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._threads: dict[object, int] = {}
        self._kernels = array("q")  # start, end, name, correlation, whether it communicates
        self._launches = array("q")  # correlation, start, thread
        self._calls = array("q")  # start, end, thread, kind
        self._flops = array("d")
        self._loads = array("q")  # start, end

    def add(self, category: str, span: TimedSpan, arguments: Mapping[str, Any], *, is_communication: bool) -> None:
        """Take in an event; InputError if there are more than a trace can have."""
        start_ns, end_ns, thread, name, *_ = span
        if len(self._kernels) // 5 + len(self._launches) // 3 + len(self._flops) > _MOST_EVENTS:
            raise InputError(f"a trace must hold at most {_MOST_EVENTS} kernels and launches; got more")
        number, kind = arguments.get("correlation"), name.removeprefix("aten::")
        correlation = number if type(number) is int and 0 <= number < MOST_EXACT else UNKNOWN
        if category == "kernel":
            if len(self._names) < _MOST_NAMES:
                self._names.setdefault(name, len(self._names))
            self._kernels.extend(
                (start_ns, end_ns, self._names.get(name, _MOST_NAMES), correlation, is_communication)
            )
        elif category in _LAUNCHES:
            if correlation != UNKNOWN:
                self._launches.extend((correlation, start_ns, self._thread(thread)))
        elif kind in _KINDS and kind != name:
            self._calls.extend((start_ns, end_ns, self._thread(thread), [*_KINDS].index(kind)))
            self._flops.append(flops_of(arguments.get("Input Dims"), _KINDS[kind]))
        elif _LOADS.match(name):
            self._loads.extend((start_ns, end_ns))

    def _thread(self, thread: object) -> int:
        return self._threads.setdefault(thread, len(self._threads))

    def profile(self, marks: Sequence[tuple[int, int, int]], base_ns: int) -> Profile:
        """Return the kernels gathered so far.

        `marks`: start, end and number of each step. `base_ns`: since when all times count, ns since the epoch.
        """

        def since(times_ns: Array) -> Array:
            return np.minimum(times_ns, LATEST_NS - base_ns) + base_ns

        start_ns, end_ns, name, correlation, is_communication = _columns(self._kernels, 5)
        launch_ns, thread = self._launches_of(correlation)
        steps = np.array([mark for mark in marks if mark[1] > mark[0]], np.int64).reshape(-1, 3)
        sorts = [next(at for at, of in enumerate(_SORTS.values()) if re.search(of, one, re.I)) for one in self._names]
        # Steps on whichever thread they were marked: the backward pass launches from another one.
        step = _around(steps[:, 0], steps[:, 1], np.zeros(len(steps), np.int64), launch_ns, np.zeros_like(launch_ns))
        begin, past, of_thread, kind = _columns(self._calls, 4)
        call = _around(begin, past, of_thread, launch_ns, thread)
        kernels = {
            "start_ns": since(start_ns), "end_ns": since(end_ns), "name": name,
            "is_communication": is_communication != 0,
            "latency_ns": _latencies(start_ns, launch_ns, correlation), "step": _taken(steps[:, 2], step, UNKNOWN),
            "call": call, "kind": _taken(kind, call, UNKNOWN),
            "flops": _taken(np.array(self._flops, np.float64), call, math.nan),
            # Kernels that communicate wait, and are of no class.
            "sort": np.where(is_communication, UNKNOWN, np.array([*sorts, UNKNOWN])[np.minimum(name, len(sorts))]),
        }  # fmt: skip
        loads_ns = since(_columns(self._loads, 2).T)
        return Profile(kernels, (*_KINDS,), (*_SORTS,)[:-1], steps[:, 2], (steps[:, 1] - steps[:, 0]) / 1e9, loads_ns)

    def launches(self, numbers: Collection[int]) -> dict[int, tuple[int, object]]:
        """Return time and thread of the launches with some correlations."""
        own, threads = _columns(self._launches, 3), [*self._threads]
        rows = own[:, np.isin(own[0], [*numbers])].T.tolist() if numbers else ()
        return {number: (launched_ns, threads[thread]) for number, launched_ns, thread in rows}

    def _launches_of(self, correlation: Array) -> tuple[Array, Array]:
        """Return time and thread of the launch of each kernel; `UNKNOWN` where it is not in the trace."""
        number, launched_ns, thread = _columns(self._launches, 3)
        number, first = np.unique(number, return_index=True)
        at = np.searchsorted(number, correlation)
        at[at == len(number)] = 0
        at = np.where(_taken(number, at, -1) == correlation, at, UNKNOWN)
        return _taken(launched_ns[first], at, UNKNOWN), _taken(thread[first], at, UNKNOWN)


def measure(rank: int, rows: RankRows, profiles: Sequence[Profile]) -> list[DeviceEvent]:
    """Add to a rank's rows where the time of its iterations went, as pauses; return its metrics, as events."""
    number, start_ns, elapsed_ns = rows.spans()
    profiles = [one for one in profiles if len(one.kernels["start_ns"])]
    if not len(number) or not profiles:
        return []
    kernels = {name: np.concatenate([one.kernels[name] for one in profiles]) for name in profiles[0].kernels}
    times_ns = gpu_times(kernels, start_ns, start_ns + elapsed_ns)
    for cause, lost_ns in zip(("gpu_kernels", "gpu_idle"), times_ns, strict=True):
        for of, begin_ns, ns in zip(number.tolist(), start_ns.tolist(), lost_ns.astype(int).tolist(), strict=True):
            rows.add_pause(of, PAUSES.index(cause), begin_ns, ns)
    loads_ns = np.concatenate([one.loads_ns for one in profiles])
    at = np.maximum(np.searchsorted(start_ns, loads_ns[:, 0], side="right") - 1, 0)
    for of, begin_ns, end_ns in zip(number[at].tolist(), *loads_ns.T.tolist(), strict=True):
        rows.add_pause(of, PAUSES.index("data_loader"), begin_ns, end_ns - begin_ns)
    return [event for one in profiles for event in measure_windows(rank, one, number, start_ns)]


def flops_of(shapes: Any, first: int) -> float:
    """Return the operations of a multiplication, from the shapes of its inputs; NaN where they are not recorded.

    >>> flops_of([[64], [4096, 100], [100, 64], [], []], 1) == 2 * 4096 * 100 * 64
    True
    """
    both = shapes[first : first + 2] if isinstance(shapes, list) else ()
    if len(both) < 2 or not all(isinstance(one, list) and 2 <= len(one) <= 3 for one in both):
        return math.nan
    if any(type(length) is not int or not 0 < length < 1 << 40 for one in both for length in one):
        return math.nan
    return 2.0 * math.prod(map(float, both[0])) * both[1][-1]


def _latencies(start_ns: Array, launch_ns: Array, correlation: Array) -> Array:
    """Return the time from launch to start of the first kernel of each launch; NaN for others."""
    order = np.lexsort((start_ns, correlation))
    is_first = np.ones(len(order), dtype=bool)
    is_first[order[1:]] = correlation[order[1:]] != correlation[order[:-1]]
    known = is_first & (launch_ns != UNKNOWN)
    found = np.full(len(order), math.nan)
    found[known] = start_ns[known] - launch_ns[known]
    return found


def _columns(rows: array[int], width: int) -> Array:
    return np.frombuffer(rows, np.int64).reshape(-1, width).T if len(rows) else np.empty((width, 0), np.int64)


def _taken(values: Array, at: Array, missing: float) -> Array:
    """Return the values at some places, and another one where a place is `UNKNOWN`."""
    return np.append(values, np.array([missing], values.dtype))[np.where(at == UNKNOWN, len(values), at)]


def _around(begin: Array, past: Array, thread: Array, moment: Array, of_thread: Array) -> Array:
    """Return for each moment the span of its thread that began last before it, if it lasts until then."""
    found = np.full(len(moment), UNKNOWN)
    for one in np.unique(thread):
        own = np.flatnonzero(thread == one)
        own = own[np.argsort(begin[own], kind="stable")]
        asked = np.flatnonzero(of_thread == one)
        at = own[np.maximum(np.searchsorted(begin[own], moment[asked], side="right") - 1, 0)]
        is_inside = (begin[at] <= moment[asked]) & (moment[asked] <= past[at])
        found[asked] = np.where(is_inside, at, UNKNOWN)
    return found
