"""When healthy iterations are held against peers, and what a second review must confirm."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

import pytest

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.job.topology import Device
from irregulars.detectors.judging.review_candidates import ToReview
from irregulars.detectors.judging.standing_review import (
    StandingReview,
    hold_against_peers,
    read_paths,
    review_regular,
)
from irregulars.infra.runs.analysis import analyze
from tests.detectors.judging.read_job import ReadJob
from tests.present import present
from tests.streams.lockstep_job import MS, US, LockstepJob, meeting, uneven_ns

STAGE = Cause("slow_stage", ((Device("stage", (2, 3)), 0.9),), frozenset(), None, {1: 5.0})
OTHER_STAGE = Cause("slow_stage", ((Device("stage", (0, 1)), 0.9),), frozenset(), None, {1: 5.0})
UNEVEN = Cause("imbalance", (), frozenset(), None, {1: 5.0})
RANK = Cause("slow_rank", ((Device("gpu", (3,)), 0.9),), frozenset(), None, {1: 5.0})
OTHER_RANK = Cause("slow_rank", ((Device("gpu", (9,)), 0.9),), frozenset(), None, {1: 5.0})
HOST = Cause("slow_rank", ((Device("host", (2, 3)), 0.9),), frozenset(), None, {1: 5.0})
NIC = Cause("slow_nic", ((Device("nic", (3,)), 0.9),), frozenset(), None, {1: 5.0})
NOBODY = Cause("slow_communicator", (), frozenset(), "dp0", {1: 5.0})


def due(review: StandingReview, *, has_standing: bool = False) -> list[int]:
    return [judged for judged in range(1, 121) if review.is_due(judged, has_standing=has_standing)]


def test_when_a_review_is_due() -> None:
    # A review is due at the first level and then once in fifty
    assert due(StandingReview()) == [10, 50, 100]
    # It is due once in twenty while a standing fault is known
    assert due(StandingReview(), has_standing=True) == [10, 20, 40, 60, 80, 100, 120]


@pytest.mark.parametrize("has_standing", [False, True])
def test_it_is_due_once_in_ten_while_a_plan_waits_to_be_confirmed(has_standing: bool) -> None:
    review = StandingReview()
    review.confirmed([STAGE])
    assert due(review, has_standing=has_standing) == list(range(10, 121, 10))


@pytest.mark.parametrize("plan", [STAGE, UNEVEN])
def test_a_plan_counts_when_a_second_review_finds_it_again(plan: Cause) -> None:
    review = StandingReview()
    assert review.confirmed([plan, NOBODY]) == [NOBODY]
    assert review.confirmed([plan]) == [plan]


def test_plans_of_reviews() -> None:
    # A plan that was gone or is another one begins anew
    for between in ([], [OTHER_STAGE], [UNEVEN]):
        review = StandingReview()
        review.confirmed([STAGE])
        review.confirmed(between)
        assert review.confirmed([STAGE]) == []
    # A plan that a verdict tells already needs no second review
    assert StandingReview().confirmed([STAGE], [STAGE]) == [STAGE]


@pytest.mark.parametrize("again", [HOST, RANK, NIC])
def test_whom_two_reviews_in_a_row_accuse_is_told_though_one_takes_it_for_its_host(again: Cause) -> None:
    review = StandingReview()
    assert review.confirmed([RANK]) == []
    assert review.planned == (("slow_rank", (3,)),)
    assert review.confirmed([OTHER_RANK, again]) == [again]


def test_findings_that_need_two_reviews_or_one() -> None:
    # Each of several that a review finds may be confirmed
    review = StandingReview()
    assert review.confirmed([RANK, STAGE]) == []
    assert review.confirmed([STAGE, RANK]) == [STAGE, RANK]
    # A host that was slow for one review is not accused
    review = StandingReview()
    for causes in ([RANK], [OTHER_RANK], [], [RANK]):
        assert review.confirmed(causes) == []
    # A slow communicator accuses nobody and needs no second review
    review = StandingReview()
    assert review.confirmed([NOBODY]) == [NOBODY]
    assert review.planned == ()


def test_beside_an_open_verdict_another_finding_needs_a_second_review_as_well() -> None:
    review = StandingReview()
    assert review.confirmed([RANK, OTHER_RANK], [RANK]) == [RANK]
    assert review.confirmed([RANK], [RANK]) == [RANK]
    assert review.confirmed([RANK, OTHER_RANK], [RANK]) == [RANK]
    assert review.confirmed([OTHER_RANK, RANK], [RANK]) == [OTHER_RANK, RANK]


def slow_from_the_start(iterations: int) -> ReadJob:
    job = meeting(8, iterations, lambda number, rank: (10 + 10 * (rank == 5)) * MS + uneven_ns(number, rank, 50_000))
    return ReadJob(job.trace())


def test_a_rank_that_was_slow_from_the_start_is_found_in_the_newest_eight() -> None:
    job = slow_from_the_start(12)
    found = present(review_regular(job.rows, job.reader, 1.1, job.read_back, has_standing=False))
    causes, observations = found
    assert [(cause.kind, cause.suspects[0][0].ranks) for cause in causes] == [("slow_rank", (5,))]
    assert [one.iteration for one in observations] == list(range(4, 12))


def test_of_the_first_iterations_the_newer_half_is_looked_at() -> None:
    """Rank 5 is slow since iteration 5: at the job's first level this is most of the iterations looked at."""
    job = meeting(8, 10, lambda at, rank: (10 + 10 * (rank == 5 and at > 4)) * MS + uneven_ns(at, rank, 50_000))
    read = ReadJob(job.trace())
    for judged, count in ((10, 1), (50, 0)):
        causes, _ = present(
            review_regular(read.rows, read.reader, 1.1, read.read_back, has_standing=False, judged=judged)
        )
        assert len(causes) == count


@pytest.mark.parametrize(("beside_ms", "costs_ms"), [(0, 10), (3, 7), (8, 10)])
def test_a_cause_costs_what_comes_back_unless_another_rank_is_as_late(beside_ms: int, costs_ms: int) -> None:
    longer_ms = {5: 10, 3: beside_ms}
    job = meeting(8, 12, lambda number, rank: (20 + longer_ms.get(rank, 0)) * MS + uneven_ns(number, rank, 50_000))
    read = ReadJob(job.trace())
    (cause,), _ = present(review_regular(read.rows, read.reader, 1.1, read.read_back, has_standing=False))
    assert list(cause.explained_ns.values()) == pytest.approx([costs_ms * MS] * 8, abs=0.6 * MS)


@pytest.mark.parametrize(("iterations", "is_reviewed"), [(4, False), (5, True)])
def test_few_iterations_are_not_reviewed(iterations: int, is_reviewed: bool) -> None:
    job = slow_from_the_start(iterations)
    found = review_regular(job.rows, job.reader, 1.1, job.read_back, has_standing=False)
    assert (found is not None) == is_reviewed


@pytest.mark.parametrize("between_s", [1, 3600])
def test_a_clock_that_was_set_or_drifted_since_usual_values_were_learned_accuses_nobody(between_s: int) -> None:
    pipes = {f"pp{rank}": ("pp", (rank, rank + 4)) for rank in range(4)}
    hosts = {rank: {"host": f"host-{rank // 2}"} for rank in range(8)}
    job = LockstepJob({**pipes, "world": ("world", tuple(range(8)))}, hosts, clock="per_host")

    def body(one: LockstepJob, number: int) -> None:
        for rank in range(4):
            one.work(rank, 10 * MS + uneven_ns(number, rank, 50_000))
            one.message(f"pp{rank}", rank, rank + 4, MS)
            one.work(rank + 4, 10 * MS + uneven_ns(number, rank, 50_000))
        one.collective("world", MS)

    job.iterate(range(10), body)
    job.now_ns = {rank: ns + between_s * 1000 * MS for rank, ns in job.now_ns.items()}
    job.iterate(range(10, 20), body)
    for row in (row for rank in (4, 5) for row in (*job.rows[rank], *job.iteration_rows[rank])):
        row["start_ns"] += 5 * MS * (row["iteration"] >= 10)
    read = ReadJob(job.trace())
    read.reader.set_usual(read.rows[:10], read.read_back)
    found = present(review_regular(read.rows, read.reader, 1.1, read.read_back, has_standing=False))
    assert found[0] == []


def many_equally_late(iterations: int) -> ReadJob:
    """Each of ten groups of four has a rank that is late, all nearly alike, and nobody is slow."""
    quads = {f"tp{at}": ("tp", tuple(range(4 * at, 4 * at + 4))) for at in range(10)}
    job = LockstepJob({**quads, "world": ("world", tuple(range(40)))})

    def body(one: LockstepJob, number: int) -> None:
        for rank in range(40):
            is_late = rank % 4 == 3
            one.work(rank, (40 * MS if is_late else 10 * MS) + (number * 7 + rank * 5) % 13 * 50_000)
        for quad in quads:
            one.collective(quad, MS)
        one.collective("world", MS)

    job.iterate(range(iterations), body)
    return ReadJob(job.trace())


def test_whoever_is_read_the_path_of_each_iteration_is_certain() -> None:
    job = many_equally_late(12)
    rows, peers = job.rows[-5:], {18, 25}
    rows, columns = read_paths(rows, ToReview(True, {0}, peers), 1.1, job.reader, job.read_back)
    assert peers <= set(rows[0].columns["rank"].tolist())
    for one in hold_against_peers(rows, columns, job.reader):
        waited = {lane for lane, ns in one.attribution.path_excess_ns.items() if lane.kind != "work" and ns > 5 * MS}
        assert not waited


def slow_rank_7_in_a_large_job(
    stage: int, rings_per_stage: int, there_ns: int, back_ns: int | None, slow_ring_ns: int
) -> ReadJob:
    """Two stages with some rings each. Rank 7 is slow in what it sends its partner, or gets back, and in its ring."""
    begins = (*range(rings_per_stage), *range(stage, stage + rings_per_stage))
    rings = {f"dp{begin}": ("dp", tuple(range(begin, begin + stage, rings_per_stage))) for begin in begins}
    pipes = {f"pp{rank}": ("pp", (rank, rank + stage)) for rank in range(stage)}
    job = LockstepJob({**rings, **pipes})

    def body(one: LockstepJob, number: int) -> None:
        for rank in range(stage):
            one.work(rank, 10 * MS + (number * 7 + rank * 5) % 13 * 50_000)
            for micro_batch in range(2):
                usual_ns = MS + (number + rank + micro_batch) % 5 * 10_000
                one.message(f"pp{rank}", rank, rank + stage, there_ns if rank == 7 else usual_ns)
                one.message(f"pp{rank}", rank + stage, rank, back_ns or usual_ns if rank == 7 else usual_ns)
        for ring, (_, ranks) in rings.items():
            one.collective(ring, slow_ring_ns if 7 in ranks else 20 * MS)

    job.iterate(range(6), body)
    return ReadJob(job.trace())


@pytest.mark.slow
def test_of_a_large_ring_the_member_with_slow_messages_beside_it_has_the_slow_nic() -> None:
    job = slow_rank_7_in_a_large_job(261, 3, 4 * MS, None, 100 * MS)
    found = present(review_regular(job.rows, job.reader, 1.1, job.read_back, has_standing=False))
    assert [(cause.kind, cause.suspects[0][0].ranks) for cause in found[0]] == [("slow_nic", (7,))]


@pytest.mark.slow
def test_of_a_slow_pair_in_a_large_job_the_rings_of_both_ends_are_read_too() -> None:
    """A NIC at either end would slow its ring, of which nobody waited for the slow pair."""
    job = slow_rank_7_in_a_large_job(264, 33, 8 * MS, 8 * MS, 20 * MS)
    found = present(review_regular(job.rows, job.reader, 1.1, job.read_back, has_standing=False))
    (cause,) = found[0]
    device, probability = cause.suspects[0]
    assert (cause.kind, set(device.ranks)) == ("slow_link", {7, 271})
    assert probability > 0.6


def work_of_spikes(spikes: Collection[int], slow_until: int = 1 << 30) -> Callable[[int, int], int]:
    """Rank 3 takes longer until an iteration; rank 1 takes long in these."""

    def work_ns(iteration: int, rank: int) -> int:
        own = 12 if rank == 3 and iteration < slow_until else 10
        noise = Random(iteration * 7 + rank).randrange(200) * US
        return own * MS + (8 * MS if rank == 1 and iteration in spikes else 0) + noise

    return work_ns


@pytest.mark.parametrize("each", [None, 5])
def test_a_standing_fault_is_found_beside_another_rank_s_rare_spikes(each: int | None) -> None:
    chance = Random(1)
    later = range(17, 600, each) if each else [number for number in range(17, 600) if chance.random() < 1 / 8]
    spikes = {14, 15, 16, *later}
    job = meeting(8, 600, work_of_spikes(spikes), 2 * MS, places={rank: {"host": f"h{rank}"} for rank in range(8)})
    verdicts = analyze(job.trace()).verdicts
    assert {one.suspects[0].rank for one in verdicts if one.suspects} == {1, 3}


def test_a_standing_fault_that_was_repaired_is_over_though_its_rank_is_late_by_chance() -> None:
    chance = Random(1)
    late = {number for number in range(400, 1000) if chance.random() < 1 / 8}

    def work_ns(iteration: int, rank: int) -> int:
        is_slow = rank == 3 and (iteration < 400 or iteration in late)
        return (13 if is_slow else 10) * MS + Random(iteration * 7 + rank).randrange(200) * US

    job = meeting(8, 1000, work_ns, 2 * MS, places={rank: {"host": f"h{rank}"} for rank in range(8)})
    first = analyze(job.trace()).verdicts[0]
    assert (first.suspects[0].rank, first.close_reason) == (3, "recovered")
    assert first.iterations[1] < 500
