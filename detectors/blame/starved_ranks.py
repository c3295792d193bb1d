"""Ranks whose own work is slow at the same time as the transfers that they take part in: they lack processor time.

A processor that is short of time (a quota, a neighbour) slows what its ranks compute and, in gloo and in NCCL's proxy
threads, what they send. All who take part wait for that inside of the operator, so most of the cost looks like a slow
transfer. A slow NIC, link or switch leaves work alone: then nobody's gaps grow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from irregulars.detectors.arrays.group_search import find_sorted
from irregulars.detectors.arrays.grouped_medians import MEDIAN_ERROR, robust_sigma
from irregulars.detectors.blame.thresholds import BLAME
from irregulars.dtypes import Floats


def starved_ranks(work_excess_ns: Sequence[Mapping[int, float]], least_ns: float) -> set[int]:
    """Find the ranks whose own work takes longer than usual while that of most others does not.

    No fault makes work quicker: by as much as the quickest rank seems to be the comparison itself is wrong, in
    either direction, since what is usual comes from a few iterations and a gap may hold waiting that nobody logged.
    Ranks are held against the median of all, so that no more than half of them can be late: else the job has changed.

    Parameters
    ----------
    work_excess_ns
        Of some iterations: by how much each rank's work took longer than usual, on the critical path or not.
    least_ns
        Below, a rank is not late: polling for a slow transfer takes time as well.

    Examples
    --------
    >>> starved_ranks([{0: 1e6, 1: 9e6, 2: 0.0}, {0: 0.0, 1: 20e6, 2: 1e6}] * 3, least_ns=1e6)
    {1}
    """
    ranks = sorted({rank for one in work_excess_ns for rank in one})
    if len(work_excess_ns) < BLAME.starved_iterations or len(ranks) < 2:
        return set()
    table = _table(work_excess_ns, ranks)
    if (np.isfinite(table).sum(axis=1) < BLAME.starved_iterations).any():
        return set()  # a rank that is hardly known may be the one
    typical_ns = np.nanmedian(table, axis=1)
    over_ns = typical_ns - np.median(typical_ns)
    deviations_ns = (table - typical_ns[:, None])[np.isfinite(table)]
    error_ns = MEDIAN_ERROR * robust_sigma(deviations_ns) / math.sqrt(table.shape[1])
    wrong_by_ns = max(BLAME.starved_sigmas * error_ns, BLAME.starved_times_quickest * -float(over_ns.min()))
    late = over_ns > max(wrong_by_ns, least_ns, BLAME.late_share * float(over_ns.max()))
    return {ranks[at] for at in np.flatnonzero(late)}


def are_in_step(work_excess_ns: Sequence[Mapping[int, float]], ranks: Collection[int]) -> bool:
    """Whether these ranks are late by the same time in each iteration: they wait for one thing, unlogged.

    Who waits for the same slow operator, on a stream or in a later call, waits equally long, up to the noise that all
    ranks have. Processors that are held back stall each at its own moments.

    Examples
    --------
    >>> noise = [{2: 0.0, 3: 2.0, 4: -1.0}, {2: 1.0, 3: -1.0, 4: 0.0}]
    >>> are_in_step([noise[0] | {0: 10.0, 1: 9.0}, noise[1] | {0: 20.0, 1: 21.0}], {0, 1})
    True
    >>> are_in_step([noise[0] | {0: 30.0, 1: 9.0}, noise[1] | {0: 10.0, 1: 21.0}], {0, 1})
    False
    """
    if len(ranks) < 2:
        return False
    late_ns = _table(work_excess_ns, sorted(ranks))
    late_ns = late_ns[:, np.isfinite(late_ns).sum(axis=0) > 1]
    if not late_ns.size:
        return True  # never seen together: in doubt, nobody
    others = sorted({rank for one in work_excess_ns for rank in one}.difference(ranks))
    noise_ns = _table(work_excess_ns, others)
    noise_ns = noise_ns - np.nanmedian(noise_ns, axis=1, keepdims=True)
    apart_ns = np.nanmean(np.nanstd(late_ns, axis=0, ddof=1))
    return bool(apart_ns < BLAME.in_step_sigmas * robust_sigma(noise_ns[np.isfinite(noise_ns)]))


def _table(work_excess_ns: Sequence[Mapping[int, float]], ranks: Sequence[int]) -> Floats:
    """Return a row for each of these ranks (ascending), and a column for each iteration; NaN where not known."""
    table = np.full((len(ranks), len(work_excess_ns)), math.nan)
    for column, one in zip(table.T, work_excess_ns, strict=True):
        at, is_asked = find_sorted(np.array(ranks, dtype=np.int64), np.fromiter(one, np.int64, len(one)))
        column[at[is_asked]] = np.fromiter(one.values(), np.float64, len(one))[is_asked]
    return table
