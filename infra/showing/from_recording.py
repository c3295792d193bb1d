"""Facts about a verdict on a recording that was judged in memory, without a database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.infra.showing.found import (
    AFTER_SHOWN,
    BEFORE_SHOWN,
    BINS,
    STRETCHES_SHOWN,
    Cell,
    Earlier,
    Found,
    Iteration,
    NicRates,
    Other,
    Periods,
    Place,
    RateSample,
    is_same_device,
    periods_of,
    sampled_spans,
    span_of,
    with_first_ones,
)
from irregulars.messages.judgements import Judgements, Verdict
from irregulars.messages.records import PATHS, Batch
from irregulars.producers.trace.directory import Trace

_NIC: Final = PATHS.index("nic")
_COLUMNS: Final = {"sent": "tx_bytes_per_s", "received": "rx_bytes_per_s"}


def found_in_recording(directory: str, trace: Trace, judgements: Judgements, verdict: Verdict) -> Found:
    """Gather what belongs to one verdict of a judged recording."""
    iterations = with_first_ones(verdict, _iterations(judgements, verdict))
    periods = periods_of(verdict, iterations)
    ranks = judgements.rank_iterations
    newest = {one.verdict_id: one for one in judgements.verdicts if one.verdict_id != verdict.verdict_id}
    bin_ranks = -(-max((a.rank for a in trace.announcements), default=0) // BINS) or 1
    return Found(
        verdict=verdict,
        recording=directory,
        source=directory,
        clock=trace.clock,
        iterations=iterations,
        places={a.rank: Place(a.host, a.gpu, a.nic, a.switch) for a in trace.announcements},
        cells=_cells(ranks, periods.looked_into, bin_ranks),
        bin_ranks=bin_ranks,
        rates=list(_rates(trace.bandwidth, iterations, periods)),
        rate_samples=list(_rate_samples(trace.bandwidth, verdict, span_of(iterations))),
        earlier=list(_earlier(judgements, verdict)),
        others=[Other(one.verdict_id, one.kind) for one in sorted(newest.values(), key=lambda one: -one.lost_s)],
    )


def _iterations(judgements: Judgements, verdict: Verdict) -> list[Iteration]:
    first, past = verdict.iterations[0] - BEFORE_SHOWN, verdict.iterations[1] + AFTER_SHOWN
    return [
        Iteration(
            one.iteration, one.start_ns, one.elapsed_ns,
            one.reference_ns if np.isfinite(one.reference_ns) else None, one.is_irregular,
            verdict.verdict_id in one.verdict_ids,
        )
        for one in sorted(judgements.iterations, key=lambda judged: judged.iteration)
        if first <= one.iteration < past and one.phase == "train"
    ]  # fmt: skip


def _cells(ranks: Mapping[str, Column], iterations: Ints, bin_ranks: int) -> list[Cell]:
    if not ranks:
        return []
    own = np.flatnonzero(np.isin(ranks["iteration"], iterations) & np.isfinite(ranks["work_ns"].astype(np.float64)))
    own = own[np.lexsort((-ranks["work_ns"][own], ranks["rank"][own] // bin_ranks, ranks["iteration"][own]))]
    cells: dict[tuple[int, int], Cell] = {}
    columns = (ranks[name][own].tolist() for name in ("iteration", "rank", "work_ns"))
    for iteration, rank, work_ns in zip(*columns, strict=True):
        cell = Cell(int(iteration), int(rank) // bin_ranks, float(work_ns), int(rank))
        cells.setdefault((cell.iteration, cell.bin), cell)
    return list(cells.values())


def _rates(bandwidth: Mapping[int, Batch], iterations: Sequence[Iteration], periods: Periods) -> Iterator[NicRates]:
    before, during = sampled_spans(iterations, periods)
    for rank, batch in bandwidth.items():
        time_ns = batch.columns["time_ns"]
        is_before, is_during = _within(time_ns, before), _within(time_ns, during)
        for code, device in enumerate(batch.header.names):
            own = (batch.columns["device"] == code) & (batch.columns["path"] == _NIC)
            if own.any():
                when = (own & is_before, own & is_during)
                sent, received = ([_peak(batch.columns[name][some]) for some in when] for name in _COLUMNS.values())
                interval_ns = (during[1] - during[0]) / max(1, int(when[1].sum()))
                yield NicRates(rank, device, sent[0], sent[1], received[0], received[1], interval_ns)


def _within(time_ns: Ints, span: tuple[int, int]) -> Flags:
    return (time_ns > span[0]) & (time_ns <= span[1])


def _peak(rates: Floats) -> float:
    known = rates[np.isfinite(rates)]
    return float(known.max()) if len(known) else float("nan")


def _rate_samples(bandwidth: Mapping[int, Batch], verdict: Verdict, span: tuple[int, int]) -> Iterator[RateSample]:
    """Yield the accused NIC's highest rate in each stretch of time, beside that of all others."""
    if not verdict.suspects or not bandwidth or span[1] <= span[0]:
        return
    edges = np.linspace(span[0], span[1], STRETCHES_SHOWN + 1).astype(np.int64)
    is_own = np.isin(list(bandwidth), verdict.suspects[0].ranks)
    for direction, column in _COLUMNS.items():
        table = _peaks(bandwidth, column, edges)
        for at in np.flatnonzero(np.isfinite(table).any(axis=0)).tolist():
            own, others = _peak(table[is_own, at]), _spread(table[~is_own, at])
            yield RateSample(direction, int(edges[at + 1]), own, *others)


def _peaks(bandwidth: Mapping[int, Batch], column: str, edges: Ints) -> Floats:
    """Return the highest rate of each rank in each stretch; NaN without samples."""
    table = np.full((len(bandwidth), len(edges) - 1), np.nan)
    for row, batch in enumerate(bandwidth.values()):
        place = np.searchsorted(edges, batch.columns["time_ns"], side="left") - 1
        is_inside = (place >= 0) & (place < table.shape[1]) & (batch.columns["path"] == _NIC)
        np.fmax.at(table[row], place[is_inside], batch.columns[column][is_inside])
    return table


def _spread(rates: Floats) -> tuple[float, float, float]:
    known = rates[np.isfinite(rates)]
    if not len(known):
        return (float("nan"),) * 3
    return float(known.min()), float(np.median(known)), float(known.max())


def _earlier(judgements: Judgements, verdict: Verdict) -> Iterator[Earlier]:
    """Yield the other verdicts of the recording on the same device that began before, the newest first."""
    newest = {one.verdict_id: one for one in judgements.verdicts}
    for one in sorted(newest.values(), key=lambda other: -other.iterations[0]):
        if (
            one.verdict_id != verdict.verdict_id
            and one.iterations[0] <= verdict.iterations[0]
            and one.suspects
            and verdict.suspects
            and is_same_device(one.suspects[0], verdict.suspects[0])
        ):
            yield Earlier(one.job, one.verdict_id, one.kind, one.iterations, one.lost_s, one.world_size, one.time_ns)
