"""Behaviour patterns: how a rank's NIC was used while operators of one class ran, as three numbers.

A pattern is the triple (β, μ, σ) of one class of operators in one iteration of one rank: the share of the iteration
in which the class ran, and mean and standard deviation of the NIC's rate meanwhile (EROICA, NSDI 2026, behaviour
patterns and algorithm 1). No number holds a time, so patterns of ranks whose clocks differ can be compared.

A sample is the mean rate over an interval, and counts by how much of it an operator overlaps. An operator that waits
before it transfers would have its idling averaged in: so each execution is first cut down to where the bytes moved.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from irregulars.detectors.arrays.runs import begins_run, places_in_runs, run_numbers, run_starts
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.nics.thresholds import NICS
from irregulars.dtypes import Flags, Floats, Ints, Numbers


class Executions(NamedTuple):
    """When operators ran, ns, and the group that each belongs to; times of one group must be of one clock."""

    group: Ints
    begin_ns: Numbers
    end_ns: Numbers


class Intervals(NamedTuple):
    """Samples of a counter, in order of time: the mean ``rate`` from ``begin_ns`` to ``end_ns``."""

    begin_ns: Ints
    end_ns: Ints
    rate: Floats


class Statistics(NamedTuple):
    """Mean and standard deviation of the rate in each group, and the number of samples that they rest on.

    With fewer than `NicThresholds.min_samples` they are NaN, and the number is 0.
    """

    mean: Floats
    deviation: Floats
    samples: Floats


def is_one_counter(begin_ns: Ints, end_ns: Ints) -> bool:
    """Return whether intervals in order of time can be those of one counter.

    Those of several NICs overlap. Then nobody knows which NIC the operators used, and no pattern is made.
    """
    return bool(np.all(begin_ns[1:] >= end_ns[:-1]))


def merge_executions(executions: Executions) -> Executions:
    """Join executions of a group that overlap or touch, so that no time counts twice; sorted by group and begin."""
    group, begin_ns, end_ns = executions
    order = np.lexsort((begin_ns, group))
    group, begin_ns, end_ns = group[order], begin_ns[order], end_ns[order]
    if not len(group):
        return Executions(group, begin_ns, end_ns)
    # The running maximum of the ends, anew in each group; rows are sorted by group. The times of each group are
    # lifted above those of the group before, so that one running maximum does for all.
    low = int(end_ns.min())
    lift = (int(end_ns.max()) - low + 1) * run_numbers(group)
    latest_ns = np.maximum.accumulate(end_ns - low + lift) - lift + low
    is_new = begins_run(group)
    is_new[1:] |= begin_ns[1:] > latest_ns[:-1]
    begins = np.flatnonzero(is_new)
    lasts = np.append(begins[1:], len(group)) - 1
    return Executions(group[begins], begin_ns[begins], latest_ns[lasts])


def shares(merged: Executions, length_ns: Floats) -> Floats:
    """Return β of each group: the share of its iteration that its executions cover.

    `merged`: of `merge_executions`. `length_ns`: of each group's iteration.
    """
    covered_ns = np.bincount(merged.group, merged.end_ns - merged.begin_ns, minlength=len(length_ns))
    # `where` drops the quotients by lengths that are 0 or not known, but all are computed.
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(length_ns > 0, covered_ns / length_ns, np.nan)


def statistics(merged: Executions, samples: Intervals, groups: int) -> Statistics:
    """Return μ and σ of each group, of the samples that the busy parts of its executions overlap.

    A sample counts by how long an execution overlaps it.

    `merged`: of `merge_executions`, on the same clock as the samples. `samples`: ascending and not overlapping.
    `groups`: how many there are; those without executions or samples get NaN.
    """
    first = np.searchsorted(samples.end_ns, merged.begin_ns, side="right")
    counts = np.maximum(np.searchsorted(samples.begin_ns, merged.end_ns, side="left") - first, 0)
    execution = np.repeat(np.arange(len(counts)), counts)
    sample = first[execution] + places_in_runs(counts)
    begin_ns, end_ns = samples.begin_ns[sample], samples.end_ns[sample]
    own_ns = np.minimum(merged.end_ns[execution], end_ns) - np.maximum(merged.begin_ns[execution], begin_ns)
    known = _Overlaps(execution, merged.group[execution], samples.rate[sample], own_ns, own_ns / (end_ns - begin_ns))
    is_enough = np.bincount(known.group, known.share, minlength=groups) >= NICS.min_samples
    # A group that has too few samples now has too few after the cutting as well, which costs more.
    known = known.only(is_enough[known.group] & np.isfinite(known.rate))
    known = known.only(busy_part(known.execution, known.rate, known.own_ns * known.rate))
    number = np.bincount(known.group, known.share, minlength=groups)
    weight = np.bincount(known.group, known.own_ns, minlength=groups)
    # Groups without a sample divide 0 by 0, which is NaN as they need it.
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(known.group, known.own_ns * known.rate, minlength=groups) / weight
        apart = known.rate - mean[known.group]
        variance = np.bincount(known.group, known.own_ns * apart**2, minlength=groups) / weight
    is_known = number >= NICS.min_samples
    mean, deviation = (np.where(is_known, column, np.nan) for column in (mean, np.sqrt(variance)))
    return Statistics(mean, deviation, np.where(is_known, number, 0.0))


def busy_part(execution: Ints, rate: Floats, moved: Floats) -> Flags:
    """Mark the samples in the part of their execution where the bytes moved (EROICA, algorithm 1).

    For one execution the algorithm is:

    1. a sample idles if its rate is at most a hundredth of the execution's highest rate;
    2. cut the execution at every run of more than g idle samples, and take the piece that moved most;
    3. find the least g with which this piece holds 80 % of the execution's bytes;
    4. take the idle samples off both ends of the piece.

    All executions are cut at once, and g is found by bisection. Where nothing moved at all, everything is kept: that
    is how the operator spent its time.

    `execution`: to which execution each sample belongs, ascending; within one, samples are in order of time. `rate`:
    of each sample; NaN, where it is not known, counts as 0. `moved`: the amount that moved in it, in any unit.

    With g = 0 the largest piece is 8 8, which holds 16 of 26. With g = 1 it is 8 8 0 8, which holds 24, and that is
    enough:

    >>> rate = np.array([8.0, 8.0, 0.0, 8.0, 0.0, 0.0, 0.0, 2.0])
    >>> busy_part(np.zeros(8, dtype=np.int64), rate, moved=rate).nonzero()
    (array([0, 1, 2, 3]),)
    """
    if not len(execution):
        return np.zeros(0, dtype=bool)
    owner, firsts = run_numbers(execution), run_starts(execution)
    moved, rate = np.nan_to_num(moved), np.nan_to_num(rate)
    is_idle = rate <= JOB.negligible * np.maximum.reduceat(rate, firsts)[owner]
    # Most executions idle nowhere, and have nothing to cut.
    is_to_cut = (np.logical_or.reduceat(is_idle, firsts) & (np.add.reduceat(moved, firsts) > 0))[owner]
    is_kept = np.ones(len(owner), dtype=bool)
    if is_to_cut.any():
        samples = _idling_samples(owner[is_to_cut], is_idle[is_to_cut], moved[is_to_cut])
        pieces = _cut(samples, _least_tolerated(samples))
        # The largest piece of each execution, the first of several that moved as much: the first is written last.
        candidates = np.flatnonzero(pieces.held == pieces.most[samples.owner])[::-1]
        largest = np.empty(len(pieces.most), dtype=np.int64)
        largest[samples.owner[candidates]] = pieces.number[candidates]
        is_in_piece = np.asarray(pieces.number == largest[samples.owner])
        # Of it the samples from the first to the last busy one (step 4).
        busy = np.flatnonzero(is_in_piece & (samples.idle_run == 0))
        first, last = np.full(len(samples.firsts), len(is_in_piece)), np.full(len(samples.firsts), -1)
        first[samples.owner[busy[::-1]]] = busy[::-1]
        last[samples.owner[busy]] = busy
        at = np.arange(len(is_in_piece))
        is_kept[is_to_cut] = is_in_piece & (at >= first[samples.owner]) & (at <= last[samples.owner])
    return is_kept


class _Overlaps(NamedTuple):
    """Pairs of an execution and a sample that overlap, in order of execution and time."""

    execution: Ints
    group: Ints
    rate: Floats
    own_ns: Ints  # how long they overlap
    share: Floats  # which share of the sample that is

    def only(self, is_kept: Flags) -> _Overlaps:
        kept = np.flatnonzero(is_kept)
        return self if len(kept) == len(is_kept) else _Overlaps._make(column[kept] for column in self)


class _Samples(NamedTuple):
    """Samples of executions, in order of execution and time."""

    owner: Ints  # number of the execution, from 0 without holes
    firsts: Ints  # where the samples of each execution begin
    idle_run: Ints  # of an idle sample, the length of the run of idle samples that it is in; else 0
    moved: Floats


def _idling_samples(execution: Ints, is_idle: Flags, moved: Floats) -> _Samples:
    owner = run_numbers(execution)
    run = run_numbers(owner, is_idle)
    return _Samples(owner, run_starts(owner), np.where(is_idle, np.bincount(run)[run], 0), moved)


def _least_tolerated(samples: _Samples) -> Ints:
    """Find for each execution the least g of step 3, by bisection."""
    # With `enough` the largest piece always holds enough, with `too_few` never: -1 cuts out busy samples too.
    enough = np.maximum.reduceat(samples.idle_run, samples.firsts)  # with this g nothing is cut
    too_few = np.full(len(enough), -1)
    total = np.add.reduceat(samples.moved, samples.firsts)
    while np.any(enough - too_few > 1):
        middle = (too_few + enough) // 2
        holds_enough = _cut(samples, middle).most >= JOB.nearly_all * total
        enough, too_few = np.where(holds_enough, middle, enough), np.where(holds_enough, too_few, middle)
    return enough


class _Pieces(NamedTuple):
    """Executions that were cut at their long runs of idle samples; one value for each sample but in `most`."""

    number: Ints
    held: Floats  # amount that the sample's piece moved; 0 for a sample that was cut out
    most: Floats  # of each execution, the amount that its largest piece moved


def _cut(samples: _Samples, tolerated: Ints) -> _Pieces:
    """Cut each execution at runs of more idle samples than are `tolerated` (step 2)."""
    is_cut_out = samples.idle_run > tolerated[samples.owner]
    number = run_numbers(samples.owner, is_cut_out)
    moved = np.bincount(number, np.where(is_cut_out, 0.0, samples.moved))
    held = np.asarray(moved, dtype=np.float64)[number]
    return _Pieces(number, held, np.maximum.reduceat(held, samples.firsts))
