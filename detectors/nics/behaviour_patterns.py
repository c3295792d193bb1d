"""Behaviour patterns: how a rank's NIC was used while operators of one class ran, as three numbers.

A pattern is the triple (β, μ, σ) of one class of operators in one iteration of one rank: the share of the iteration
in which the class ran, and mean and standard deviation of the NIC's rate meanwhile (EROICA, NSDI 2026, behaviour
patterns and algorithm 1). No number holds a time, so patterns of ranks whose clocks differ can be compared.

A sample is the mean rate over an interval, and counts by how much of it an operator overlaps. An operator that waits
before it transfers would have its idling averaged in: so each execution is first cut down to where the bytes moved.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

Array = np.ndarray

MIN_SAMPLES: Final = 5.0
"""A pattern that rests on fewer samples is NaN; a sample that is overlapped by a half counts as half a one."""

KEPT_SHARE: Final = 0.8
"""The part of an execution that is kept holds so much of what it moved."""

_IDLE: Final = 0.01  # of an execution's highest rate: below, nothing but the host's own chatter moved


class Executions(NamedTuple):
    """Operators that ran: the group that each belongs to, and when, ns; within a group times must compare."""

    group: Array
    begin_ns: Array
    end_ns: Array


class Intervals(NamedTuple):
    """Samples of a counter: the mean ``rate`` from ``begin_ns`` to ``end_ns``; they follow each other in time."""

    begin_ns: Array
    end_ns: Array
    rate: Array


class Statistics(NamedTuple):
    """Mean and standard deviation of the rate in each group, and on how many samples they rest.

    Under five they are NaN, and count as resting on none.
    """

    mean: Array
    deviation: Array
    samples: Array


def is_one_counter(begin_ns: Array, end_ns: Array) -> bool:
    """Whether intervals in order of time can be those of one counter: of several NICs they overlap.

    Then nobody knows which of them the operators used, and no pattern is made.
    """
    return bool(np.all(begin_ns[1:] >= end_ns[:-1]))


def merge_executions(executions: Executions) -> Executions:
    """Join executions of a group that overlap or touch, so that no time counts twice; sorted by group and begin."""
    group, begin_ns, end_ns = executions
    order = np.lexsort((begin_ns, group))
    group, begin_ns, end_ns = group[order], begin_ns[order], end_ns[order]
    if not len(group):
        return Executions(group, begin_ns, end_ns)
    latest = _latest_in_group(group, end_ns)
    is_new = np.ones(len(group), dtype=bool)
    is_new[1:] = (group[1:] != group[:-1]) | (begin_ns[1:] > latest[:-1])
    begins = np.flatnonzero(is_new)
    lasts = np.append(begins[1:], len(group)) - 1
    return Executions(group[begins], begin_ns[begins], latest[lasts])


def shares(merged: Executions, length_ns: Array) -> Array:
    """β of each group: how much of its iteration its executions cover.

    Parameters
    ----------
    merged
        What `merge_executions` gave.
    length_ns
        Of each group's iteration.
    """
    covered_ns = np.bincount(merged.group, merged.end_ns - merged.begin_ns, minlength=len(length_ns))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(length_ns > 0, covered_ns / length_ns, np.nan)


def statistics(merged: Executions, samples: Intervals, groups: int) -> Statistics:
    """μ and σ of each group: of the samples that its executions overlap, weighed by how much, idle ends cut off.

    Parameters
    ----------
    merged
        What `merge_executions` gave, on the same clock as the samples.
    samples
        Ascending and not overlapping.
    groups
        How many there are; those without executions or samples get NaN.
    """
    execution, sample = _overlapping(merged, samples)
    group, rate = merged.group[execution], samples.rate[sample]
    own_ns = np.minimum(merged.end_ns[execution], samples.end_ns[sample]) - np.maximum(
        merged.begin_ns[execution], samples.begin_ns[sample]
    )
    share = own_ns / (samples.end_ns - samples.begin_ns)[sample]
    enough = np.bincount(group, share, minlength=groups) >= MIN_SAMPLES
    is_kept = enough[group] & np.isfinite(rate)  # cutting makes no group have more of them
    execution, group, share, own_ns, rate = (c[is_kept] for c in (execution, group, share, own_ns, rate))
    is_kept = busy_part(execution, rate, own_ns * rate)
    group, share, own_ns, rate = (column[is_kept] for column in (group, share, own_ns, rate))
    worth = np.bincount(group, share, minlength=groups)
    weight = np.bincount(group, own_ns, minlength=groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.bincount(group, own_ns * rate, minlength=groups) / weight
        square = np.bincount(group, own_ns * (rate - mean[group]) ** 2, minlength=groups) / weight
    is_known = worth >= MIN_SAMPLES
    mean, deviation = (np.where(is_known, column, np.nan) for column in (mean, np.sqrt(square)))
    return Statistics(mean, deviation, np.where(is_known, worth, 0.0))


def busy_part(execution: Array, rate: Array, moved: Array) -> Array:
    """Say which samples lie in the part of their execution where the bytes moved (EROICA, algorithm 1).

    The part holds at least `KEPT_SHARE` of what the execution moved, and within it there are at most g samples of
    nothing in a row, with the least g for which there is such a part; g is found by bisection, for all executions at
    once. Where nothing moved at all everything is kept: that is how the operator spent its time.

    Parameters
    ----------
    execution
        To which execution each sample belongs, ascending; within one, samples are in order of time.
    rate
        Of each sample; below a hundredth of the execution's highest one nothing moved. NaN: not known, nothing.
    moved
        What moved in it, in any unit.
    """
    if not len(execution):
        return np.zeros(0, dtype=bool)
    owner, firsts = _numbered(execution)
    moved, rate = np.nan_to_num(moved), np.nan_to_num(rate)
    is_idle = rate <= _IDLE * np.maximum.reduceat(rate, firsts)[owner]
    is_cut = (np.logical_or.reduceat(is_idle, firsts) & (np.add.reduceat(moved, firsts) > 0))[owner]
    is_kept = np.ones(len(owner), dtype=bool)
    if is_cut.any():
        is_kept[is_cut] = _busy_of_idling(_numbered(execution[is_cut])[0], is_idle[is_cut], moved[is_cut])
    return is_kept


def _busy_of_idling(owner: Array, is_idle: Array, moved: Array) -> Array:
    """Do what `busy_part` says, for executions numbered from 0 all of which idle at times and move something."""
    firsts = np.flatnonzero(np.diff(owner, prepend=-1))
    total = np.add.reduceat(moved, firsts)
    idle_run = _run_lengths(is_idle, owner)
    low, high = np.full(len(total), -1), np.maximum.reduceat(idle_run, firsts)  # with `high` one part holds all
    while np.any(high - low > 1):
        middle = (low + high) // 2
        _, held = _largest_part(idle_run > middle[owner], owner, moved, firsts)
        is_enough = held >= KEPT_SHARE * total
        high, low = np.where(is_enough, middle, high), np.where(is_enough, low, middle)
    is_largest, _ = _largest_part(idle_run > high[owner], owner, moved, firsts)
    return is_largest & _is_between_busy(is_idle, is_largest, owner)


def _numbered(execution: Array) -> tuple[Array, Array]:
    """Number executions, which are ascending, from 0 on; and where the samples of each begin."""
    is_first = np.ones(len(execution), dtype=bool)
    is_first[1:] = execution[1:] != execution[:-1]
    return np.cumsum(is_first) - 1, np.flatnonzero(is_first)


def _overlapping(merged: Executions, samples: Intervals) -> tuple[Array, Array]:
    """Pairs of execution and sample that overlap, in order of execution and time."""
    first = np.searchsorted(samples.end_ns, merged.begin_ns, side="right")
    counts = np.maximum(np.searchsorted(samples.begin_ns, merged.end_ns, side="left") - first, 0)
    execution = np.repeat(np.arange(len(counts)), counts)
    return execution, first[execution] + np.arange(len(execution)) - (np.cumsum(counts) - counts)[execution]


def _latest_in_group(group: Array, end_ns: Array) -> Array:
    """Running maximum of the ends, anew in each group, of rows that are sorted by group."""
    low = int(end_ns.min())
    span = int(end_ns.max()) - low + 1
    number = np.cumsum(np.diff(group, prepend=group[0]) != 0)
    return np.maximum.accumulate(end_ns - low + number * span) - number * span + low


def _run_lengths(is_idle: Array, owner: Array) -> Array:
    """For each idle sample how long its run of idle ones is, 0 for the others."""
    is_start = np.ones(len(owner), dtype=bool)
    is_start[1:] = (is_idle[1:] != is_idle[:-1]) | (owner[1:] != owner[:-1])
    run = np.cumsum(is_start) - 1
    return np.where(is_idle, np.bincount(run)[run], 0)


def _largest_part(is_break: Array, owner: Array, moved: Array, firsts: Array) -> tuple[Array, Array]:
    """Cut executions at the breaks: which samples are of the part that moved most, and how much that was."""
    is_start = np.ones(len(owner), dtype=bool)
    is_start[1:] = (is_break[1:] != is_break[:-1]) | (owner[1:] != owner[:-1])
    part = np.cumsum(is_start) - 1
    held = np.bincount(part, np.where(is_break, 0.0, moved))
    most = np.maximum.reduceat(held[part], firsts)
    is_most = (held[part] == most[owner]) & ~is_break
    earliest = np.full(len(firsts), len(owner))
    np.minimum.at(earliest, owner[is_most], part[is_most])
    return is_most & (part == earliest[owner]), most


def _is_between_busy(is_idle: Array, is_part: Array, owner: Array) -> Array:
    """Say which samples stand between the first and the last one of their execution's part that moved something."""
    at = np.arange(len(owner))
    busy = np.flatnonzero(is_part & ~is_idle)
    first, last = np.full(owner[-1] + 1, len(owner)), np.full(owner[-1] + 1, -1)
    np.minimum.at(first, owner[busy], busy)
    np.maximum.at(last, owner[busy], busy)
    return (at >= first[owner]) & (at <= last[owner])
