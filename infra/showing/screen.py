"""One screen about one verdict, computed from the facts that were read. Pages are drawn of it alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from irregulars.infra.showing.found import (
    Cell,
    Earlier,
    Found,
    GpuState,
    Iteration,
    NicRates,
    Other,
    Periods,
    Place,
    RateSample,
    median_of,
    periods_of,
)
from irregulars.messages.judgements import Verdict
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


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of the verdict's cause; None where not known."""

    share: float | None  # share of the job's time that was lost while the cause was there, 0 to 1
    gpu_hours_per_hour: float | None  # GPUs that stand still because of it, as it were
    # gpu_hours, lost_s: Lost so far
    gpu_hours: float | None
    lost_s: float


@dataclass(frozen=True, slots=True)
class Screen:
    """All that is shown about a verdict."""

    verdict: Verdict
    recording: str | None
    source: str
    now_ns: int | None
    device: str | None  # the first suspect in words; None: no device is accused
    summary: str
    since_ns: int | None  # when the first iteration of the verdict began; None: no longer stored
    cost: Cost
    iterations: Sequence[Iteration]
    # before_ns, during_ns: Median iteration time before and with the cause; NaN where not known
    before_ns: float
    during_ns: float
    without_ns: float  # estimated iteration time with the first suspect as usual; NaN where not known
    nic: str  # rates of the accused NIC in words; empty where not known
    places: Mapping[int, Place]
    gpus: Sequence[GpuState]
    gpu_median_mhz: float  # median clock of all GPUs of the job; NaN where not known
    rates: Sequence[NicRates]
    rate_samples: Sequence[RateSample]
    cells: Sequence[Cell]
    bin_ranks: int
    earlier: Sequence[Earlier]
    others: Sequence[Other]
    next_step: str
    look_further: str
    runbook: str
    missing: Sequence[str]  # what could not be told, and why: a line each

    def to_json(self) -> dict[str, Any]:
        """Return all values as JSON has them. Ranges are half-open: `past_last`; times are ns since the epoch."""
        values = {name: _plain(getattr(self, name)) for name in self.__slots__ if name not in ("verdict", "cells")}
        first, past = self.verdict.iterations
        return {
            "verdict": self.verdict.to_json(),
            "range": {"first": first, "past_last": past, "last": past - 1},
            **values,
            "cells": [_plain(one) for one in self.cells],
        }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if hasattr(value, "__dataclass_fields__"):
        return _plain({name: getattr(value, name) for name in value.__dataclass_fields__})
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def gather(found: Found, runbook_url: str | None = None) -> Screen:
    """Return the screen of a verdict; `runbook_url` is where the runbook is, if not in the repository alone."""
    verdict = found.verdict
    periods = periods_of(verdict, found.iterations)
    suspect = verdict.suspects[0] if verdict.suspects else None
    times = {one.iteration: float(one.elapsed_ns) for one in found.iterations}
    before_ns, during_ns = (median_of([times[i] for i in some.tolist()]) for some in (periods.before, periods.during))
    first = verdict.iterations[0]
    since_ns = next((one.started_ns for one in found.iterations if one.iteration >= first), None)
    ratio = verdict.recovers_ratio
    until_ns = found.now_ns if verdict.state == "open" else None
    stands_ns = None if until_ns is None or since_ns is None else until_ns - since_ns
    return Screen(
        verdict=verdict,
        recording=found.recording, source=found.source, now_ns=found.now_ns,
        device=None if suspect is None else name_device(suspect),
        summary=summarise(verdict),
        since_ns=since_ns,
        cost=_cost(verdict, stands_ns),
        iterations=found.iterations,
        before_ns=before_ns, during_ns=during_ns,
        without_ns=math.nan if ratio is None else during_ns - ratio * (during_ns - before_ns),
        nic=nic_text(found),
        places=found.places,
        gpus=[one for one in found.gpus if suspect is not None and one.rank in suspect.ranks],
        gpu_median_mhz=median_of([one.sm_clock_mhz for one in found.gpus]),
        rates=found.rates, rate_samples=found.rate_samples,
        cells=found.cells, bin_ranks=found.bin_ranks,
        earlier=found.earlier,
        others=found.others,
        next_step=_next_step(found),
        look_further=where_to_look(verdict),
        runbook=runbook_of(verdict.kind, runbook_url),
        missing=tuple(_missing(found, periods)),
    )  # fmt: skip


def _next_step(found: Found) -> str:
    """Return the advice; of a recording, which is over, in the past tense."""
    verdict = found.verdict
    if found.recording is None or verdict.state == "open":
        return advise(verdict)
    return f"while it lasted: {advise(replace(verdict, state='open', close_reason=None))}"


def _cost(verdict: Verdict, stands_ns: int | None) -> Cost:
    """Return the cost. An open hang costs at least the time since it began: its loss is published at its end."""
    if verdict.kind == "hang" and stands_ns is not None and verdict.lost_s < stands_ns / 1e9:
        verdict = replace(verdict, lost_s=stands_ns / 1e9)
    return Cost(share_lost(verdict), gpu_hours_per_hour(verdict), gpu_hours_lost(verdict), verdict.lost_s)


class Peaks(NamedTuple):
    """Peaks of the accused NIC in one direction, beside the median of all others meanwhile; bytes/s or NaN."""

    direction: str
    before: float
    during: float
    others: float


def lowered_peaks(rates: Sequence[NicRates], ranks: Sequence[int]) -> Peaks | None:
    """Return the direction in which the NIC of some ranks was held down most; None where nothing was sampled."""
    own = next((one for one in rates if one.rank in ranks), None)
    if own is None:
        return None
    found = []
    for direction in ("sent", "received"):
        others = median_of([one.peaks(direction)[1] for one in rates if one.rank not in ranks])
        found.append(Peaks(direction, *own.peaks(direction), others))
    return min(found, key=_lowered)


def _lowered(peaks: Peaks) -> float:
    """Return the peak against the lower one of before and others; infinite where that is not known."""
    known = [value for value in (peaks.before, peaks.others) if value > 0]
    return peaks.during / min(known) if known and math.isfinite(peaks.during) else math.inf


def nic_text(found: Found) -> str:
    """Return the rates of the accused NIC in words, beside before and beside others; empty where that is not known.

    Whether that is slow the judge has said: these are the samples.
    """
    if found.verdict.kind in ("hang", "slow_stage") or not found.verdict.suspects:
        return ""
    ranks = found.verdict.suspects[0].ranks
    peaks = lowered_peaks(found.rates, ranks)
    if peaks is None or not any(value > 0 for value in peaks[1:]):
        return ""  # nothing moved on any: the line would say nothing
    nic = next(one for one in found.rates if one.rank in ranks)
    place = found.places.get(nic.rank)
    name = f"{nic.device} on {place.host}" if place is not None and place.host else f"{nic.device} of rank {nic.rank}"
    text = f"{name} {peaks.direction} at most {rate(peaks.during)} (before {rate(peaks.before)}, "
    text += f"others {rate(peaks.others)})"
    return f"{text}, sampled each {duration(nic.interval_ns)}" if math.isfinite(nic.interval_ns) else text


def _missing(found: Found, periods: Periods) -> Iterator[str]:
    first, past = found.verdict.iterations
    if found.verdict.kind != "hang" and not any(first <= one.iteration < past for one in found.iterations):
        yield "iterations: none of the verdict's range are stored (kept 2 years), or its job was not stored"
    elif not len(periods.before):
        yield "before: no regular iterations are known; it was there from the start, or they are no longer stored"
    if found.verdict.explanation is None or not found.verdict.explanation.path:
        yield "who waited: the judge read no operators with times of its iterations"
    if found.recording is not None:
        yield "GPU state: a recording holds none; agents of GPU nodes send it"
    elif not found.gpus:
        yield "GPU state: nothing is stored for these iterations (kept 7 days), or no agent samples GPUs"
