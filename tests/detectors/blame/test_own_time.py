"""Pauses of ranks, and the cause that covers what one of them took longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from irregulars.detectors.blame.observation import ExcessPause, Observation
from irregulars.detectors.blame.own_time import PauseTimes, covering_cause, excess_pauses
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.path.critical_path import Attribution
from irregulars.messages.records import PAUSES
from tests.present import present

RANKS = np.arange(4)
COLLECTION, LOADER, WAIT, RAN = (
    PAUSES.index(name) for name in ("garbage_collection", "data_loader", "cpu_wait", "cpu_time")
)


def times(*pauses: tuple[int, int, float]) -> PauseTimes:
    """Pauses of four ranks: rank, cause, ms."""
    rank, cause, ms = (np.array(column) for column in zip(*pauses, strict=True)) if pauses else (np.empty(0),) * 3
    return PauseTimes(RANKS, rank.astype(np.int64), cause.astype(np.int64), ms * 1e6)


def observation(late_ms: dict[int, float], *pauses: tuple[int, int, float], at: int = 0) -> Observation:
    late_ns = {rank: late_ms.get(rank, 0.0) * 1e6 for rank in RANKS.tolist()}
    found = tuple(ExcessPause(rank, cause, ms * 1e6) for rank, cause, ms in pauses)
    return Observation(at, 2e8, 1e8, 0, Attribution(at, {}, {}, {}, late_ns), pauses=found)


def test_what_a_rank_always_does_and_what_all_do_is_no_excess() -> None:
    usual = [times(*((rank, LOADER, 5.0 + rank) for rank in range(4)))] * 6
    now = times(*((rank, LOADER, 5.0 + rank) for rank in range(4)), *((rank, COLLECTION, 40.0) for rank in range(4)))
    assert excess_pauses(now, usual) == ()


def test_without_a_past_peers_tell_what_is_usual() -> None:
    now = times((0, LOADER, 5.0), (1, LOADER, 5.0), (2, LOADER, 65.0), (3, LOADER, 6.0))
    assert [(one.rank, one.excess_ns) for one in excess_pauses(now, ())] == [(2, 60e6), (3, 1e6)]


def test_a_rank_that_came_later_has_no_past_and_is_held_against_its_peers() -> None:
    usual = [PauseTimes(RANKS[:3], RANKS[:3], np.full(3, LOADER), np.full(3, 5e6))] * 6
    now = times(*((rank, LOADER, 5.0) for rank in range(4)), (1, COLLECTION, 9.0))
    assert [(one.rank, one.cause) for one in excess_pauses(now, usual)] == [(1, COLLECTION), (3, LOADER)]


def test_who_works_ten_times_as_much_waits_more_and_that_is_not_the_cause() -> None:
    usual = [times(*((rank, cause, 5.0) for rank in range(4) for cause in (WAIT, RAN)))] * 6
    rest = [(rank, cause, 5.0) for rank in range(3) for cause in (WAIT, RAN)]
    works = excess_pauses(times(*rest, (3, WAIT, 100.0), (3, RAN, 50.0)), usual)
    assert [(one.rank, one.excess_ns) for one in works] == [(3, 15e6)]
    waits = excess_pauses(times(*rest, (3, WAIT, 100.0), (3, RAN, 5.0)), usual)
    assert [(one.rank, one.excess_ns) for one in waits] == [(3, 95e6)]


@pytest.mark.parametrize(("ms", "is_named"), [(79.0, False), (81.0, True)])
def test_a_cause_is_named_from_four_fifths_of_the_gaps_on(ms: float, is_named: bool) -> None:
    found = covering_cause((2,), [observation({2: 100.0}, (2, LOADER, ms)) for _ in range(3)])
    assert (found is not None) == is_named
    assert found is None or found == ("data_loader", ms / 100)


def test_pauses_of_others_and_longer_ones_than_the_gap_count_for_nothing_more() -> None:
    long = [observation({2: 10.0}, (2, LOADER, 90.0)), observation({2: 90.0}, (1, LOADER, 90.0))]
    assert covering_cause((2,), long) is None


def test_what_all_ranks_work_longer_is_not_to_be_covered() -> None:
    late = dict.fromkeys(range(4), 100.0) | {2: 150.0}
    assert covering_cause((2,), [observation(late, (2, COLLECTION, 50.0))]) == ("garbage_collection", 1.0)


def test_without_pauses_nothing_is_named() -> None:
    silent = Observation(0, 2e8, 1e8, 0, Attribution(0, {}, {}, {}, {2: 1e8}))
    assert covering_cause((2,), [silent]) is None
    assert covering_cause((2,), []) is None
    assert covering_cause((2,), [observation({2: 100.0})]) is None


def test_of_two_that_cover_the_gap_the_one_within_the_other_is_the_cause() -> None:
    """A trace's pause to load data may hold the collection in it; waits for the host run beside both."""
    both = observation({2: 100.0}, (2, LOADER, 98.0), (2, COLLECTION, 90.0))
    assert covering_cause((2,), [both]) == ("garbage_collection", 0.9)
    disk = observation({2: 100.0}, (2, LOADER, 98.0), (2, PAUSES.index("io_wait"), 90.0))
    assert covering_cause((2,), [disk]) == ("data_loader", 0.98)


def test_waits_for_the_host_that_cover_the_gap_together_are_no_cause_and_its_layer() -> None:
    throttled = PAUSES.index("cpu_throttled")
    found = covering_cause((2,), [observation({2: 100.0}, (2, WAIT, 45.0), (2, throttled, 40.0), (1, WAIT, 90.0))])
    assert (found, present(found).layer) == ((None, 0.85), "host")
    assert covering_cause((2,), [observation({2: 100.0}, (2, WAIT, 45.0), (2, COLLECTION, 40.0))]) is None
    apart = [observation({2: 100.0}, (2, WAIT, 150.0)), observation({2: 100.0}, (2, throttled, 50.0))]
    assert covering_cause((2,), apart) is None


def by_peers(one: Observation) -> Observation:
    return replace(one, attribution=replace(present(one.attribution), is_by_peers=True))


def test_without_a_past_what_ranks_on_time_pause_as_well_makes_nobody_late() -> None:
    """Every second rank loads the data, as the first of its tensor-parallel group; rank 2 computes slowly."""
    load = observation({2: 40.0}, (0, LOADER, 50.0), (2, LOADER, 50.0))
    assert covering_cause((2,), [load]) == ("data_loader", 1.0)
    assert covering_cause((2,), [by_peers(load)]) is None
    late = observation({1: 30.0, 2: 90.0}, (1, COLLECTION, 30.0), (2, COLLECTION, 90.0))
    assert covering_cause((2,), [by_peers(late)]) == ("garbage_collection", 1.0)


def test_where_ranks_are_late_in_turn_the_pauses_of_each_iteration_s_latest_count() -> None:
    def turn(rank: int, *pauses: tuple[int, int, float]) -> Observation:
        one = observation({rank: 90.0, 3: 9.0}, *pauses, at=rank)
        path = {Lane("work", rank): 9e7, Lane("work", 3): 9e6, EVERYBODY: 2e8}
        return replace(one, attribution=replace(present(one.attribution), path_excess_ns=path))

    collecting = [turn(rank, (rank, COLLECTION, 85.0)) for rank in range(3)]
    assert covering_cause(None, collecting) == ("garbage_collection", pytest.approx(85 / 90))
    assert covering_cause(None, [turn(rank, (3, COLLECTION, 85.0)) for rank in range(3)]) is None
    assert covering_cause(None, [observation({2: 90.0}, (2, COLLECTION, 85.0))]) is None


IO, MEMORY = PAUSES.index("io_wait"), PAUSES.index("memory_pressure")


def test_a_page_that_is_read_again_is_one_wait_for_memory_and_a_disk() -> None:
    both = observation({2: 100.0}, (2, IO, 45.0), (2, MEMORY, 45.0))
    assert covering_cause((2,), [both]) is None
    assert covering_cause((2,), [observation({2: 100.0}, (2, IO, 45.0), (2, MEMORY, 40.0), (2, WAIT, 40.0))]) == (
        None,
        0.85,
    )


@pytest.mark.parametrize(("cause", "first_ms", "name"), [(IO, 0.0, "io_wait"), (LOADER, 0.0, None), (IO, 9.0, None)])
def test_a_wait_for_a_disk_is_not_known_in_the_iteration_in_which_it_begins(
    cause: int, first_ms: float, name: str | None
) -> None:
    first = observation({2: 100.0}, *([(2, cause, first_ms)] if first_ms else []))
    found = covering_cause((2,), [first, *(observation({2: 60.0}, (2, cause, 60.0)) for _ in range(3))])
    assert (found and found.cause) == name
    # Of fewer nobody knows whether it goes on
    assert covering_cause((2,), [first, observation({2: 60.0}, (2, cause, 60.0))]) is None
