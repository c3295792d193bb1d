"""One screen about one verdict: what follows from what was read. `gather` makes it; pages are drawn of it alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    regular_apart,
)
from irregulars.infra.showing.ruled_out import DELTA, WORKERS, Finding, find_alternatives, nic_text
from irregulars.infra.showing.waiting_chain import Chain, Usual, Way, find_chain, find_ways
from irregulars.messages.judgements import Verdict
from irregulars.sinks.advice import advise, name_device, runbook_of, where_to_look
from irregulars.sinks.alerts import summarise
from irregulars.sinks.costs import gpu_hours_lost, gpu_hours_per_hour, share_lost


@dataclass(frozen=True, slots=True)
class Cost:
    """What the verdict's cause costs; None where not known.

    Parameters
    ----------
    share
        Share of the job's time that was lost while the cause was there, 0 to 1.
    gpu_hours_per_hour
        GPUs that stand still because of it, as it were.
    gpu_hours, lost_s
        Lost so far.
    """

    share: float | None
    gpu_hours_per_hour: float | None
    gpu_hours: float | None
    lost_s: float


@dataclass(frozen=True, slots=True)
class Screen:
    """All that is shown about a verdict.

    Parameters
    ----------
    device
        The first suspect in words; None: nobody is accused.
    since_ns
        When the first iteration of the verdict began; None: no longer stored.
    before_ns, during_ns
        Median iteration time before and with the cause; NaN where not known.
    without_ns
        Estimated iteration time with the first suspect as usual; NaN where not known.
    nic
        At which rate the accused NIC moved, in words; empty where nobody knows.
    gpu_median_mhz
        Median clock of all GPUs of the job; NaN where not known.
    missing
        What could not be told, and why: a line each.
    """

    verdict: Verdict
    recording: str | None
    source: str
    now_ns: int | None
    device: str | None
    summary: str
    since_ns: int | None
    cost: Cost
    iterations: Sequence[Iteration]
    before_ns: float
    during_ns: float
    without_ns: float
    chain: Chain | None
    alternatives: Sequence[Finding]
    nic: str
    places: Mapping[int, Place]
    gpus: Sequence[GpuState]
    gpu_median_mhz: float
    rates: Sequence[NicRates]
    rate_samples: Sequence[RateSample]
    cells: Sequence[Cell]
    bin_ranks: int
    earlier: Sequence[Earlier]
    others: Sequence[Other]
    next_step: str
    look_further: str
    runbook: str
    missing: Sequence[str]

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
    """Make the screen of what was read; `runbook_url` is where the runbook is, if not in the repository alone."""
    verdict = found.verdict
    periods = periods_of(verdict, found.iterations)
    suspect = verdict.suspects[0] if verdict.suspects else None
    times = {one.iteration: float(one.elapsed_ns) for one in found.iterations}
    before_ns, during_ns = (median_of([times[i] for i in some.tolist()]) for some in (periods.before, periods.during))
    longer_ns = float(np.fmax(during_ns - before_ns, 0.0))
    chain, ways = _follow(found, periods, times, longer_ns)
    since_ns = _since(found)
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
        before_ns=before_ns, during_ns=during_ns, without_ns=_without(verdict, before_ns, during_ns),
        chain=chain,
        alternatives=find_alternatives(found, ways, longer_ns),
        nic=nic_text(found, () if suspect is not None and suspect.device in WORKERS else ways),
        places=_named_places(found, chain),
        gpus=_accused_gpus(found),
        gpu_median_mhz=median_of([one.sm_clock_mhz for one in found.gpus]),
        rates=found.rates, rate_samples=found.rate_samples,
        cells=found.cells, bin_ranks=found.bin_ranks,
        earlier=found.earlier,
        others=found.others,
        next_step=_next_step(found),
        look_further=where_to_look(verdict),
        runbook=runbook_of(verdict.kind, runbook_url),
        missing=tuple(_missing(found, periods, chain)),
    )  # fmt: skip


def _follow(
    found: Found, periods: Periods, times: Mapping[int, float], longer_ns: float
) -> tuple[Chain | None, list[Way]]:
    """Return who waited for whom, and the ways of the first suspect's rank, by the operators that are stored."""
    operators, suspects = found.operators, found.verdict.suspects
    suspect = suspects[0] if suspects else None
    stored = set(np.unique(operators["iteration"]).astype(np.int64).tolist())
    regular = sorted(stored & set(regular_apart(found.verdict, found.iterations)))
    irregular = sorted(stored & set(periods.during.tolist()))
    usual = Usual(operators, regular, irregular, () if suspect is None else suspect.ranks, found.members)
    candidates, worth_ns = _candidates(irregular, times), (DELTA - 1) * longer_ns
    chain = find_chain(operators, candidates, usual, suspect, found.members, worth_ns)
    return chain, [] if suspect is None else find_ways(operators, irregular, usual, suspect.rank)


def _candidates(irregular: Sequence[int], times: Mapping[int, float]) -> list[int]:
    """Return irregular iterations with operators, the most typical first: whose time is nearest to the median."""
    typical = median_of([times[one] for one in irregular if one in times])
    return sorted(irregular, key=lambda one: abs(times.get(one, math.inf) - typical))


def _since(found: Found) -> int | None:
    first = found.verdict.iterations[0]
    return next((one.started_ns for one in found.iterations if one.iteration >= first), None)


def _next_step(found: Found) -> str:
    """Say what to do; of a recording, which is over, what was to be done."""
    verdict = found.verdict
    if found.recording is None or verdict.state == "open":
        return advise(verdict)
    return f"while it lasted: {advise(replace(verdict, state='open', close_reason=None))}"


def _cost(verdict: Verdict, stands_ns: int | None) -> Cost:
    """Return what it costs; of a hang that goes on at least the time since it began: its loss is told at its end."""
    if verdict.kind == "hang" and stands_ns is not None and verdict.lost_s < stands_ns / 1e9:
        verdict = replace(verdict, lost_s=stands_ns / 1e9)
    return Cost(share_lost(verdict), gpu_hours_per_hour(verdict), gpu_hours_lost(verdict), verdict.lost_s)


def _without(verdict: Verdict, before_ns: float, during_ns: float) -> float:
    if verdict.recovers_ratio is None:
        return math.nan
    return during_ns - verdict.recovers_ratio * (during_ns - before_ns)


def _named_places(found: Found, chain: Chain | None) -> dict[int, Place]:
    """Return the places of the ranks that the screen names."""
    named = {rank for one in found.verdict.suspects for rank in (one.rank, one.peer) if rank is not None}
    if chain is not None:
        named |= {rank for one in chain.handovers for rank in (one.longest_rank, one.last_rank)}
        named |= {rank for rank in (chain.cause.rank, chain.cause.peer) if rank is not None}
    return {rank: found.places[rank] for rank in sorted(named) if rank in found.places}


def _accused_gpus(found: Found) -> list[GpuState]:
    ranks = found.verdict.suspects[0].ranks if found.verdict.suspects else ()
    return [one for one in found.gpus if one.rank in ranks]


def _missing(found: Found, periods: Periods, chain: Chain | None) -> Iterator[str]:
    first, past = found.verdict.iterations
    if found.verdict.kind != "hang" and not any(first <= one.iteration < past for one in found.iterations):
        yield "iterations: none of the verdict's range are stored (kept 2 years), or its job was not stored"
    elif not len(periods.before):
        yield "before: no regular iterations are known; it was there from the start, or they are no longer stored"
    if found.verdict.kind != "hang" and not len(found.operators["iteration"]):
        yield "operators: none of its iterations are stored; only irregular ones are, and for a while only"
    elif chain is None and found.verdict.kind != "hang":
        yield "who waited: the operators' start times are not known, or none is of an irregular iteration"
    if found.recording is not None:
        yield "GPU state: a recording holds none; agents of GPU nodes send it"
    elif not found.gpus:
        yield "GPU state: nothing is stored for these iterations (kept 7 days), or no agent samples GPUs"
