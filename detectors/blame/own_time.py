"""Which pause of a rank that works longer covers its excess."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import lower_median
from irregulars.detectors.blame.observation import ExcessPause, Observation
from irregulars.detectors.job.lanes import EVERYBODY
from irregulars.detectors.job.thresholds import JOB
from irregulars.dtypes import Floats, Ints
from irregulars.messages.kinds import CAUSES
from irregulars.messages.records import PAUSES

_WAITED: Final = PAUSES.index("cpu_wait")
_RAN: Final = PAUSES.index("cpu_time")
# Of what the program itself does, one thing runs within another; waits for the host may coincide with any of it.
_OF_PROGRAM: Final = tuple(at for at, name in enumerate(PAUSES) if CAUSES.get(name, "host") != "host")
_OF_HOST: Final = [at for at, name in enumerate(PAUSES) if CAUSES.get(name) == "host"]
_STALLS: Final = [PAUSES.index("memory_pressure"), PAUSES.index("io_wait")]
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
    table[is_known, _WAITED] /= np.maximum(table[is_known, _RAN] / (JOB.twice * usual_run_ns[is_known]), 1.0)
    table -= before_ns
    peers_ns = np.array([lower_median(column) for column in table.T])
    # Peers that paused less than usual make no excess of a pause as usual.
    excess_ns = table - np.maximum(peers_ns, 0.0)
    excess_ns[:, _RAN] = 0.0  # no pause
    row, cause = np.nonzero(excess_ns > 0)
    longest = np.argsort(-excess_ns[row, cause], kind="stable")[:_MOST_KEPT]
    found = (now.ranks[row], cause, excess_ns[row, cause])
    return tuple(map(ExcessPause, *(column[longest].tolist() for column in found)))


def time_apart(group: Ints, begin_ns: Ints, end_ns: Ints) -> Ints:
    """Return of each span the time that no span of its group which began before it covers, ns.

    One that ends before it begins lasts for no time.

    >>> begin_ns, end_ns = np.array([0, 10, 40, 50]), np.array([60, 20, 70, 90])
    >>> time_apart(np.array([0, 0, 0, 1]), begin_ns, end_ns)
    array([60,  0, 10, 40])
    """
    order = np.lexsort((begin_ns, group))
    # A running maximum that begins anew in each group: ends count by their places among all ends.
    ends_ns = np.sort(end_ns)
    latest = np.maximum.accumulate(group[order] * len(order) + np.searchsorted(ends_ns, end_ns[order]))
    from_ns = begin_ns[order]
    is_same = group[order][1:] == group[order][:-1]
    covered_ns = np.where(is_same, ends_ns[latest[:-1] % max(len(order), 1)], from_ns[1:])
    from_ns[1:] = np.maximum(from_ns[1:], covered_ns)
    apart_ns = np.empty_like(from_ns)
    apart_ns[order] = np.maximum(end_ns[order] - from_ns, 0)
    return apart_ns


class CoveredBy(NamedTuple):
    """The cause that covers most of some ranks' excess work, and which share of it.

    Where none alone covers enough: all their waits for the host together. Of these, those for memory and a disk alone
    may overlap: a page that memory lacks is read from a disk.
    """

    cause: str | None  # of `PAUSES`
    share: float  # 0 to 1

    @property
    def layer(self) -> str:
        """Where it lies, one of `LAYERS`."""
        return "host" if self.cause is None else CAUSES[self.cause]


def covering_cause(ranks: Collection[int] | None, observations: Sequence[Observation]) -> CoveredBy | None:
    """Return what covers most of the excess work of an accused device's ranks; None: nothing covers enough.

    In each iteration a pause counts up to the excess of its rank's gaps, against the usual ones and those of its
    peers. Waiting that no pause records is covered by none.

    `ranks`: of the accused device; None, where ranks are late in turn: the one that each iteration lost most to.
    """
    found = _covering(ranks, observations)
    if found is None and len(observations) > JOB.repeated:
        # How long a rank waits for a disk or memory is known from the second reading on in which it does.
        first, *rest = observations
        told = {PAUSES[one.cause] for one in first.pauses or () if one.rank in (ranks or ())}
        later = _covering(ranks, rest)
        if later is not None and later.cause in {PAUSES[at] for at in _STALLS} - told:
            return later
    return found


def _covering(ranks: Collection[int] | None, observations: Sequence[Observation]) -> CoveredBy | None:
    gaps_ns, host_ns, covered_ns = 0.0, 0.0, np.zeros(len(PAUSES))
    for one in observations:
        if one.attribution is None or one.pauses is None:
            continue
        late_ns, path_ns = one.attribution.work_excess_ns, one.attribution.path_excess_ns
        typical_ns = max(lower_median(one.attribution.work_columns[1]), 0.0) if late_ns else 0.0
        works = sorted(lane for lane in path_ns if lane.kind == "work" and lane != EVERYBODY)
        latest = max(works, key=lambda lane: path_ns[lane], default=None)
        own = ranks if ranks is not None else () if latest is None else (latest.first,)
        own_ns = {rank: max(late_ns.get(rank, 0.0) - typical_ns, 0.0) for rank in own}
        gaps_ns += sum(own_ns.values())
        # Without a past, a pause may be the usual work of some ranks, as to load data: by as much as it is longer
        # than they are late it makes nobody late.
        harmless: dict[int, list[float]] = {}
        for pause in one.pauses if one.attribution.is_by_peers else ():
            if pause.rank not in own_ns:
                over_ns = pause.excess_ns - max(late_ns.get(pause.rank, 0.0) - typical_ns, 0.0)
                harmless.setdefault(pause.cause, []).append(max(over_ns, 0.0))
        excess_ns: dict[int, Floats] = {}  # of those who paused: a stage may have thousands of ranks
        for pause in one.pauses:
            if pause.rank in own_ns:
                over_ns = pause.excess_ns - median(harmless.get(pause.cause, (0.0,)))
                excess_ns.setdefault(pause.rank, np.zeros(len(PAUSES)))[pause.cause] += max(over_ns, 0.0)
        for rank, by_cause_ns in excess_ns.items():
            covered_ns += np.minimum(by_cause_ns, own_ns[rank])
            host_ns += min(by_cause_ns[_OF_HOST].sum() - by_cause_ns[_STALLS].min(), own_ns[rank])
    best = int(np.argmax(covered_ns))
    least_ns = JOB.nearly_all * gaps_ns
    if gaps_ns <= 0 or max(covered_ns[best], host_ns) < least_ns:
        return None
    if covered_ns[best] < least_ns:
        return CoveredBy(None, float(host_ns / gaps_ns))
    if best in _OF_PROGRAM:
        # Of two that each cover enough, the shorter one ran within the other: a collection while data were loaded.
        enough = [at for at in _OF_PROGRAM if covered_ns[at] >= least_ns]
        best = min(enough, key=lambda at: covered_ns[at])
    return CoveredBy(PAUSES[best], float(covered_ns[best] / gaps_ns))
