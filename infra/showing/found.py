"""Facts about a verdict, read from the database or from a recording.

Both readers (in `from_database.py`) fill the same fields, so that the screen is the same. A part
that is missing (rows expired, nothing sampled) is empty.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from irregulars.detectors.job.topology import Place
from irregulars.dtypes import Floats, Ints
from irregulars.infra.showing.numerics import Band
from irregulars.infra.showing.transfers import Way
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.kinds import STANDSTILLS
from irregulars.sinks.advice import (
    advise,
    gpu_hours_lost,
    gpu_hours_per_hour,
    name_device,
    runbook_of,
    share_lost,
    where_to_look,
)
from irregulars.sinks.alerts import summarise
from irregulars.words import duration, rate

BEFORE_SHOWN: Final = 40  # iterations before a verdict that are read: they show how steady the job was
AFTER_SHOWN: Final = 20  # iterations behind a verdict that are read: is it over?
# Iterations of which each rank's work is read, for the heat map: those around the first irregular one
LOOKED_INTO: Final = 60

STRETCHES_SHOWN: Final = 60  # stretches of time into which samples of bandwidth are gathered
GPU_STATE: Final = "GPU states"  # a part that the database may not read in time
BINS: Final = 64  # rows of a heat map at most; of more ranks, several share a row, and the slowest of them is shown


class Iteration(NamedTuple):
    """One iteration of training, or the first one of the verdict whatever it was: ns, None where not known."""

    iteration: int
    started_ns: int
    elapsed_ns: int
    reference_ns: float | None
    is_irregular: bool | None
    has_cause: bool
    has_other: bool = False  # the cause of another verdict was seen in it


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
    """State of the GPU of one rank while the cause was seen; NaN or None where it was not reported."""

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


class Standing(NamedTuple):
    """Where some ranks stand while their job hangs.

    ``probability`` is that of the one that is most suspected; None: none of them is.
    """

    where: str
    ranks: tuple[int, ...]
    probability: float | None
    since: str  # when they entered it, UTC; empty: they are in no operator, or it is not known


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
    # In place of the heat map: where the verdict is about numbers, about transfers, or a hang
    numerics: Sequence[Band] = ()
    ways: Sequence[Way] = ()
    pauses: Sequence[Way] = ()  # what the accused ranks' own time went to: a row a cause
    standing: Sequence[Standing] = ()
    rates: Sequence[NicRates] = ()
    rate_samples: Sequence[RateSample] = ()
    gpus: Sequence[GpuState] = ()
    earlier: Sequence[Earlier] = ()
    others: Sequence[Other] = ()
    unread: Sequence[str] = ()  # parts that the database could not read in time


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


# Kinds of verdicts that are about how long ranks worked. For others a map of work would point at innocents.
WORK_KINDS: Final = ("slow_rank", "slow_stage", "slow_checkpoint", "imbalance", "custom")


def periods_of(verdict: Verdict, iterations: Sequence[Iteration]) -> Periods:
    """Split the iterations around a verdict into those before and those with its cause.

    A fault that was there from the start has none before it. Of a verdict that is in no iteration, such as a hang,
    the whole range counts.
    """
    first, past = verdict.iterations
    own = [one for one in iterations if first <= one.iteration < past]
    seen = [one.iteration for one in own if one.has_cause]
    known = [one for one in iterations if one.iteration < first]
    if not verdict.has_healthy_past:  # the first ones, which are not judged, are no past that it was held against
        known = [one for one in known if one.is_irregular is not None]
    before = [one.iteration for one in usual_ones(known)]
    return Periods(_numbers(before), _numbers(seen or [one.iteration for one in own]))


def _numbers(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def usual_ones(iterations: Sequence[Iteration]) -> list[Iteration]:
    """Return the regular iterations, those in no other verdict if there are any; else the first ones, not judged.

    >>> warm_up = [Iteration(at, 0, 10, None, None, False) for at in range(2)]
    >>> [one.iteration for one in usual_ones([*warm_up, Iteration(2, 0, 10, 9.0, False, False)])]
    [2]
    >>> [one.iteration for one in usual_ones([*warm_up, Iteration(2, 0, 90, 9.0, True, True)])]
    [0, 1]
    >>> [one.iteration for one in usual_ones([Iteration(at, 0, 10, 9.0, False, False, at < 4) for at in range(2, 6)])]
    [4, 5]
    """
    regular = [one for one in iterations if one.is_irregular is False]
    healthy = [one for one in regular if not one.has_other]
    return healthy or regular or [one for one in iterations if one.is_irregular is None and not one.has_cause]


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
    names = {one: getattr(suspect, one) for one in suspect.traits.identity}
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


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of the verdict's cause; None where not known."""

    share: float | None  # share of the job's time that was lost while the cause was there, 0 to 1
    gpu_hours_per_hour: float | None  # GPUs that stand still because of it, as it were
    # gpu_hours, lost_s: Lost so far
    gpu_hours: float | None
    lost_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen(Found):
    """All that is shown about a verdict: the facts (of GPUs the accused ones alone), and conclusions from them."""

    device: str | None  # the first suspect in words; None: no device is accused
    summary: str
    since_ns: int | None  # when the first iteration of the verdict began; None: no longer stored, or never known
    cost: Cost
    # before_ns, during_ns: Median iteration time before and with the cause; NaN where not known
    before_ns: float
    during_ns: float
    nic: str  # rates of the accused NIC in words; empty where not known
    gpu_median_mhz: float  # median clock of all GPUs of the job; NaN where not known
    next_step: str
    look_further: str
    runbook: str
    missing: Sequence[str]  # facts that are not known, and why: a line each

    def to_json(self) -> dict[str, Any]:
        """Return all values as JSON has them. Ranges are half-open: `past_last`; times are ns since the epoch."""
        names = [one.name for one in fields(self) if one.name not in ("verdict", "clock", "unread")]
        first, past = self.verdict.iterations
        return {
            "verdict": self.verdict.to_json(),
            "range": {"first": first, "past_last": past, "last": past - 1},
            **plain({name: getattr(self, name) for name in names}),
        }


def plain(value: Any) -> Any:
    """Return a value as JSON has it: records as objects; null for numbers that are not finite."""

    def rest(one: Any) -> Any:
        return one._asdict() if hasattr(one, "_asdict") else dict(one)

    kinds = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.loads(orjson.dumps(value, rest, kinds))


def gather(found: Found, runbook_url: str | None = None) -> Screen:
    """Return the screen of a verdict; `runbook_url` is where the runbook is, if not in the repository alone."""
    verdict = found.verdict
    periods = periods_of(verdict, found.iterations)
    suspect = verdict.suspects[0] if verdict.suspects else None
    times = {one.iteration: float(one.elapsed_ns) for one in found.iterations}
    before_ns, during_ns = (median_of([times[i] for i in some.tolist()]) for some in (periods.before, periods.during))
    first = verdict.iterations[0]
    # A start that is not known is far below 0.
    begun_ns = (one.started_ns for one in found.iterations if one.iteration >= first and one.started_ns > 0)
    since_ns = next(begun_ns, None)
    until_ns = found.now_ns if verdict.state == "open" else None
    stands_ns = None if until_ns is None or since_ns is None else until_ns - since_ns
    next_step = advise(verdict)
    if found.recording is not None and verdict.state != "open":  # it is over: in the past tense
        next_step = f"while it lasted, {advise(replace(verdict, state='open', close_reason=None))}"
    facts = {one.name: getattr(found, one.name) for one in fields(found)}
    facts["gpus"] = [one for one in found.gpus if suspect is not None and one.rank in suspect.ranks]
    return Screen(
        **facts,
        device=None if suspect is None else name_device(suspect),
        summary=summarise(verdict),
        since_ns=since_ns,
        cost=_cost(verdict, stands_ns),
        before_ns=before_ns,
        during_ns=during_ns,
        nic=nic_text(found),
        gpu_median_mhz=median_of([one.sm_clock_mhz for one in found.gpus]),
        next_step=next_step,
        look_further=where_to_look(verdict),
        runbook=runbook_of(verdict.kind, runbook_url),
        missing=tuple(_missing(found, periods)),
    )


def _cost(verdict: Verdict, stands_ns: int | None) -> Cost:
    """Return the cost. An open hang costs at least the time since it began: its loss is published at its end."""
    if verdict.kind in STANDSTILLS and stands_ns is not None and verdict.lost_s < stands_ns / 1e9:
        verdict = replace(verdict, lost_s=stands_ns / 1e9)
    return Cost(share_lost(verdict), gpu_hours_per_hour(verdict), gpu_hours_lost(verdict), verdict.lost_s)


def nic_text(found: Found) -> str:
    """Return the rates of the accused NIC in words, beside before and beside others; empty where that is not known.

    Whether that is slow is the judge's decision: these are the samples.
    """
    if found.verdict.kind in (*STANDSTILLS, "slow_stage") or not found.verdict.suspects:
        return ""
    suspect = found.verdict.suspects[0]
    ranks = suspect.traits.senders(suspect.ranks)
    nic = next((one for one in found.rates if one.rank in ranks), None)
    if nic is None:
        return ""
    others = [one for one in found.rates if one.rank not in ranks]
    # Peaks before, with the cause, and of the median of all others meanwhile
    peaks = {"sent": (nic.sent_before, nic.sent_during, median_of([one.sent_during for one in others]))}
    if not suspect.traits.is_way:
        beside = median_of([one.received_during for one in others])
        peaks["received"] = (nic.received_before, nic.received_during, beside)

    def lowered(direction: str) -> float:  # against the lower one of before and others; infinite: not known
        known = [value for value in peaks[direction][::2] if value > 0]
        return peaks[direction][1] / min(known) if known and math.isfinite(peaks[direction][1]) else math.inf

    direction = min(peaks, key=lowered)
    if not any(value > 0 for value in peaks[direction]):
        return ""  # nothing moved on any: the line would say nothing
    place = found.places.get(nic.rank)
    name = f"{nic.device} on {place.host}" if place is not None and place.host else f"{nic.device} of rank {nic.rank}"
    before, during, usual = map(rate, peaks[direction])
    text = f"{name} {direction} at most {during} (before {before}, others {usual})"
    return f"{text}, sampled each {duration(nic.interval_ns)}" if math.isfinite(nic.interval_ns) else text


def _missing(found: Found, periods: Periods) -> Iterator[str]:
    first, past = found.verdict.iterations
    if found.verdict.kind not in STANDSTILLS and not any(first <= one.iteration < past for one in found.iterations):
        yield "iterations: none of the verdict's range are stored (kept 2 years), or its job was not stored"
    elif not len(periods.before):
        yield "before: no regular iterations are known; it was there from the start, or they are no longer stored"
    reasons = found.verdict.explanation
    if reasons is None or not (reasons.path or found.verdict.kind == "slow_stage"):
        yield "who waited: the judge read no operators with times of its iterations"
    if found.recording is not None:
        yield "GPU state: a recording holds none; agents of GPU nodes send it"
    elif not found.gpus and GPU_STATE not in found.unread:
        yield "GPU state: nothing is stored for these iterations (kept 7 days), or no agent samples GPUs"
    for part in found.unread:
        yield f"{part}: the database could not read them in time"
