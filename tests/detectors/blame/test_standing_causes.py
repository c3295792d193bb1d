"""What was slow from the first iteration on, and how late ranks are against those that do the same work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.blame.standing_causes import Reviewed, late_against_stage, review
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.path.critical_path import Attribution, Piece

RANKS = np.arange(8)
TOPOLOGY = Topology(8, {}, {}, stage_of={rank: rank // 4 for rank in range(8)})
FOUR_STAGES = Topology(8, {}, {}, stage_of={rank: rank // 2 for rank in range(8)})


def late(work: list[float], operators: list[int], most: list[int] | None = None) -> dict[int, float]:
    known = None if most is None else np.array(most)
    rank, late_ns = late_against_stage(RANKS, np.array(work), np.array(operators), TOPOLOGY, known)
    return dict(zip(rank.tolist(), late_ns.tolist(), strict=True))


def test_lateness_against_the_stage() -> None:
    # Ranks are late against their stage
    found = late([10, 10, 14, 11, 30, 30, 31, 39], [20] * 4 + [24] * 4)
    assert found == {0: 0, 1: 0, 2: 4, 3: 1, 4: 0, 5: 0, 6: 1, 7: 9}
    # A rank without company is held against nothing
    assert late([10, 10, 14, 11, 30, 30, 31, 39], [20] * 4 + [24, 24, 24, 25]).keys() == set(range(7))
    # Slow ranks stay late where each of the others lost a row
    work = [10.0, 11, 40, 41, 10, 10, 10, 10]
    assert late(work, [20] * 8) == pytest.approx({0: -1, 1: 0, 2: 29, 3: 30, 4: 0, 5: 0, 6: 0, 7: 0})
    lost = [19, 18, 20, 20, 20, 20, 20, 20]
    assert late(work, lost, [20] * 8) == pytest.approx({2: 29, 3: 30, 4: 0, 5: 0, 6: 0, 7: 0})
    assert late(work, lost)[3] == 1.0  # held against each other alone
    # A rank with fewer rows than most is neither late nor on time
    assert 2 not in late([10, 10, 40, 11, 10, 10, 10, 10], [20, 20, 19, 20, 20, 20, 20, 20], [20] * 8)
    # An iteration in which all run less is held against itself
    assert late([5, 5, 9, 5, 5, 5, 5, 5], [7] * 8, [20] * 8)[2] == 4.0


# --- reviews --------------------------------------------------------------------------------------------------------

MS = 1e6
DELTA = 1.1


def reviewed(
    number: int,
    late_ms: Mapping[int, float],
    *,
    stage_ms: Sequence[float] = (100.0, 100.0),
    path_ms: Sequence[float] = (50.0, 50.0),
    beside_ratio: float = 0.0,
) -> Reviewed:
    """A regular iteration of 100 ms.

    Its path lost time to the work of ranks; the ranks of a stage worked for some time, a part of it on the path.
    """
    path = {Lane("work", rank): ms * MS for rank, ms in late_ms.items() if ms}
    pieces = {lane: Piece(lane, lane.first, 0, 0, ns, 0.0) for lane, ns in path.items()}
    work_ns = {rank: stage_ms[rank // 4] * MS for rank in range(8)}
    path_work_ns = {4 * stage: ms * MS for stage, ms in enumerate(path_ms)}
    return Reviewed(100 * MS, Attribution(number, path, pieces, {}, {}), work_ns, path_work_ns, beside_ratio)


def found(some: Sequence[Reviewed], topology: Topology = TOPOLOGY, delta: float = DELTA) -> list[tuple[str, int]]:
    """Kinds of causes, and in how many iterations each is seen."""
    return [(cause.kind, len(cause.explained_ns)) for cause in review(some, topology, delta)]


@pytest.mark.parametrize(("count", "is_said"), [(4, False), (5, True)])
def test_four_iterations_are_too_few_for_a_review(count: int, is_said: bool) -> None:
    assert bool(found([reviewed(n, {1: 20.0}) for n in range(count)])) == is_said


@pytest.mark.parametrize(("shown", "is_said"), [(7, False), (8, True)])
def test_a_standing_fault_shows_in_four_of_five_iterations(shown: int, is_said: bool) -> None:
    some = [reviewed(n, {1: 30.0} if n < shown else {2: 1.0}) for n in range(10)]
    assert (("slow_rank", shown) in found(some)) == is_said


@pytest.mark.parametrize(("late_ms", "is_said"), [(8.0, False), (10.0, True)])
def test_a_standing_fault_costs_more_than_delta_allows(late_ms: float, is_said: bool) -> None:
    """Without 9.1 of its 100 ms an iteration takes a tenth less."""
    assert bool(found([reviewed(n, {1: late_ms}) for n in range(8)])) == is_said


HEAVY: dict[str, Any] = {"stage_ms": (100.0, 120.0), "path_ms": (30.0, 70.0)}


def heavy(**more: Any) -> list[tuple[str, int]]:
    return found([reviewed(n, {}, **HEAVY | more) for n in range(8)])


def test_a_stage_all_of_whose_ranks_work_longer_is_heavy() -> None:
    (cause,) = review([reviewed(n, {}, **HEAVY) for n in range(8)], TOPOLOGY, DELTA)
    assert (cause.kind, cause.suspects[0][0].ranks) == ("slow_stage", (4, 5, 6, 7))
    assert cause.explained_ns == dict.fromkeys(range(8), 20 * MS)


@pytest.mark.parametrize(("excess_ms", "is_said"), [(12.0, False), (14.5, True)])
def test_a_heavy_stage_costs_more_than_stages_differ_in_healthy_jobs(excess_ms: float, is_said: bool) -> None:
    """100 ms are more than 1.15 times the rest from 13.05 ms on."""
    assert bool(heavy(stage_ms=(100.0, 100.0 + excess_ms))) == is_said


@pytest.mark.parametrize(("path_ms", "is_said"), [(45.0, False), (55.0, True)])
def test_of_two_stages_the_heavy_one_has_most_of_the_path(path_ms: float, is_said: bool) -> None:
    assert bool(heavy(path_ms=(100.0 - path_ms, path_ms))) == is_said


@pytest.mark.parametrize(("path_ms", "is_said"), [(35.0, False), (55.0, True)])
def test_of_four_stages_the_heavy_one_has_most_of_the_path(path_ms: float, is_said: bool) -> None:
    work_ns = {rank: (120.0 if rank < 2 else 100.0) * MS for rank in range(8)}
    path_work_ns = {0: path_ms * MS, 4: (100.0 - path_ms) * MS}
    some = [replace(reviewed(n, {}), work_ns=work_ns, path_work_ns=path_work_ns) for n in range(8)]
    assert (found(some, FOUR_STAGES) == [("slow_stage", 8)]) == is_said


@pytest.mark.parametrize(("beside_ratio", "is_said"), [(0.45, True), (0.55, False)])
def test_stages_whose_recvs_lie_open_are_not_compared(beside_ratio: float, is_said: bool) -> None:
    assert bool(heavy(beside_ratio=beside_ratio)) == is_said


@pytest.mark.parametrize(("excess_ms", "is_said"), [(12.0, False), (14.5, True)])
def test_stages_with_open_recvs_are_compared_by_their_work_on_micro_batches(excess_ms: float, is_said: bool) -> None:
    """Of four stages the two in the middle; the path, which takes waiting for work, is not asked."""
    microbatch_ns = {rank: (60.0 + (excess_ms if rank < 4 else 0.0)) * MS for rank in (2, 3, 4, 5)}
    some = [replace(reviewed(n, {}, beside_ratio=0.9), microbatch_ns=microbatch_ns) for n in range(8)]
    causes = review(some, FOUR_STAGES, DELTA)
    assert [cause.suspects[0][0].ranks for cause in causes] == ([(2, 3)] if is_said else [])


def waiting(work_ms: Sequence[float], path_ms: Sequence[float]) -> list[Reviewed]:
    """Four stages that wait 20 ms longer each than the one before, and log nothing of it."""
    work_ns = {rank: (10.0 + 20.0 * (rank // 2) + work_ms[rank // 2]) * MS for rank in range(8)}
    path_work_ns = {2 * stage: ms * MS for stage, ms in enumerate(path_ms)}
    microbatch_ns = {rank: work_ms[rank // 2] * MS for rank in (2, 3, 4, 5)}
    return [
        replace(reviewed(n, {}), work_ns=work_ns, path_work_ns=path_work_ns, microbatch_ns=microbatch_ns)
        for n in range(8)
    ]


@pytest.mark.parametrize("stage", range(4))
def test_where_gaps_contain_waiting_the_stage_that_works_longer_is_heavy(stage: int) -> None:
    work_ms = [70.0 if one == stage else 40.0 for one in range(4)]
    path_ms = [90.0 if one == stage else 40.0 for one in range(4)]
    (cause,) = review(waiting(work_ms, path_ms), FOUR_STAGES, DELTA)
    assert cause.suspects[0][0].ranks == (2 * stage, 2 * stage + 1)
    assert list(cause.explained_ns.values()) == pytest.approx([30 * MS] * 8)


def test_the_heavy_stage_is_told_where_another_one_seems_to_work_longer_and_waits() -> None:
    work_ms, seeming_ms = [40.0, 70.0, 40.0, 40.0], [90.0, 70.0, 40.0, 40.0]
    some = waiting(work_ms, path_ms=[30.0, 90.0, 30.0, 30.0])[:4] + [
        replace(one, attribution=replace(one.attribution, iteration=4 + n))
        for n, one in enumerate(waiting(seeming_ms, path_ms=[30.0, 90.0, 30.0, 30.0])[:4])
    ]
    (cause,) = review(some, FOUR_STAGES, DELTA)
    assert cause.suspects[0][0].ranks == (2, 3)


def test_a_rank_that_is_late_in_each_iteration_is_sure_whatever_luck_adds() -> None:
    """Other ranks, ever others, lose twice as much: by its share rank 1 would be one of three."""
    (cause,) = review([reviewed(n, {1: 10.0, 2 + n % 3: 12.0, 5 + n % 3: 9.0}) for n in range(8)], TOPOLOGY, DELTA)
    assert cause.kind == "slow_rank"
    assert cause.suspects[0][0].ranks == (1,)
    assert cause.suspects[0][1] > 0.9


def test_stages_that_are_not_heavy() -> None:
    # Stages that work as long and wait are not heavy: by its gaps the last one works 60 ms longer than the first.
    assert review(waiting([40.0] * 4, path_ms=[20.0, 20.0, 20.0, 40.0]), FOUR_STAGES, DELTA) == []
    # A first or last stage that is not on the path is not heavy: what looks like its work may be waiting of another
    # kind.
    assert review(waiting([40.0, 40.0, 40.0, 70.0], path_ms=[30.0, 30.0, 30.0, 10.0]), FOUR_STAGES, DELTA) == []


@pytest.mark.parametrize(
    ("before_ms", "is_said"), [((60.0, 90.0), True), ((60.0, 70.0), False), ((70.0, 60.0), False)]
)
def test_a_heavy_stage_works_longer_until_its_messages_are_through(before_ms: Sequence[float], is_said: bool) -> None:
    """Where there are two stages alone, what one does later may be waiting for the other: it counts for nothing."""
    before_ns = {rank: before_ms[rank // 4] * MS for rank in range(8)}
    some = [replace(reviewed(n, {}, **HEAVY), to_last_message_ns=before_ns) for n in range(8)]
    assert bool(found(some)) == is_said


@pytest.mark.parametrize(("gaps_ms", "is_said"), [(70.0, True), (60.0, False)])
def test_gaps_that_hold_less_than_the_path_compare_no_stages(gaps_ms: float, is_said: bool) -> None:
    """Stage 0 has 78 ms of the path: what its gaps lack of that it worked while a recv lay open."""
    assert bool(heavy(stage_ms=(gaps_ms, 120.0), path_ms=(78.0, 80.0))) == is_said


@pytest.mark.parametrize(("late_ms", "is_said"), [(17.0, False), (19.0, True)])
def test_uneven_data_cost_twice_what_delta_allows_and_more(late_ms: float, is_said: bool) -> None:
    """100 ms are more than 1.22 times the rest from 18.03 ms on."""
    assert (found([reviewed(n, {n: late_ms}) for n in range(8)]) == [("imbalance", 8)]) == is_said


@pytest.mark.parametrize(("ranks", "is_said"), [((1, 1, 1, 1, 2, 3, 4, 5), False), ((1, 1, 1, 6, 2, 3, 4, 5), True)])
def test_where_one_rank_has_half_of_it_data_are_not_uneven(ranks: Sequence[int], is_said: bool) -> None:
    assert (found([reviewed(n, {rank: 25.0}) for n, rank in enumerate(ranks)]) == [("imbalance", 8)]) == is_said


def test_of_two_ranks_that_are_equally_slow_each_explains_what_the_other_is_late_for() -> None:
    some = []
    for n in range(8):
        one = reviewed(n, {1 if n % 2 else 2: 20.0})
        some.append(
            replace(
                one,
                attribution=replace(
                    one.attribution, work_excess_ns=dict.fromkeys(range(8), 0.0) | {1: 20 * MS, 2: 19 * MS}
                ),
            )
        )
    assert found(some) == [("slow_rank", 8), ("slow_rank", 8)]


def test_a_rank_that_lacks_processor_time_is_not_late_where_the_rank_with_its_groups_number_is() -> None:
    """In four iterations group 1 is slow since rank 5 is starved; in the other four rank 1 is late, and 5 is not."""
    world, late_ms, noise_ms = Lane("collective", 1), (12.0, 30.0, 9.0, 40.0), (0.3, -0.2, 0.4, -0.5)
    some = []
    for n in range(8):
        works = {rank: noise_ms[(n + rank) % 4] * MS for rank in range(8)}
        works |= {5: late_ms[n] * MS} if n < 4 else {1: 20 * MS, 5: 0.0}
        path = {world: 30 * MS} if n < 4 else {Lane("work", 1): 20 * MS}
        some.append(Reviewed(100 * MS, Attribution(n, path, {}, {}, works), {}, {}))
    assert found(some, Topology(8, {}, {1: tuple(range(8))})) == []
