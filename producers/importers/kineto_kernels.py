"""All kernels of a Kineto trace with their launches, steps and matrix multiplications, as columns for their metrics.

A kernel is joined to its launch by ``correlation``, and to the multiplication that launched it by thread and time:
``External id`` has other meanings in older traces. Of a launch that starts several kernels (a CUDA graph) only the
first has an issue latency.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.messages.bounds import LATEST_NS, MOST_EXACT
from irregulars.messages.device_events import (
    FLOPS,
    ISSUE_LATENCY,
    KERNELS,
    QUANTILES,
    THROUGHPUT,
    TOKENS,
    VOID_BETWEEN,
    VOID_MINORITY,
    DeviceEvent,
    Summary,
    metric_event,
)
from irregulars.messages.records import PAUSES, UNKNOWN
from irregulars.producers.importers.imported import RankRows

Array = np.ndarray
_COMMUNICATES: Final = re.compile(r"c10d::|\w*ccl:|gloo:|mpi:|ucc:|record_param_comms")  # operators of the CPU
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
_OF_LAUNCHES: Final = ("runtime", "driver")  # how categories of calls that launch end: cuda_runtime, xpu_runtime
_OPERATORS: Final = ("cpu_op", "operator")
OF_THE_CPU: Final = (*_OPERATORS, "user_annotation")
_MOST_WINDOWS: Final = 8  # of a profile: with more steps, a window holds several
_MAJOR: Final = 0.95  # share of the time of all kernels: leaves the many short ones that a profile would not show
MOST_EVENTS: Final = 4_000_000
_MOST_NAMES: Final = 1 << 16  # of kernels; the others count as one
_MOST_METRICS: Final = 1 << 15  # of all profiles of a rank, the last ones: a batch has twice as many names


@dataclass(frozen=True, slots=True)
class Profile:
    """All executions on a rank's GPU in some steps."""

    # A row for each: start_ns, end_ns, name (a code), step (of its launch; `UNKNOWN`: none), latency_ns (NaN: not
    # known), is_communication, sort (place in `sorts`); of those that a multiplication launched call (its number
    # from 0; else `UNKNOWN`), flops (of the whole call; NaN: not known) and kind (place in `kinds`)
    kernels: Mapping[str, Column]
    kinds: Sequence[str]  # of multiplications
    sorts: Sequence[str]  # classes of kernels
    steps: Ints  # numbers of the CPU's marks
    step_s: Floats  # how long each took
    loads_ns: Ints  # start and end of each wait for data
    operators: Ints  # of the CPU, as far as they were read: rows of start, end, thread and name (a code)
    names: Sequence[str]  # of kernels and operators


class Sample(NamedTuple):
    """Values of a metric, each as an amount and its divisor (seconds, ns of a step, or 1), and the step it is of."""

    amount: Floats
    per: Floats
    step: Ints

    def of(self, steps: Ints) -> Sample:
        """Return those of some steps."""
        own = np.isin(self.step, steps)
        return Sample(self.amount[own], self.per[own], self.step[own])


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
        self._operators = array("q")  # start, end, thread, name
        self.left_out = 0

    def add(self, category: str, span: TimedSpan, arguments: Mapping[str, Any], *, is_communication: bool) -> None:
        """Take in an event; kernels beyond `MOST_EVENTS` are counted."""
        start_ns, end_ns, thread, name, *_ = span
        # Of launches all are kept: they tell of collectives to which step they belong.
        if category == "kernel" and len(self._kernels) // 5 + len(self._flops) >= MOST_EVENTS:
            self.left_out += 1
            return
        number, kind = arguments.get("correlation"), name.removeprefix("aten::")
        correlation = number if type(number) is int and 0 <= number < MOST_EXACT else UNKNOWN
        if category == "kernel":
            self._kernels.extend((start_ns, end_ns, self._code(name), correlation, is_communication))
        elif category.endswith(_OF_LAUNCHES):
            if correlation != UNKNOWN:
                self._launches.extend((correlation, start_ns, self._thread(thread)))
        elif not category.startswith(OF_THE_CPU):
            return  # a GPU's timeline repeats annotations
        if category in _OPERATORS:
            self._operators.extend((start_ns, end_ns, self._thread(thread), self._code(name)))
        if kind in _KINDS and kind != name:
            self._calls.extend((start_ns, end_ns, self._thread(thread), [*_KINDS].index(kind)))
            self._flops.append(flops_of(arguments.get("Input Dims"), _KINDS[kind]))
        elif _LOADS.match(name):
            self._loads.extend((start_ns, end_ns))

    def _code(self, name: str) -> int:
        if len(self._names) < _MOST_NAMES:
            self._names.setdefault(name, len(self._names))
        return self._names.get(name, _MOST_NAMES)

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
        step_s, operators = (steps[:, 1] - steps[:, 0]) / 1e9, _columns(self._operators, 4)
        return Profile(
            kernels, (*_KINDS,), (*_SORTS,)[:-1], steps[:, 2], step_s, loads_ns, operators, (*self._names, "others")
        )

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
    # Of a trace that was cut down to its collectives nobody knows what ran between them.
    profiles = [one for one in profiles if not one.kernels["is_communication"].all()]
    if not len(number) or not profiles:
        return []
    kernels = {name: np.concatenate([one.kernels[name] for one in profiles]) for name in profiles[0].kernels}
    loads_ns, begin_ns = (
        (times_ns - start_ns.min()).astype(np.float64)
        for times_ns in (np.concatenate([one.loads_ns for one in profiles]), start_ns)
    )
    waits = _Busy.of(loads_ns[:, 0], loads_ns[:, 1], np.ones(len(loads_ns), bool))
    times_ns = *gpu_times(kernels, start_ns, start_ns + elapsed_ns), waits.within(begin_ns, begin_ns + elapsed_ns)
    for cause, lost_ns in zip(("gpu_kernels", "gpu_idle", "data_loader"), times_ns, strict=True):
        for of, at_ns, ns in zip(number.tolist(), start_ns.tolist(), lost_ns.astype(int).tolist(), strict=True):
            rows.add_pause(of, PAUSES.index(cause), at_ns, ns)
    return [event for one in profiles for event in measure_windows(rank, one, number, start_ns)][-_MOST_METRICS:]


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
    spans = len(begin)
    # In order of threads and times each moment comes behind the span that began last before it.
    order = np.lexsort((np.append(begin, moment), np.append(thread, of_thread)))
    last = np.maximum.accumulate(np.where(order < spans, np.arange(len(order)), UNKNOWN))
    found = np.empty_like(order)
    found[order] = _taken(order, last, UNKNOWN)
    at = found[spans:]
    is_inside = (_taken(thread, at, UNKNOWN) == of_thread) & (moment <= _taken(past, at, UNKNOWN)) & (at != UNKNOWN)
    return np.where(is_inside, at, UNKNOWN)


def sample_kernels(profile: Profile) -> dict[str, Sample]:
    """Return the samples of a profile, by the names of its metrics; those of which nothing is known are absent."""
    kernels = profile.kernels
    is_known = np.isfinite(kernels["latency_ns"])
    found = {
        THROUGHPUT: Sample(np.ones(len(profile.step_s)), profile.step_s, profile.steps),
        ISSUE_LATENCY: _each(kernels["latency_ns"][is_known], kernels["step"][is_known]),
    }
    if len(is_known):
        start_ns, end_ns = _spans(kernels, kernels["start_ns"].min())
        found |= _sample_calls(profile, start_ns, end_ns)
        found |= _sample_void(kernels["name"], kernels["step"], start_ns, end_ns)
    return {name: sample for name, sample in found.items() if len(sample.amount)}


def shares_of(profile: Profile) -> dict[str, dict[str, float]]:
    """Return by which operators of the CPU, and by which kernels, a profile's steps were filled: share of each.

    Time of an operator is that without the operators that it calls. Shares of several threads or streams add up to
    more than 1. Communication is left out: it waits for other ranks.
    """
    start_ns, end_ns, thread, name = profile.operators
    kernels = profile.kernels
    took = {
        "CPU operators": (name, own_times(start_ns, end_ns, thread)),
        "GPU kernels": (kernels["name"], (kernels["end_ns"] - kernels["start_ns"]) * ~kernels["is_communication"]),
    }
    whole_ns, found = profile.step_s.sum() * 1e9, {}
    for place, (code, ns) in took.items():
        codes, at = np.unique(np.minimum(code, len(profile.names) - 1), return_inverse=True)
        shares = np.bincount(at, weights=ns, minlength=len(codes)) / max(whole_ns, 1.0)
        by_name = {profile.names[one]: share for one, share in zip(codes.tolist(), shares.tolist(), strict=True)}
        found[place] = {name: share for name, share in by_name.items() if not _COMMUNICATES.match(name)}
    return found


def own_times(start_ns: Ints, end_ns: Ints, thread: Ints) -> Floats:
    """Return how long each span was the innermost one of its thread, ns.

    >>> own_times(np.array([0, 2, 2, 9]), np.array([9, 5, 4, 12]), np.zeros(4, int)).tolist()
    [6.0, 1.0, 2.0, 3.0]
    """
    spans = np.flatnonzero(end_ns > start_ns)
    span, is_begin = np.tile(spans, 2), np.repeat([True, False], len(spans))
    times_ns = np.where(is_begin, start_ns[span], end_ns[span])
    # Of edges at one time ends come first, then the longest of those that begin.
    order = np.lexsort((np.where(is_begin, -end_ns[span], 0), is_begin, times_ns, thread[span]))
    span, is_begin, times_ns = span[order], is_begin[order], times_ns[order]
    depth = np.cumsum(np.where(is_begin, 1, -1))
    # Behind each edge the innermost span is the one that began last at the depth which is left there.
    of_depth = np.argsort(depth, kind="stable")
    last = np.maximum.accumulate(np.where(is_begin[of_depth], np.arange(len(span)), 0))
    innermost = np.empty_like(span)
    innermost[of_depth] = span[of_depth][last]
    lasts_ns = np.where(depth[:-1] > 0, np.diff(times_ns), 0)
    return np.bincount(innermost[:-1], weights=lasts_ns, minlength=len(start_ns)).astype(np.float64)


def sample_iterations(elapsed_ns: Floats, tokens: Floats) -> dict[str, Sample]:
    """Return the samples of a rank without kernels; `tokens` of each iteration are NaN where nobody counts them."""
    is_counted = np.isfinite(tokens) & (elapsed_ns > 0)
    step_s, steps = elapsed_ns[elapsed_ns > 0] / 1e9, np.arange(len(elapsed_ns))
    found = {
        THROUGHPUT: Sample(np.ones(len(step_s)), step_s, steps[elapsed_ns > 0]),
        TOKENS: Sample(tokens[is_counted], elapsed_ns[is_counted] / 1e9, steps[is_counted]),
    }
    return {name: sample for name, sample in found.items() if len(sample.amount)}


def summarize(samples: Mapping[str, Sample]) -> dict[str, Summary]:
    """Return the value and the distribution of each metric."""
    found = {}
    for name, (amount, per, _) in samples.items():
        value = float(np.median(amount)) if name == ISSUE_LATENCY else float(amount.sum() / per.sum())
        found[name] = Summary(value, np.quantile(amount / per, QUANTILES), len(amount), float(per.sum()))
    return found


def measure_windows(rank: int, profile: Profile, iterations: Ints, start_ns: Ints) -> Iterator[DeviceEvent]:
    """Yield the metrics of each window of a profile, as events at its begin.

    `iterations`, `start_ns`: those of the rank, ascending; a window belongs to the one in which it begins.
    """
    samples, step = sample_kernels(profile), profile.kernels["step"]
    steps = np.unique(step[step != UNKNOWN])
    for window in np.array_split(steps, min(len(steps), _MOST_WINDOWS)) if len(steps) else [np.array([UNKNOWN])]:
        kernels_ns = profile.kernels["start_ns"][np.isin(step, window)]
        own = {name: one.of(window) for name, one in samples.items()}
        if len(kernels_ns):
            at = max(int(np.searchsorted(start_ns, kernels_ns.min(), side="right")) - 1, 0)
            time_ns = int(max(kernels_ns.min(), start_ns[at]))
            for name, one in summarize({name: own[name] for name in own if len(own[name].amount)}).items():
                yield metric_event(time_ns, rank, name, int(iterations[at]), one)


def gpu_times(kernels: Mapping[str, Column], begin_ns: Ints, past_ns: Ints) -> tuple[Floats, Floats]:
    """Return of some spans how long the GPU computed beside no communication, and how long it had no launch."""
    origin_ns = min(kernels["start_ns"].min(), begin_ns.min())
    start_ns, end_ns = _spans(kernels, origin_ns)
    spans = (begin_ns - origin_ns).astype(np.float64), (past_ns - origin_ns).astype(np.float64)
    busy_ns = _Busy.of(start_ns, end_ns, np.ones(len(start_ns), bool)).within(*spans)
    communicates_ns = _Busy.of(start_ns, end_ns, kernels["is_communication"]).within(*spans)
    order = np.argsort(start_ns, kind="stable")
    until_ns = np.maximum.accumulate(np.append(start_ns.min(), end_ns[order]))[:-1]
    launched_ns = (start_ns - kernels["latency_ns"])[order]
    idle_ns = _Busy.of(until_ns, launched_ns, launched_ns > until_ns).within(*spans)
    return busy_ns - communicates_ns, idle_ns


def _each(amount: Floats, step: Ints) -> Sample:
    return Sample(amount, np.ones(len(amount)), step)


def _spans(kernels: Mapping[str, Column], origin_ns: int) -> tuple[Floats, Floats]:
    """Return starts and ends of kernels since a moment: float64 holds ns since the epoch only in steps of 256."""
    return tuple((kernels[name] - origin_ns).astype(np.float64) for name in ("start_ns", "end_ns"))  # type: ignore[return-value]


def _sample_calls(profile: Profile, start_ns: Floats, end_ns: Floats) -> dict[str, Sample]:
    """Return rates of multiplications, and times of kernels by class, without those beside communication."""
    kernels, took_ns = profile.kernels, end_ns - start_ns
    shared_ns = _Busy.of(start_ns, end_ns, kernels["is_communication"]).within(start_ns, end_ns)
    own = np.flatnonzero(kernels["call"] != UNKNOWN)
    call, first, at = np.unique(kernels["call"][own], return_index=True, return_inverse=True)
    took_s = np.bincount(at, weights=took_ns[own], minlength=len(call)) / 1e9
    is_shared = np.bincount(at, weights=shared_ns[own], minlength=len(call)) > 0
    flops, kind, step = (kernels[name][own][first] for name in ("flops", "kind", "step"))
    is_taken = (took_s > 0) & ~is_shared & np.isfinite(flops)
    rows = {f"{FLOPS}.{name}": np.flatnonzero(is_taken & (kind == code)) for code, name in enumerate(profile.kinds)}
    found = {name: Sample(flops[those], took_s[those], step[those]) for name, those in rows.items()}
    is_apart = (shared_ns == 0) & (took_ns > 0)
    rows = {f"{KERNELS}.{name}": is_apart & (kernels["sort"] == code) for code, name in enumerate(profile.sorts)}
    return found | {name: _each(took_ns[those], kernels["step"][those]) for name, those in rows.items()}


def _sample_void(name: Ints, step: Ints, start_ns: Floats, end_ns: Floats) -> dict[str, Sample]:
    """Return both voids of each step on the GPU, which lasts from the end of the step before to its own end.

    Of a step without the one before nothing is known between them. Where nothing is marked all counts as one step.
    """
    order = np.argsort(step, kind="stable")
    order = order[step[order] != UNKNOWN] if (step != UNKNOWN).any() else order
    begins = _starts(step[order])
    first_ns, last_ns = np.minimum.reduceat(start_ns[order], begins), np.maximum.reduceat(end_ns[order], begins)
    follows = np.append(False, np.diff(step[order][begins]) == 1)
    begin_ns = np.where(follows, np.roll(last_ns, 1), first_ns)
    inner_ns = np.maximum(first_ns, begin_ns)  # kernels may run before the last one of the step before has ended
    whole_ns = last_ns - begin_ns
    busy = _Busy.of(start_ns, end_ns, np.isin(name, major_names(name, end_ns - start_ns)))
    kept, of_step = whole_ns > 0, step[order][begins]
    void_ns = last_ns - inner_ns - busy.within(inner_ns, last_ns)
    both = kept & follows
    return {
        VOID_BETWEEN: Sample((inner_ns - begin_ns)[both], whole_ns[both], of_step[both]),
        VOID_MINORITY: Sample(void_ns[kept], whole_ns[kept], of_step[kept]),
    }


def major_names(name: Ints, took_ns: Floats) -> Ints:
    """Return the fewest names of kernels that hold most of the time of all (`_MAJOR`)."""
    names, at = np.unique(name, return_inverse=True)
    held_ns = np.bincount(at, weights=took_ns)
    order = np.argsort(-held_ns, kind="stable")
    past = np.searchsorted(np.cumsum(held_ns[order]), _MAJOR * held_ns.sum())
    return np.asarray(names[order[: past + 1]])


class _Busy(NamedTuple):
    """Time in which any of some executions ran, up to each moment where one begins or the last one ends."""

    moment_ns: Floats
    until_ns: Floats

    @classmethod
    def of(cls, start_ns: Floats, end_ns: Floats, is_taken: Flags) -> _Busy:
        order = np.flatnonzero(is_taken)[np.argsort(start_ns[is_taken], kind="stable")]
        start, end = start_ns[order], np.maximum.accumulate(end_ns[order])
        # Executions that overlap, or follow at once, are one stretch.
        stretch = np.cumsum(np.append(False, start[1:] > end[:-1])) if len(order) else np.empty(0, np.int64)
        begins = _starts(stretch)
        begin, past = start[begins], end[np.append(begins[1:], len(stretch))[: len(begins)] - 1]
        until = np.cumsum(past - begin)
        edges = np.stack([begin, past], axis=1).ravel()
        return cls(edges, np.stack([until - (past - begin), until], axis=1).ravel())

    def within(self, begin_ns: Floats, past_ns: Floats) -> Floats:
        """Return how much of each span some of the executions covered, ns."""
        if not len(self.moment_ns):
            return np.zeros(len(begin_ns))
        begun, past = (np.interp(moment, self.moment_ns, self.until_ns) for moment in (begin_ns, past_ns))
        return np.asarray(past - begun)


def _starts(values: Ints) -> Ints:
    """Return the first row of each run of equal values."""
    return np.flatnonzero(np.append(values[:1] == values[:1], values[1:] != values[:-1]))
