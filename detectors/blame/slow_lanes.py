"""Which lanes were slow, over all iterations that are looked at.

A lane counts by how surely it differs from its usual time, and not by its cost: a NIC at a ninth of its speed
shows in each of its sends, also where they are a hundredth of the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MEDIAN_ERROR, column_medians
from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.blame.thresholds import BLAME
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.path.critical_path import Attribution
from irregulars.dtypes import Flags, Floats, Ints

_USUAL_ITERATIONS: Final = 6  # at least: `detectors.path.usual_by_past` learns from as many


def observe_lanes(accused: Lane, attributions: Sequence[Attribution]) -> dict[Lane, float]:
    """Return how slow each lane was that is evidence: 0 if it was normal; the accused one has 1.

    Of a slow lane it is the ratio of its excess to the least one that is noticed, cut to a power of two, up to
    `_MOST_TIMES`.

    A lane is held against the excess that it would have if it were slowed as the accused one is. Where it surely
    lacks that, it is normal; where that would be noticed, slow or less slow (`_LESS_SLOW`). Else it is no evidence,
    and is left out unless it is slower by more than waiting behind the accused one's traffic explains: a barrier of
    a few bytes waits behind all other traffic. A lane in which a single transfer of several hung is not slow: the
    others passed as always.

    Both pairs usually take 10 ms, give or take 0.1 ms. From 1 to 5 it takes 30 ms longer, from 1 to 3 nothing:

    >>> took = {Lane("pair", 1, 5): LaneExcess(30e6, 10e6, 1e5, 1e6)}
    >>> took[Lane("pair", 1, 3)] = LaneExcess(0.0, 10e6, 1e5, 1e6)
    >>> list(observe_lanes(Lane("pair", 1, 5), [Attribution(0, {}, {}, took, {})]).values())
    [1.0, 0.0]
    """
    return SeenLanes(attributions).observe(accused)


class SeenLanes:
    """The lanes of some iterations: typical values of each are computed once, whichever of them is accused."""

    def __init__(self, attributions: Sequence[Attribution]) -> None:
        self._attributions = attributions

    def observe(self, accused: Lane, explained: Collection[Lane] = ()) -> dict[Lane, float]:
        """As `observe_lanes`, without the explained lanes, as if they had not been seen."""
        lanes, typical = self._typical
        numbers = {lane: number for number, lane in enumerate(lanes) if lane not in explained}
        if not numbers:
            return {accused: 1.0}
        own = typical.one(numbers[accused]) if accused in numbers else None
        times = _tell(typical, own)
        told = {lane: times[at] for lane, at in numbers.items() if times[at] != _TELLS_NOTHING}
        # The accused lane is the first one, and counts as 1 however slow it is itself.
        return {accused: 1.0} | told | {accused: 1.0}

    def slowest(self, is_asked: Callable[[Lane], bool]) -> tuple[Lane, float] | None:
        """Return which of the lanes asked for typically has most excess, ns, beyond noise; None: none has any."""
        order, typical = self._typical
        found = [(float(typical.excess_ns[at]), order[at]) for at in self._over if is_asked(order[at])]
        return max(found)[::-1] if found else None

    def slow_besides(self, lane: Lane) -> Collection[Lane]:
        """Return the lanes that are typically slow if this one typically is not, within noise; else nothing."""
        lanes, typical = self._typical
        at = lanes.index(lane) if lane in lanes else None
        is_as_always = at is not None and typical.excess_ns[at] <= _noticed_ns(typical)[at]
        return {lanes[one] for one in self._over} if is_as_always else ()

    @cached_property
    def _over(self) -> list[int]:
        """Numbers of the lanes that are typically slow."""
        _, typical = self._typical
        numbers: list[int] = np.flatnonzero(_is_over(typical)).tolist()
        return numbers

    @cached_property
    def _typical(self) -> tuple[list[Lane], _Lanes]:
        """The lanes, in the order in which they appear, and the typical values of each."""
        parts = [one.lane_columns for one in self._attributions]
        if not any(len(part.keys) for part in parts):
            return [], _typical_lanes([])
        # `group_rows` numbers lanes by their keys; here they are numbered by their first rows.
        in_key_order, first = group_rows(list(np.concatenate([part.keys for part in parts]).T))
        order = np.argsort(first)
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        lanes = list(chain.from_iterable(one.lanes for one in self._attributions))
        typical = _medians_of(number[in_key_order], np.concatenate([part.values for part in parts]))
        return [lanes[at] for at in first[order].tolist()], typical


def stands_out(lane: Lane, attributions: Sequence[Attribution]) -> bool:
    """Whether some iterations together show that a lane is slow, beyond its noise and that of its usual time."""
    lanes = _typical_lanes([(0, a.lanes[lane]) for a in attributions if lane in a.lanes])
    return bool((lanes.excess_ns > _noticed_ns(lanes)).any())


def typical_excess(lane: Lane, attributions: Iterable[Attribution]) -> LaneExcess | None:
    """Return the medians of a lane's values over the iterations; None if none has the lane."""
    found = [(0, a.lanes[lane]) for a in attributions if lane in a.lanes]
    return _typical_lanes(found).one(0) if found else None


# --- many lanes at once: each value is an array with one place for each lane ----------------------------------------


class _Lanes(NamedTuple):
    """Typical values of some lanes: the fields of `LaneExcess`, and in how many iterations each was seen."""

    excess_ns: Floats
    usual_ns: Floats
    noise_ns: Floats
    size_bytes: Floats
    slow_transfers: Floats
    transfers: Floats
    most_ns: Floats
    iterations: Ints

    def one(self, at: int) -> LaneExcess:
        return LaneExcess(*(float(column[at]) for column in self[:-1]))


def _typical_lanes(rows: Sequence[tuple[int, LaneExcess]]) -> _Lanes:
    """Return the medians of each lane's values; lanes are numbered from 0 without holes."""
    number = np.array([lane for lane, _ in rows], dtype=np.int64)
    table = np.array([own for _, own in rows], dtype=np.float64).reshape(len(rows), len(LaneExcess._fields))
    return _medians_of(number, table)


def _medians_of(number: Ints, table: Floats) -> _Lanes:
    """Return the medians of rows of `LaneExcess`, by the number of the lane of each."""
    return _Lanes._make([*column_medians(number, table).T, np.bincount(number)])


_NORMAL, _TELLS_NOTHING = 0.0, -1.0
_LESS_SLOW: Final = 1 / 8
"""Of a lane that was slower by less than half of the expected. In 10 jobs with a slow NIC 56 % of its pairs were slow
and 6 % less slow, of all others 0.7 % and 2.8 %: it tells some 80 times and twice for the NIC."""
_MOST_TIMES: Final = 64.0  # beyond, a larger excess is no less likely by chance: noise makes none so large


def _tell(lanes: _Lanes, accused: LaneExcess | None) -> list[float]:
    """Return how slow each lane is (`observe_lanes`); `_TELLS_NOTHING` if it is no evidence."""
    nothing_ns: Floats = np.zeros(len(lanes.excess_ns))
    expected_ns = nothing_ns if accused is None else _expected_excess_ns(lanes, accused)
    by_time_ns = nothing_ns if accused is None else _by_time_ns(lanes, accused)
    # Excess from waiting behind the accused lane's traffic alone; within the error of clocks a transfer shows nothing
    queued_ns = np.maximum(JOB.clock_error_ns * lanes.transfers, JOB.alike * by_time_ns)
    noise_ns = _noticed_ns(lanes)
    noticed_ns = np.maximum(noise_ns, lanes.most_ns)
    is_over = _is_over(lanes)
    slow = np.exp2(np.floor(np.log2(np.clip(lanes.excess_ns / np.maximum(noticed_ns, 1.0), 1.0, _MOST_TIMES))))
    slow = np.where(lanes.excess_ns > JOB.most * expected_ns, slow, _LESS_SLOW)
    if_expected = np.where(is_over & (lanes.excess_ns > JOB.alike * expected_ns), slow, _NORMAL)
    if_not = np.where(is_over & (lanes.excess_ns > queued_ns), slow, _TELLS_NOTHING)
    # A single transfer that hung is not held against a lane that would be slow.
    missing_ns = expected_ns - np.where(lanes.excess_ns > noticed_ns, 0.0, np.maximum(lanes.excess_ns, 0.0))
    # That a lane was slow once, and is not now, is no reason to doubt that it would be.
    would_be_noticed = missing_ns > np.where(lanes.excess_ns > noise_ns, noticed_ns, noise_ns)
    told: list[float] = np.where(would_be_noticed, if_expected, if_not).tolist()
    return told


def _is_over(lanes: _Lanes) -> Flags:
    """Return which lanes are slow, beyond noise and drift, in more than a single transfer of several."""
    stands_out = lanes.excess_ns > np.maximum(_noticed_ns(lanes), lanes.most_ns)
    return stands_out & ((lanes.transfers <= 1) | (lanes.slow_transfers >= JOB.stray_transfers))


def _noticed_ns(lanes: _Lanes) -> Floats:
    """Return the excess above which lanes are slow beyond noise and drift, ns: some standard errors of the median.

    It is of these iterations and of the usual time.
    """
    of_noise_ns = lanes.noise_ns * np.sqrt(1 / lanes.iterations + 1 / _USUAL_ITERATIONS)
    of_clock_ns = JOB.least_resolution_ns * lanes.transfers  # roundings that are alike add up
    of_both_ns = np.hypot(MEDIAN_ERROR * of_noise_ns, BLAME.model_error * lanes.usual_ns)
    return np.asarray(JOB.sigmas * np.hypot(of_both_ns, of_clock_ns))


def _expected_excess_ns(lanes: _Lanes, accused: LaneExcess) -> Floats:
    """Return the excess that lanes would have at least if they were slowed as the accused one is, ns.

    By their usual time or by their bytes where the device is slow, by their transfers where each of them is delayed.
    """
    by_count_ns = accused.excess_ns * lanes.transfers / max(accused.transfers, 1.0)
    least_ns = np.minimum(_by_time_ns(lanes, accused), by_count_ns)
    # Also NaN, a size that is not known, is not above 0.
    if not accused.size_bytes > 0:
        return least_ns
    by_size_ns = accused.excess_ns * lanes.size_bytes / accused.size_bytes
    return np.where(lanes.size_bytes > 0, np.minimum(least_ns, by_size_ns), least_ns)


def _by_time_ns(lanes: _Lanes, accused: LaneExcess) -> Floats:
    """Return the excess of lanes whose transfers took longer in the accused one's proportion, ns."""
    return accused.excess_ns * lanes.usual_ns / max(accused.usual_ns, 1.0)
