"""Ranks whose own work is slow at the same time as the transfers that they take part in: they lack processor time.

A processor that is short of time (a quota, a neighbour) slows what its ranks compute and, in gloo and in NCCL's proxy
threads, what they send. All who take part wait for that inside of the operator, so most of the cost looks like a slow
transfer. A slow NIC, link or switch leaves work alone: then nobody's gaps grow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from irregulars.detectors.arrays.group_search import find_sorted
from irregulars.detectors.arrays.grouped_medians import MEDIAN_ERROR, nan_medians, robust_sigma
from irregulars.detectors.blame.thresholds import BLAME
from irregulars.detectors.path.critical_path import Attribution
from irregulars.dtypes import Floats, Ints


def starved_ranks(attributions: Sequence[Attribution], least_ns: float) -> set[int]:
    """Find the ranks whose own work takes longer than usual while that of most others does not.

    No fault makes work quicker: by as much as the quickest rank seems to be the comparison itself is wrong, in
    either direction, since what is usual comes from a few iterations and a gap may hold waiting that nobody logged.
    Ranks are held against the median of all, so that no more than half of them can be late: else the job has changed.

    Parameters
    ----------
    attributions
        Of some iterations. By how much each rank's work took longer than usual counts, on the critical path or not.
    least_ns
        Below, a rank is not late: polling for a slow transfer takes time as well.

    Examples
    --------
    >>> works = [{0: 1e6, 1: 9e6, 2: 0.0}, {0: 0.0, 1: 20e6, 2: 1e6}] * 3
    >>> starved_ranks([Attribution(0, {}, {}, {}, work) for work in works], least_ns=1e6)
    {1}
    """
    if len(attributions) < BLAME.starved_iterations:
        return set()
    ranks = _known_ranks(attributions)
    if len(ranks) < 2:
        return set()
    table = _table(attributions, ranks)
    is_known = np.isfinite(table)
    if (is_known.sum(axis=1) < BLAME.starved_iterations).any():
        return set()  # a rank that is hardly known may be the one
    typical_ns = nan_medians(table)
    over_ns = typical_ns - np.median(typical_ns)
    deviations_ns = (table - typical_ns[:, None])[is_known]
    error_ns = MEDIAN_ERROR * robust_sigma(deviations_ns) / math.sqrt(table.shape[1])
    wrong_by_ns = max(BLAME.starved_sigmas * error_ns, BLAME.starved_times_quickest * -float(over_ns.min()))
    late = over_ns > max(wrong_by_ns, least_ns, BLAME.late_share * float(over_ns.max()))
    return set(ranks[late].tolist())


def are_in_step(attributions: Sequence[Attribution], ranks: Collection[int]) -> bool:
    """Whether these ranks are late by the same time in each iteration: they wait for one thing, unlogged.

    Who waits for the same slow operator, on a stream or in a later call, waits equally long, up to the noise that all
    ranks have. Processors that are held back stall each at its own moments.

    Examples
    --------
    >>> noise = [{2: 0.0, 3: 2.0, 4: -1.0}, {2: 1.0, 3: -1.0, 4: 0.0}]
    >>> alike = [noise[0] | {0: 10.0, 1: 9.0}, noise[1] | {0: 20.0, 1: 21.0}]
    >>> are_in_step([Attribution(0, {}, {}, {}, work) for work in alike], {0, 1})
    True
    >>> apart = [noise[0] | {0: 30.0, 1: 9.0}, noise[1] | {0: 10.0, 1: 21.0}]
    >>> are_in_step([Attribution(0, {}, {}, {}, work) for work in apart], {0, 1})
    False
    """
    if len(ranks) < 2:
        return False
    late_ns = _table(attributions, np.array(sorted(ranks), dtype=np.int64))
    late_ns = late_ns[:, np.isfinite(late_ns).sum(axis=0) > 1]
    if not late_ns.size:
        return True  # never seen together: in doubt, nobody
    others = np.setdiff1d(_known_ranks(attributions), sorted(ranks))
    noise_ns = _table(attributions, others)
    noise_ns = noise_ns - np.nanmedian(noise_ns, axis=1, keepdims=True)
    apart_ns = np.nanmean(np.nanstd(late_ns, axis=0, ddof=1))
    return bool(apart_ns < BLAME.in_step_sigmas * robust_sigma(noise_ns[np.isfinite(noise_ns)]))


def _known_ranks(attributions: Sequence[Attribution]) -> Ints:
    """Return the ranks of which work is known in any iteration, ascending."""
    parts = [one.work_columns[0] for one in attributions]
    if all(np.array_equal(parts[0], part) for part in parts):  # mostly all ranks of the job in each
        return np.unique(parts[0])
    return np.unique(np.concatenate(parts))


def _table(attributions: Sequence[Attribution], ranks: Ints) -> Floats:
    """Return a row for each of these ranks (ascending), and a column for each iteration; NaN where not known."""
    table = np.full((len(attributions), len(ranks)), math.nan)
    for row, one in zip(table, attributions, strict=True):
        own, excess_ns = one.work_columns
        if np.array_equal(own, ranks):
            row[:] = excess_ns
        else:
            at, is_asked = find_sorted(ranks, own)
            row[at[is_asked]] = excess_ns[is_asked]
    return np.ascontiguousarray(table.T)
