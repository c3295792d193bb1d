"""Which pause of a rank that works longer covers its excess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import lower_median
from irregulars.detectors.blame.observation import ExcessPause, Observation
from irregulars.detectors.blame.thresholds import BLAME
from irregulars.dtypes import Floats, Ints
from irregulars.messages.records import PAUSES

_WAITED: Final = PAUSES.index("cpu_wait")
_RAN: Final = PAUSES.index("cpu_time")
_MOST_KEPT: Final = 64  # of one iteration: a pause that makes it irregular is among its longest


class PauseTimes(NamedTuple):
    """Pauses of some ranks in one iteration, as far as they lie before the last operator of their rank in it."""

    ranks: Ints  # that delivered the iteration, ascending
    rank: Ints  # of each pause; of `ranks`
    cause: Ints  # index into `PAUSES`
    elapsed_ns: Floats

    def table(self, ranks: Ints) -> Floats:
        """Return the time of each of these ranks (a row) by cause (a column), ns; NaN: the rank delivered nothing."""
        sums = np.zeros((len(ranks), len(PAUSES)))
        sums[~np.isin(ranks, self.ranks)] = np.nan
        at = np.searchsorted(ranks, self.rank)
        is_own = np.isin(self.rank, ranks)
        np.add.at(sums, (at[is_own], self.cause[is_own]), self.elapsed_ns[is_own])
        return sums


def excess_pauses(now: PauseTimes, usual: Sequence[PauseTimes]) -> tuple[ExcessPause, ...]:
    """Return by how much ranks paused longer than they usually do, and than their peers do, the longest first.

    `usual`: regular iterations; without any, ranks are held against their peers in this one alone.

    Rank 1 collects for 90 ms; both wait 2 ms for data, as always:

    >>> ranks, loader = np.array([0, 1]), np.array([1, 1])
    >>> before = PauseTimes(ranks, ranks, loader, np.array([2e6, 2e6]))
    >>> now = PauseTimes(ranks, np.array([0, 1, 1]), np.array([1, 1, 0]), np.array([2e6, 2e6, 90e6]))
    >>> excess_pauses(now, [before] * 6)
    (ExcessPause(rank=1, cause=0, excess_ns=90000000.0),)
    """
    table = now.table(now.ranks)
    before_ns = np.zeros_like(table)  # 0 of ranks that are not known
    if usual:
        known = np.array([one.table(now.ranks) for one in usual])
        # `nanmedian` warns where all is NaN.
        known[:, np.isnan(known).all(axis=0)] = 0.0
        before_ns = np.nanmedian(known, axis=0)
    # Who works more waits more where processors are few: of its waiting counts what its usual work would wait.
    usual_run_ns = np.where(before_ns[:, _RAN] > 0, before_ns[:, _RAN], lower_median(table[:, _RAN]))
    is_known = usual_run_ns > 0
    table[is_known, _WAITED] /= np.maximum(table[is_known, _RAN] / (BLAME.same_work * usual_run_ns[is_known]), 1.0)
    table -= before_ns
    peers_ns = np.array([lower_median(column) for column in table.T])
    # Peers that paused less than usual make no excess of a pause as usual.
    excess_ns = table - np.maximum(peers_ns, 0.0)
    excess_ns[:, _RAN] = 0.0  # no pause
    row, cause = np.nonzero(excess_ns > 0)
    longest = np.argsort(-excess_ns[row, cause], kind="stable")[:_MOST_KEPT]
    found = (now.ranks[row], cause, excess_ns[row, cause])
    return tuple(map(ExcessPause, *(column[longest].tolist() for column in found)))


class CoveredBy(NamedTuple):
    """The cause that covers most of some ranks' excess work, and which share of it."""

    cause: str  # of `PAUSES`
    share: float  # 0 to 1


def covering_cause(ranks: Sequence[int], observations: Sequence[Observation]) -> CoveredBy | None:
    """Return the cause that covers most of the excess work of an accused device's ranks; None: none covers enough.

    In each iteration a pause counts up to the excess of its rank's gaps, against the usual ones and those of its
    peers. Waiting that no pause records is covered by none.
    """
    gaps_ns, covered_ns = 0.0, np.zeros(len(PAUSES))
    for one in observations:
        if one.attribution is None or one.pauses is None:
            continue
        late_ns = one.attribution.work_excess_ns
        typical_ns = max(lower_median(one.attribution.work_columns[1]), 0.0) if late_ns else 0.0
        own_ns = {rank: max(late_ns.get(rank, 0.0) - typical_ns, 0.0) for rank in ranks}
        gaps_ns += sum(own_ns.values())
        for pause in one.pauses:
            if pause.rank in own_ns:
                covered_ns[pause.cause] += min(pause.excess_ns, own_ns[pause.rank])
    best = int(np.argmax(covered_ns))
    if gaps_ns <= 0 or covered_ns[best] < BLAME.min_covered * gaps_ns:
        return None
    return CoveredBy(PAUSES[best], float(covered_ns[best] / gaps_ns))
