"""Reports of nodes and devices: errors of GPUs and links, lack of memory, processes that ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np

from irregulars.dtypes import Floats
from irregulars.messages.records import EVENT_KINDS, UNKNOWN, Batch, Header
from irregulars.validation import Integer, Label, Rank, one_of

MOST_TEXT: Final = 200  # characters of a detail: verdicts repeat it
ONE_LOOK_NS: Final = 1_000_000  # frames or functions of one look into a process lie closer together than this

THROUGHPUT: Final = "steps_per_s"
TOKENS: Final = "tokens_per_s"
ISSUE_LATENCY: Final = "issue_latency_ns"
FLOPS: Final = "flops_per_s"  # followed by a dot and the kind of multiplication
KERNELS: Final = "kernel_ns"  # followed by a dot and the class of kernels: how long one of them takes
VOID_BETWEEN: Final = "void_between_steps_ratio"
VOID_MINORITY: Final = "void_minority_kernels_ratio"
GPU_METRICS: Final = "gpu_metrics"  # the detector that finds ranks unlike others, or unlike their past, in them
DEVICE_EVENTS: Final = "device_events"  # the detector of verdicts that events open by themselves
_MOST: Final = 1e30  # of a metric's numbers: those of windows and ranks are added up
QUANTILES: Final = tuple(percent / 100 for percent in range(5, 96, 9))  # that a metric's event holds


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """One event. It belongs to a rank that uses the device, or one on the host where it is about the host.

    Events sort by their fields, one without a code before those that have one.
    """

    time_ns: Integer  # ns since the epoch, the host's own clock
    rank: Rank
    kind: Annotated[str, one_of(*EVENT_KINDS)]
    host: Label = ""  # empty: that of the rank
    device: Label = ""  # as in ``bandwidth`` and ``gpu_health`` (``gpu3``, ``mlx5_0``); empty: the host itself
    code: Integer | None = None  # of an XID its number, of counters how much they grew, of a process its exit status
    detail: Label = ""

    def __lt__(self, other: DeviceEvent) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, int, str, str, str, bool, int, str]:
        # An order of the dataclass's own would compare None with a number.
        return (self.time_ns, self.rank, self.kind, self.host, self.device,
                self.code is not None, self.code or 0, self.detail)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Summary:
    """A metric of a rank over a window."""

    value: float  # all amounts over all they are held against; of issue latencies their median
    quantiles: Floats  # of its distribution: `QUANTILES`
    count: int
    weight: float  # what all amounts are held against


def metric_event(time_ns: int, rank: int, name: str, iteration: int, one: Summary) -> DeviceEvent:
    """Return a metric of a rank in the steps from a time on.

    >>> event = metric_event(5, 3, "issue_latency_ns", 7, Summary(13_000.0, np.full(11, 2e4), 90, 90.0))
    >>> read_metric(event).value, len(event.detail) <= MOST_TEXT
    (13000.0, True)
    """
    numbers = " ".join(f"{number:.4g}" for number in (one.count, one.weight, one.value, *one.quantiles))
    return DeviceEvent(time_ns, rank, "metric", device=name, code=iteration, detail=numbers)


def read_metric(event: DeviceEvent) -> Summary | None:
    """Return the distribution that an event holds; None where it holds none: a producer may be newer.

    >>> read_metric(DeviceEvent(0, 0, "metric", detail=f"9 1 nan{11 * ' 1'}")) is None
    True
    """
    with suppress(ValueError):
        count, weight, value, *quantiles = map(float, event.detail.split(" ") if event.kind == "metric" else ())
        is_finite = all(abs(one) < _MOST for one in (weight, value, *quantiles))
        if len(quantiles) == len(QUANTILES) and 1 <= count < 1 << 53 and weight > 0 and is_finite:
            return Summary(value, np.array(quantiles), int(count), weight)
    return None


def events_of(batch: Batch) -> tuple[DeviceEvent, ...]:
    """Return the rows of a batch of ``events``."""
    names, columns = batch.header.names, batch.columns
    rows = zip(
        *(columns[name].tolist() for name in ("time_ns", "kind", "host", "device", "code", "detail")), strict=True
    )
    return tuple(
        DeviceEvent(
            time_ns, batch.header.rank, EVENT_KINDS[kind], names[host], names[device],
            None if code == UNKNOWN else code, names[detail],
        )
        for time_ns, kind, host, device, code, detail in rows
    )  # fmt: skip


def columns_of(events: Sequence[DeviceEvent]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Return the names that events hold, and the columns of ``events``, in order of time."""
    events = sorted(events)
    names = dict.fromkeys(text for one in events for text in (one.host, one.device, one.detail))
    codes = {text: code for code, text in enumerate(names)}

    def coded(texts: Iterable[str]) -> np.ndarray:
        return np.array([codes[text] for text in texts], np.uint16)

    return tuple(names), {
        "time_ns": np.array([one.time_ns for one in events], np.int64),
        "kind": np.array([EVENT_KINDS.index(one.kind) for one in events], np.uint8),
        "host": coded(one.host for one in events),
        "device": coded(one.device for one in events),
        "code": np.array([UNKNOWN if one.code is None else one.code for one in events], np.int64),
        "detail": coded(one.detail for one in events),
    }


def batch_of(events: Sequence[DeviceEvent], header: Header) -> Batch:
    """Return events of one rank as a batch; of the header all but the names is taken over."""
    names, columns = columns_of(events)
    own = {name: getattr(header, name) for name in Header.__slots__}
    return Batch(Header(**{**own, "schema": "events", "names": names}), columns)
