"""Who is to blame where ranks' own work takes longer."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.blame.causes import find_causes, is_sure
from irregulars.detectors.blame.work_causes import are_in_step, starved_ranks
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.path.critical_path import Attribution
from tests.detectors.lost_time import APART, MS, TWO_EACH, WORK, always, named, seen

HOSTS_OF_FOUR = Topology(16, {rank: Place(f"h{rank // 4}", rank % 4, "eth0") for rank in range(16)}, {})


def overlapped(last: Sequence[int], late: Sequence[int], common: float = 100.0) -> list[Attribution]:
    """Iterations in which now this rank comes last and now that, and all seem to work longer, some 90 ms more."""
    longer = {rank: common + 90.0 * (rank in late) for rank in range(16)}
    return [seen(n, {Lane("work", rank): 60.0}, {}, longer) for n, rank in enumerate(last)]


FOUR_EACH = Topology(8, {rank: Place(f"h{rank // 4}", rank % 4) for rank in range(8)}, {0: tuple(range(8))})


def four_iterations(*late: set[int]) -> list[Attribution]:
    """In each of them these ranks work 50 ms longer, and one of them is on the path."""
    return [
        seen(number, {Lane("work", min(ranks)): 50.0}, {}, {rank: 50.0 * (rank in ranks) for rank in range(8)})
        for number, ranks in enumerate(late)
    ]


def test_ranks_of_a_host_that_are_late_together() -> None:
    # Two ranks of a host that take turns in being late are no slow host
    turns = [seen(n, {WORK[2 + n % 2]: 50.0}, {}, {rank: 50.0 * (rank == 2 + n % 2) for rank in range(6)})
             for n in range(6)]  # fmt: skip
    assert "host" not in [device for _, device, _ in named(turns, TWO_EACH)]
    # A slow host stands out where its ranks are last in turn, though all ranks seem to work longer
    host, turns = (4, 5, 6, 7), [4, 5, 6, 7, 5, 4]
    for common in (0.0, 100.0, 400.0):
        assert named(overlapped(turns, host, common), HOSTS_OF_FOUR) == [("slow_rank", "host", host)]
    assert named(overlapped([4] * 6, host, common=400.0), HOSTS_OF_FOUR) == []  # it is everybody
    # A ranks own work accuses its gpu
    (cause,) = find_causes(always(5, {WORK[2]: 50.0, WORK[3]: 1.0}), APART)
    assert (cause.kind, cause.suspects[0][0].ranks, cause.communicator) == ("slow_rank", (2,), None)
    assert cause.explained_ns == dict.fromkeys(range(5), 50 * MS)
    assert is_sure(cause)


def test_late_hosts_and_uneven_data() -> None:
    # Half of all ranks on one host is chance where uneven data make ever others late
    uneven = four_iterations({0, 1, 5}, {2, 3, 5}, {0, 3, 5}, {1, 2, 5})
    assert "host" not in {device for _, device, _ in named(uneven, FOUR_EACH)}
    # A host is blamed though one iteration has another late rank and one of its own on time
    together = four_iterations({0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2, 3, 5}, {0, 2, 3})
    assert named(together, FOUR_EACH) == [("slow_rank", "host", (0, 1, 2, 3))]
    # A host is not blamed when all hosts are late
    late = dict.fromkeys(range(6), 50.0)
    assert ("slow_rank", "host", (2, 3)) not in named(always(5, {WORK[3]: 50.0}, {}, late), TWO_EACH)


# --- on either side of each threshold -------------------------------------------------------------------------------

OF_EIGHT = Topology(32, {rank: Place(f"h{rank // 8}", rank % 8) for rank in range(32)}, {})
"""Four hosts of eight ranks."""


def late_by(late_ms: Mapping[int, float], ranks: int = 32, count: int = 5) -> list[Attribution]:
    """Iterations in which rank 0 is on the path, and these ranks work so much longer."""
    return always(count, {WORK[0]: 50.0}, {}, dict.fromkeys(range(ranks), 0.0) | dict(late_ms))


def blamed(attributions: Sequence[Attribution], topology: Topology = OF_EIGHT) -> str | None:
    """Kind of the device that is blamed; None if nobody is."""
    return next((device for _, device, _ in named(attributions, topology)), None)


@pytest.mark.parametrize(("late", "device"), [
    pytest.param((0, 1, 2, 3, 4), "host", id="5 of 8"),
    pytest.param((0, 1, 2, 8), "gpu", id="3 of 9: one is of another host"),
    pytest.param((0, 1, 2, 3, 8), None, id="4 of 9"),
])  # fmt: skip
def test_a_host_is_blamed_whose_ranks_are_mostly_the_late_ones(late: Collection[int], device: str | None) -> None:
    assert blamed(late_by(dict.fromkeys(late, 50.0))) == device


@pytest.mark.parametrize(("late_ms", "device"), [(23.0, "gpu"), (27.0, "host")])
def test_ranks_of_a_slow_host_are_about_equally_late(late_ms: float, device: str) -> None:
    some = always(5, {WORK[3]: 50.0}, {}, {0: 0.0, 1: 0.0, 2: late_ms, 3: 50.0})
    (cause,) = find_causes(some, TWO_EACH)
    assert cause.suspects[0][0].kind == device


def test_a_slow_host_is_later_than_the_many_that_are_late_by_noise() -> None:
    noise = [{8 + (10 * number + at) % 24: 30.0 for at in range(10)} for number in range(5)]
    works = [dict.fromkeys(range(32), 0.0) | dict.fromkeys(range(8), 100.0) | late for late in noise]
    assert blamed([seen(number, {WORK[0]: 100.0}, {}, late) for number, late in enumerate(works)]) == "host"


def test_ranks_that_log_nothing_are_no_ranks_on_time() -> None:
    logging_two = replace(OF_EIGHT, unlogged=frozenset({1, 2, 3, 4, 6, 7, 11, 30}))
    both_late = {0: 50.0, 5: 50.0}
    assert blamed(late_by(both_late), logging_two) == "host"
    assert blamed(late_by(both_late)) == "gpu"
    assert blamed(late_by({0: 50.0}), logging_two) == "gpu"


def test_the_one_host_that_logs_is_not_told_from_the_job() -> None:
    """Storage holds up all hosts, of which one logs. Beside another one that logs and is on time it is the host."""
    stalled = [seen(n, {Lane("work", n % 8): 200.0}, {}, dict.fromkeys(range(8), 200.0)) for n in range(6)]
    assert blamed(stalled, replace(OF_EIGHT, unlogged=frozenset(range(8, 32)))) is None
    on_time = dict.fromkeys(range(8), 200.0) | dict.fromkeys(range(8, 16), 0.0)
    beside = [replace(one, work_excess_ns={rank: ms * MS for rank, ms in on_time.items()}) for one in stalled]
    assert blamed(beside, replace(OF_EIGHT, unlogged=frozenset(range(16, 32)))) == "host"


def test_of_a_host_in_turns_the_ranks_that_log_count() -> None:
    """Four of its eight ranks log, and all ranks seem to work longer."""
    assert turns([0, 1, 2, 3] * 2, late=range(4), unlogged=range(4, 8)) == "host"


def in_turn(own: Sequence[int], others: int) -> list[Attribution]:
    """Sixteen iterations; in each as many ranks of host 0 as `own` says are late, now these and now those."""
    found = []
    for n, many in enumerate(islice(cycle(own), 16)):
        late = {(n + at) % 8 for at in range(many)} | {8 + (n + at) % 24 for at in range(others)}
        found.append(seen(n, {Lane("work", n % 8): 50.0}, {}, {rank: 50.0 * (rank in late) for rank in range(32)}))
    return found


@pytest.mark.parametrize(("own", "others", "device"), [(3, 1, "host"), (2, 1, None)])
def test_of_a_host_in_turns_a_quarter_of_the_others_is_late_too(own: int, others: int, device: str | None) -> None:
    """Over all iterations each of its ranks is late as often; beside the last one 2 / 7 or 1 / 7 are in each."""
    assert blamed(in_turn([own], others)) == device


@pytest.mark.parametrize(("late", "is_blamed"), [(4, True), (5, False)])
def test_a_rank_that_is_late_with_many_of_other_hosts_is_not_blamed(late: int, is_blamed: bool) -> None:
    apart = Topology(32, {rank: Place(f"h{rank}", 0) for rank in range(32)}, {})
    assert blamed(late_by(dict.fromkeys(range(late), 50.0)), apart) == ("gpu" if is_blamed else None)


@pytest.mark.parametrize(("known", "device"), [(8, "host"), (7, None)])
def test_where_eight_in_ten_are_late_the_job_changed(known: int, device: str | None) -> None:
    """The six ranks of a host are three quarters of all, or six sevenths."""
    topology = Topology(known, {rank: Place("h0" if rank < 6 else f"h{rank}", rank) for rank in range(known)}, {})
    assert blamed(late_by(dict.fromkeys(range(6), 50.0), known), topology) == device


# Ranks of one host of eight take turns in being last, where all ranks seem to work longer: nothing else shows it.


def turns(
    last: Sequence[int],
    cost_ms: Mapping[int, float] | None = None,
    late: Collection[int] = range(8),
    unlogged: Collection[int] = (),
) -> str | None:
    """Whom iterations blame in which these ranks come last, each at its cost, and `late` work much longer."""
    longer = {rank: 400.0 + 90.0 * (rank in late) for rank in range(32) if rank not in unlogged}
    costs = dict.fromkeys(range(32), 60.0) | dict(cost_ms or {})
    some = [seen(n, {Lane("work", rank): costs[rank]}, {}, longer) for n, rank in enumerate(last)]
    return blamed(some, replace(OF_EIGHT, unlogged=frozenset(unlogged)))


@pytest.mark.parametrize(("iterations", "device"), [(4, "host"), (3, None)])
def test_turns_take_four_iterations(iterations: int, device: str | None) -> None:
    topology = Topology(16, HOSTS_OF_FOUR.places, {})
    longer = {rank: 400.0 + 90.0 * (rank < 4) for rank in range(16)}
    last = [0, 1, 2, 3][:iterations]
    some = [seen(n, {Lane("work", rank): 60.0}, {}, longer) for n, rank in enumerate(last)]
    assert blamed(some, topology) == device


@pytest.mark.parametrize(("others", "device"), [(1, "host"), (3, None)])
def test_nearly_all_that_is_lost_to_work_is_the_host_s(others: int, device: str | None) -> None:
    """480 of 535 ms, or 480 of 645 ms."""
    assert turns([*range(8), *range(20, 20 + others)], dict.fromkeys(range(20, 23), 55.0)) == device


def test_a_host_in_turns_is_found_where_ranks_that_are_last_by_chance_cost_more() -> None:
    """Iterations take 60 ms longer; another rank of the host has that each time, and other ones 80 ms by chance."""
    longer = {rank: 90.0 * (rank < 8) for rank in range(32)}
    some = [
        replace(seen(n, {Lane("work", n): 60.0, Lane("work", 8 + 5 * n % 24): 80.0}, {}, longer), excess_ns=60 * MS)
        for n in range(6)
    ]
    assert blamed(some) == "host"
    assert blamed([replace(one, excess_ns=None) for one in some]) is None


@pytest.mark.parametrize(("hosts", "device"), [(1, "host"), (2, None), (4, None)])
def test_replicas_with_more_data_are_no_host_in_turns_though_paths_pass_one(hosts: int, device: str | None) -> None:
    """Now the first half of each host is late, now the second: that is a replica, with a stage on each of these."""
    some = [
        seen(
            n,
            {Lane("work", n): 60.0},
            {},
            {rank: 60.0 * (rank < 8 * hosts and rank // 4 % 2 == n // 4) for rank in range(32)},
        )
        for n in range(8)
    ]
    assert blamed(some) == device


def test_a_longer_batch_is_no_host_in_turns_though_its_ranks_have_half_of_what_paths_lost() -> None:
    """All ranks work 90 ms longer; paths lose 60 ms to ranks of one host and as much to others, of 60 ms in all."""
    longer = dict.fromkeys(range(32), 90.0)
    some = [
        replace(seen(n, {Lane("work", n): 60.0, Lane("work", 8 + 5 * n % 24): 60.0}, {}, longer), excess_ns=60 * MS)
        for n in range(6)
    ]
    assert blamed(some) is None


def test_of_a_stage_on_two_hosts_the_path_may_pass_one() -> None:
    staged = replace(OF_EIGHT, stage_of={rank: rank // 16 for rank in range(32)})
    for late, device in ((16, "stage"), (8, "host")):
        longer = {rank: 90.0 * (rank < late) for rank in range(32)}
        assert blamed([seen(n, {Lane("work", n): 60.0}, {}, longer) for n in range(8)], staged) == device


@pytest.mark.parametrize(("most_ms", "device"), [(400.0, "host"), (460.0, None)])
def test_a_rank_that_has_most_of_it_is_slow_by_itself(most_ms: float, device: str | None) -> None:
    """400 of 820 ms are 0.49, 460 of 880 ms 0.52."""
    assert turns(range(8), {0: most_ms}) == device


@pytest.mark.parametrize(("late", "device"), [(range(6), "host"), (range(5), None)])
def test_three_quarters_of_the_host_work_longer(late: Collection[int], device: str | None) -> None:
    longer = {rank: 90.0 * (rank in late) for rank in range(8)} | {rank: 50.0 * (rank < 24) for rank in range(8, 32)}
    some = [seen(n, {Lane("work", rank): 60.0}, {}, longer) for n, rank in enumerate([0, 1, 2, 3, 4, 5] * 2)]
    assert blamed(some) == device


RANKS = range(8)
ITERATIONS = 8


def work(late: dict[int, float], seed: int = 1, bursts: float = 0.0) -> list[dict[int, float]]:
    """Work over the usual, ns: noise of 2 ms, and of some ranks so many ms more, give or take `bursts`."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.0, 2.0, (ITERATIONS, len(RANKS)))
    for rank, ms in late.items():
        noise[:, rank] += ms + rng.uniform(-bursts, bursts, ITERATIONS)
    return [dict(zip(RANKS, (row * MS).tolist(), strict=True)) for row in noise]


def spent(works: list[dict[int, float]]) -> list[Attribution]:
    """Iterations in which ranks worked so much longer."""
    return [Attribution(number, {}, {}, {}, one) for number, one in enumerate(works)]


def starved(works: list[dict[int, float]], least_ns: float) -> set[int]:
    return starved_ranks(spent(works), least_ns)


def in_step(works: list[dict[int, float]], ranks: set[int]) -> bool:
    return are_in_step(spent(works), ranks)


def test_starved_ranks() -> None:
    # A rank whose work grows beyond the noise is starved
    assert starved(work({6: 20.0}), MS) == {6}
    assert starved(work({4: 20.0, 5: 16.0}), MS) == {4, 5}
    assert starved(work({}), MS) == set()
    # Nothing, and ranks that are hardly known, say nothing
    assert starved([], MS) == set()
    assert starved([*work({6: 20.0}), *({9: 0.0} for _ in range(3))], MS) == set()
    # An iteration in which the others are not known says as much of those that are: what is not known of one rank in
    # one iteration moves no other rank, in whichever order ranks are told.
    works = work({6: 20.0})
    one = {rank: works[0][rank] for rank in (7, 6)}
    assert starved([one, *works[1:]], MS) == starved([works[0], *works[1:]], MS) == {6}
    assert starved([dict(reversed(one.items())) for one in works], MS) == {6}


def test_ranks_that_wait_for_the_same_transfer_are_in_step_and_throttled_ones_are_not() -> None:
    assert in_step(work({2: 30.0, 3: 30.0}), {2, 3})
    assert not in_step(work({2: 30.0, 3: 30.0}, bursts=25.0), {2, 3})
    assert not in_step(work({2: 30.0}), {2})


@given(order=st.permutations(RANKS))
def test_renaming_ranks_renames_the_starved(order: list[int]) -> None:
    renamed = [{order[rank]: ns for rank, ns in one.items()} for one in work({6: 20.0})]
    assert starved(renamed, MS) == {order[6]}


# --- on either side of each threshold -------------------------------------------------------------------------------


def even(late_ms: dict[int, float], count: int = 4, ranks: int = 6, noise_ms: float = 0.0) -> list[dict[int, float]]:
    """Work over the usual, ns: of these ranks so much, of the others next to nothing, all with an even noise."""
    sway = [noise_ms * (1 if n % 2 else -1) for n in range(count)]
    return [{r: (late_ms.get(r, 0.0) + sway[n]) * MS for r in range(ranks)} for n in range(count)]


@pytest.mark.parametrize(("late_ms", "is_starved"), [(5.0, False), (6.2, True)])
def test_starved_work_stands_six_standard_errors_out(late_ms: float, is_starved: bool) -> None:
    """Of a noise of 1 ms the median of four iterations has a standard error of 1.2533 × 1.4826 / 2 = 0.93 ms."""
    assert (starved(even({3: late_ms}, noise_ms=1.0), 0.0) == {3}) == is_starved


@pytest.mark.parametrize(("late_ms", "is_starved"), [(9.0, False), (11.0, True)])
def test_starved_work_is_twice_as_far_out_as_the_quickest_rank(late_ms: float, is_starved: bool) -> None:
    assert (starved(even({3: late_ms, 1: -5.0}), 0.0) == {3}) == is_starved


@pytest.mark.parametrize(("iterations", "is_starved"), [(3, False), (4, True)])
def test_three_iterations_say_nothing_of_processor_time(iterations: int, is_starved: bool) -> None:
    assert (starved(even({3: 20.0}, iterations), 0.0) == {3}) == is_starved


@pytest.mark.parametrize(("late_ms", "found"), [(9.0, {3}), (11.0, {3, 4})])
def test_ranks_are_starved_as_the_latest_from_half_of_it_on(late_ms: float, found: set[int]) -> None:
    assert starved(even({3: 20.0, 4: late_ms}), 0.0) == found


@pytest.mark.parametrize(("late", "is_starved"), [(4, True), (5, False)])
def test_of_nine_ranks_four_may_be_starved_and_five_are_the_job(late: int, is_starved: bool) -> None:
    """The others' median tells what all are late, so that with five late it is the four that seem quick."""
    found = starved(even(dict.fromkeys(range(late), 20.0), ranks=9), 0.0)
    assert (found == set(range(late))) == is_starved


@pytest.mark.parametrize(("apart_ms", "is_in_step"), [(2.7, True), (3.3, False)])
def test_ranks_in_step_differ_by_less_than_three_times_the_noise(apart_ms: float, is_in_step: bool) -> None:
    """Two ranks that differ by as many times the noise of the others, 1.4826 / 2 ms."""
    noise = [dict.fromkeys((2, 3, 4, 5), 0.5 * MS if n % 2 else -0.5 * MS) for n in range(4)]
    half = apart_ms * 0.7413 * MS / math.sqrt(2)
    late = [{0: 30 * MS + half, 1: 30 * MS - half} for _ in range(4)]
    assert in_step([one | two for one, two in zip(noise, late, strict=True)], {0, 1}) == is_in_step
