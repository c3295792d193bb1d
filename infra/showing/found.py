"""Facts about a verdict, read from the database or from a recording.

Both readers (`from_database.py`, `from_recording.py`) fill the same fields, so that the screen is the same. A part
that is missing (rows expired, nothing sampled) is empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.dtypes import Floats, Ints
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.kinds import DEVICE_KINDS

BEFORE_SHOWN: Final = 40  # iterations before a verdict that are read: they show how steady the job was
AFTER_SHOWN: Final = 20  # iterations behind a verdict that are read: is it over?
LOOKED_INTO: Final = 60
"""Iterations of which each rank's work is read, for the heat map: those around the first irregular one."""

STRETCHES_SHOWN: Final = 60  # stretches of time into which samples of bandwidth are gathered
BINS: Final = 64  # rows of a heat map at most; of more ranks, several share a row, and the slowest of them is shown


class Iteration(NamedTuple):
    """One iteration of training (no evaluation, no checkpoint): times in ns, None where not known."""

    iteration: int
    started_ns: int
    elapsed_ns: int
    reference_ns: float | None
    is_irregular: bool | None
    has_cause: bool


class Place(NamedTuple):
    """Where a rank lives; None: not announced."""

    host: str | None
    gpu: int | None
    nic: str | None
    switch: str | None


class Cell(NamedTuple):
    """One field of the heat map: the longest work among the ranks of a bin in one iteration, and whose it was."""

    iteration: int
    bin: int
    work_ns: float
    rank: int


class NicRates(NamedTuple):
    """Peaks of one NIC in both periods, bytes/s; NaN where nothing was sampled.

    ``interval_ns`` is the mean time from one sample with the cause to the next.
    """

    rank: int
    device: str
    sent_before: float
    sent_during: float
    received_before: float
    received_during: float
    interval_ns: float

    def peaks(self, direction: str) -> tuple[float, float]:
        """Return the peaks before and during, of ``sent`` or ``received``."""
        return (
            (self.sent_before, self.sent_during)
            if direction == "sent"
            else (self.received_before, self.received_during)
        )


class RateSample(NamedTuple):
    """Peaks in one stretch of time, bytes/s: the accused NIC's, and the least, median and largest of all others'.

    ``direction`` is ``sent`` or ``received``.
    """

    direction: str
    time_ns: int
    own: float
    others_least: float
    others_median: float
    others_most: float


class GpuState(NamedTuple):
    """State of the GPU of one rank while the cause was seen; NaN or None where it was not told."""

    rank: int
    device: str
    samples: int
    sm_clock_mhz: float
    throttled_ratio: float
    reasons: str
    hottest_c: float
    power_w: float
    ecc_uncorrected: int | None
    xids: tuple[int, ...]


class Earlier(NamedTuple):
    """An earlier verdict on the same device."""

    job: str
    verdict_id: str
    kind: str
    iterations: tuple[int, int]
    lost_s: float
    world_size: int
    last_seen_ns: int | None


class Other(NamedTuple):
    """Another verdict of the job: one that is open, too; of a recording any."""

    verdict_id: str
    kind: str


@dataclass(frozen=True, slots=True)
class Found:
    """All that was read about one verdict."""

    verdict: Verdict  # its newest revision
    recording: str | None = None  # the directory that was judged; None: a database was read
    source: str = ""  # where it was read, for people
    now_ns: int | None = None  # when it was read; None for a recording, of which no age is shown
    clock: str = ""  # ``shared``, ``per_host`` or, where not known, empty
    # In their order, from `BEFORE_SHOWN` before the verdict to `AFTER_SHOWN` behind it
    iterations: Sequence[Iteration] = ()
    places: Mapping[int, Place] = field(default_factory=dict)
    # cells, bin_ranks: The heat map, and how many ranks share one of its bins
    cells: Sequence[Cell] = ()
    bin_ranks: int = 1
    rates: Sequence[NicRates] = ()
    rate_samples: Sequence[RateSample] = ()
    gpus: Sequence[GpuState] = ()
    earlier: Sequence[Earlier] = ()
    others: Sequence[Other] = ()


@dataclass(frozen=True, slots=True)
class Periods:
    """The iterations to compare: numbers, ascending."""

    before: Ints  # regular ones before the verdict
    during: Ints  # irregular ones in which its cause was seen; all of its range where none is told

    @property
    def looked_into(self) -> Ints:
        """Iterations of the heat map: the last before, and the first in the verdict's range."""
        half = LOOKED_INTO // 2
        return np.concatenate([self.before[-half:], self.during[:half]])


def periods_of(verdict: Verdict, iterations: Sequence[Iteration]) -> Periods:
    """Split the iterations around a verdict into those before and those with its cause.

    A fault that was there from the start has none before it. Of a verdict that is in no iteration, such as a hang,
    the whole range counts.
    """
    first, past = verdict.iterations
    own = [one for one in iterations if first <= one.iteration < past]
    seen = [one.iteration for one in own if one.has_cause]
    before = [one.iteration for one in usual_ones([one for one in iterations if one.iteration < first])]
    return Periods(_numbers(before), _numbers(seen or [one.iteration for one in own]))


def with_first_ones(verdict: Verdict, iterations: Sequence[Iteration]) -> list[Iteration]:
    """Mark the irregular iterations before a verdict opened as its own: they were judged when it had no id yet."""

    def is_first(one: Iteration) -> bool:
        is_seen = one.is_irregular or verdict.kind == "custom"  # a detector sees what costs nothing as well
        return bool(is_seen) and verdict.iterations[0] <= one.iteration < opened

    opened = min((one.iteration for one in iterations if one.has_cause), default=verdict.iterations[1])
    return [one._replace(has_cause=True) if is_first(one) else one for one in iterations]


def _numbers(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def usual_ones(iterations: Sequence[Iteration]) -> list[Iteration]:
    """Return the regular iterations; where none is known to be, the first ones, which were not judged.

    >>> warm_up = [Iteration(at, 0, 10, None, None, False) for at in range(2)]
    >>> [one.iteration for one in usual_ones([*warm_up, Iteration(2, 0, 10, 9.0, False, False)])]
    [2]
    >>> [one.iteration for one in usual_ones([*warm_up, Iteration(2, 0, 90, 9.0, True, True)])]
    [0, 1]
    """
    regular = [one for one in iterations if one.is_irregular is False]
    return regular or [one for one in iterations if one.is_irregular is None and not one.has_cause]


def median_of(values: Floats | Sequence[float]) -> float:
    """Return the median of the known values; NaN if there is none."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    return float(np.median(known)) if len(known) else float("nan")


def span_of(iterations: Iterable[Iteration], numbers: Collection[int] | None = None) -> tuple[int, int]:
    """Return begin and end of some iterations, ns; zeros of none."""
    own = [one for one in iterations if numbers is None or one.iteration in numbers]
    if not own:
        return 0, 0
    return own[0].started_ns, max(one.started_ns + one.elapsed_ns for one in own)


def sampled_spans(iterations: Sequence[Iteration], periods: Periods) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return begin and end of both periods for samples; a sample covers the time since the one before.

    The second period leaves out its first and its last iteration, in which the cause may have come and gone.
    """
    during = periods.during.tolist()
    return span_of(iterations, set(periods.before.tolist())), span_of(iterations, set(during[1:-1] or during))


def device_name(suspect: Suspect) -> dict[str, Any] | None:
    """Return the columns that name a device in every job; None where its ranks alone name it.

    >>> device_name(Suspect("nic", 3, (3,), 0.9, host="node-0", gpu=1, nic="mlx5_1"))
    {'device': 'nic', 'host': 'node-0', 'nic': 'mlx5_1'}
    >>> device_name(Suspect("nic", 3, (3,), 0.9))
    """
    kind = DEVICE_KINDS.get(suspect.device)
    names = {one: getattr(suspect, one) for one in (() if kind is None else kind.named_by)}
    if not names or any(value is None for value in names.values()):
        return None
    return {"device": suspect.device, **names}


def is_same_device(one: Suspect, other: Suspect) -> bool:
    """Return whether two suspects of one job are the same device.

    >>> gpu = Suspect("gpu", 3, (3,), 0.9)
    >>> is_same_device(gpu, Suspect("gpu", 3, (3,), 0.4)), is_same_device(gpu, Suspect("gpu", 4, (4,), 0.4))
    (True, False)
    """
    names = device_name(one)
    if names is not None:
        return names == device_name(other)
    return (one.device, one.ranks, one.peer) == (other.device, other.ranks, other.peer)
