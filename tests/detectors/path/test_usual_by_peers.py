"""What a rank costs that is later than its peers, whether operators overlap its work or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from irregulars.detectors.job.lanes import EVERYBODY, Lane, UsualLane
from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.path.lane_tables import lane_table, usual_lanes
from irregulars.detectors.path.usual_by_peers import _programs, attribute_by_peers, lanes_by_peers
from irregulars.detectors.path.without_start_times import (
    Waits,
    Work,
    attribute_untimed,
    attribute_untimed_by_peers,
    find_waits,
)
from irregulars.messages.records import UNKNOWN
from tests.detectors.operator_graphs import BUCKETS, LATER_NS, RANKS, WORK_NS, columns_of, graph_of, row, rows_of

TOPOLOGY = Topology(RANKS, {rank: Place() for rank in range(RANKS)}, {0: tuple(range(RANKS))}, ("world",))


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_late_rank_costs_what_it_works_longer_and_no_more(is_overlapped: bool) -> None:
    found = attribute_by_peers(
        graph_of(*rows_of(6, dict.fromkeys(range(6), 4), is_overlapped=is_overlapped)), 5, TOPOLOGY
    )
    cost_ns = sum(ns for lane, ns in found.path_excess_ns.items() if lane.kind == "work")
    assert max(found.path_excess_ns, key=lambda lane: found.path_excess_ns[lane]) == Lane("work", 4)
    assert cost_ns == pytest.approx(BUCKETS * LATER_NS, rel=0.15)


@pytest.mark.parametrize("lost", [[], [0, 1, 2, 3, 5]])
def test_ranks_that_lost_the_last_row_of_an_iteration_have_their_peers_still(lost: list[int]) -> None:
    rows = rows_of(6, dict.fromkeys(range(6), 4), is_overlapped=False)
    last = max(one["sequence"] for one in rows)
    kept = [one for one in rows if one["sequence"] < last or one["rank"] not in lost]
    found = attribute_by_peers(graph_of(*kept), 5, TOPOLOGY)
    known = BUCKETS - 1  # of the last one the culprit's alone is there
    assert found.path_excess_ns[Lane("work", 4)] > 0.8 * known * LATER_NS


# --- gradients that all ranks reduce while they work on -------------------------------------------------------------

LAYERS, PAUSE_NS = 6, 4_000
GRADIENTS = 0
HOSTS = Topology(
    RANKS,
    {rank: Place(f"h{rank // 2}", rank % 2) for rank in range(RANKS)},
    {GRADIENTS: tuple(range(RANKS)), 1: (0, 1), 2: (2, 3), 3: (4, 5)},
    ("dp", "tp0", "tp1", "tp2"),
    kinds={GRADIENTS: "dp", 1: "tp", 2: "tp", 3: "tp"},
)


def rows_with_gradients(pause_ns: int, iterations: int = 6) -> list[dict[str, Any]]:
    """Each layer: work, meet the other rank of the host, and some time later hand in the gradients of the layer.

    Rank 0 works longer before each layer's meeting, by one to three times `pause_ns`. Rank 1 meets it and does not.
    """
    rows, free, reduced = [], [0] * RANKS, 0
    for iteration in range(iterations):
        for layer in range(LAYERS):
            uneven = [37 * ((7 * rank + 5 * layer + 3 * iteration) % 11) for rank in range(RANKS)]
            starts = [one + 100_000 + ns for one, ns in zip(free, uneven, strict=True)]
            starts[0] += pause_ns * (1 + iteration % 3)
            free = [max(starts[rank], starts[rank ^ 1]) + 5_000 for rank in range(RANKS)]
            handed_in = [one + 3_000 * ((3 * rank + 5 * layer + 7 * iteration) % 13) for rank, one in enumerate(free)]
            reduced = max(*handed_in, reduced) + 20_000
            number: dict[str, Any] = {"sequence": iteration * LAYERS + layer, "iteration": iteration}
            for rank in range(RANKS):
                rows.append(row(rank, starts[rank], free[rank], group=1 + rank // 2, **number))
                rows.append(row(rank, handed_in[rank], reduced, group=GRADIENTS, **number))
        free = [reduced] * RANKS
    return rows


def test_who_shares_a_host_with_a_late_rank_works_no_longer_though_it_hides_less_behind_the_gradients() -> None:
    """All others wait long for the gradients of rank 0 and 1, and work meanwhile: their gaps begin late."""
    as_always, late = (
        attribute_by_peers(graph_of(*rows_with_gradients(pause_ns)), 5, HOSTS).work_excess_ns
        for pause_ns in (0, PAUSE_NS)
    )
    longer_ns = {rank: late[rank] - as_always[rank] for rank in range(RANKS)}
    gaps = LAYERS - 1  # nobody said when the iteration began
    assert longer_ns.pop(0) == pytest.approx(gaps * 3 * PAUSE_NS, rel=0.05)
    assert all(abs(ns) < PAUSE_NS for ns in longer_ns.values())


# --- batches --------------------------------------------------------------------------------------------------------


def rows_in_ring(late: int, rounds: int = 4, iterations: int = 6) -> list[dict[str, Any]]:
    """Each round: work, `LATER_NS` longer for the late rank, and a batch with both neighbours in a ring."""
    rows, free = [], [0] * RANKS
    for at in range(rounds * iterations):
        starts = [free[rank] + WORK_NS + 37 * ((7 * rank + 5 * at) % 11) for rank in range(RANKS)]
        starts[late] += LATER_NS
        free = [max(starts[rank - 1], starts[rank], starts[(rank + 1) % RANKS]) + 10_000 for rank in range(RANKS)]
        number: dict[str, Any] = {"sequence": at, "iteration": at // rounds}
        for rank in range(RANKS):
            rows.append(row(rank, starts[rank], free[rank], "send", peer=(rank + 1) % RANKS, **number))
            rows.append(row(rank, starts[rank], free[rank], "recv", peer=(rank - 1) % RANKS, **number))
    return rows


@pytest.mark.parametrize("late", range(1, RANKS - 1))
def test_a_late_rank_is_found_whichever_part_of_its_batches_the_others_wait_for(late: int) -> None:
    found = attribute_by_peers(graph_of(*rows_in_ring(late)), 5, TOPOLOGY).path_excess_ns
    assert found[Lane("work", late)] > 2 * LATER_NS


# --- work that nobody sees ------------------------------------------------------------------------------------------


def after_a_reduction(*gaps_ns: int, lasting: int = 100) -> dict[int, float]:
    """What each rank is said to work longer if it began a second reduction so long after the first."""
    rows = [row(rank, 0, lasting) for rank in range(len(gaps_ns))]
    rows += [row(rank, lasting + ns, lasting + 60_000, sequence=1) for rank, ns in enumerate(gaps_ns)]
    topology = Topology(len(gaps_ns), {}, {0: tuple(range(len(gaps_ns)))}, ("world",))
    return dict(attribute_by_peers(graph_of(*rows), 0, topology).work_excess_ns)


def test_gaps_of_peers() -> None:
    # Ranks whose work hides behind the queue say nothing of how long the others should work: three ranks were held up
    # until their queue was empty, and what they did meanwhile left no gap.
    assert after_a_reduction(0, 0, 0, 50, 50) == dict.fromkeys(range(5), 0)
    assert after_a_reduction(0, 0, 0, 50, 50, 80) == {**dict.fromkeys(range(5), 0), 5: 30}
    # A rank that alone was not held up is compared with those that were
    assert after_a_reduction(0, 0, 0, 50) == {0: 0, 1: 0, 2: 0, 3: 50}
    # A gap as long as a launch takes is no work: behind a reduction of 100 us three ranks were held up, and began the
    # next one 0.9 us after its end.
    assert after_a_reduction(900, 900, 900, 50_000, 50_000, lasting=100_000) == dict.fromkeys(range(5), 0)


@pytest.mark.parametrize(("gap_ns", "is_work"), [(900, False), (1_100, True)])
def test_a_hundredth_of_the_time_since_the_one_before_is_a_launch(gap_ns: int, is_work: bool) -> None:
    """If the short gaps of three ranks are work, they say what is usual, and the two others work longer."""
    longer_ns = after_a_reduction(gap_ns, gap_ns, gap_ns, 50_000, 50_000, lasting=100_000)
    assert (longer_ns[3] > 0) is is_work


def lanes_of_peers(*mean_ns: int, is_one_stage: bool, receivers_below: str = "") -> list[UsualLane]:
    """What is usual for messages that took so long, of pairs of one stage or each of its own stages.

    ``receivers_below``: the switches of the receivers; all senders are below switch a.
    """
    ranks = range(2 * len(mean_ns))
    rows = [
        one
        for number, ns in enumerate(mean_ns)
        for one in (
            row(2 * number, 0, ns, "send", peer=2 * number + 1), row(2 * number + 1, 0, ns, "recv", peer=2 * number)
        )
    ]  # fmt: skip
    stage_of = {rank: rank % 2 if is_one_stage else rank for rank in ranks}
    below = "".join(f"a{one}" for one in receivers_below) or [None] * len(ranks)
    places = {rank: Place(f"h{rank}", switch=switch) for rank, switch in zip(ranks, below, strict=True)}
    topology = Topology(len(ranks), places, {0: tuple(ranks)}, ("pp",), stage_of)
    return list(lanes_by_peers(lane_table(graph_of(*rows)), 0, topology).values())


def lanes(*mean_ns: int, is_one_stage: bool, receivers_below: str = "") -> list[float]:
    """Mean times of `lanes_of_peers`."""
    found = lanes_of_peers(*mean_ns, is_one_stage=is_one_stage, receivers_below=receivers_below)
    return [one.mean_ns for one in found]


def test_peers_of_lanes() -> None:
    # Two lanes of one stage are peers and four of any stage
    assert lanes(10, is_one_stage=True) == []
    assert lanes(10, 30, is_one_stage=True) == [10, 10]
    assert lanes(10, 20, 30, is_one_stage=False) == []
    assert lanes(10, 20, 30, 40, is_one_stage=False) == [20, 20, 20, 20]
    # Messages below one switch are no peers of those to another
    assert lanes(10, 30, 10, 30, is_one_stage=True, receivers_below="abab") == [10, 30, 10, 30]
    assert lanes(10, 30, 10, 30, is_one_stage=True, receivers_below="bcbc") == [10, 10, 10, 10]


def test_messages_of_which_one_end_was_read_are_no_peers_of_those_with_both() -> None:
    """They hold the waiting for the sender: of a large job a review reads a few ranks."""
    both = {(0, 1): 10, (2, 3): 12, (4, 5): 30}
    ends = [
        (rank, name, peer, ns) for (s, r), ns in both.items() for rank, name, peer in ((s, "send", r), (r, "recv", s))
    ]
    alone = [(rank, "recv", rank + 10, 500 + rank) for rank in range(6, 10)]
    graph = graph_of(*(row(rank, 0, ns, name, peer=peer) for rank, name, peer, ns in (*ends, *alone)))
    topology = Topology(20, {rank: Place(f"h{rank}") for rank in range(20)}, {0: tuple(range(20))}, ("pp",))
    found = attribute_by_peers(graph, 0, topology).lanes
    assert {lane.first: own.usual_ns for lane, own in found.items() if own.usual_ns < 500} == {0: 12, 2: 12, 4: 12}
    assert len(found) == 7


def noise(*mean_ns: int) -> float:
    (found,) = {one.noise_ns for one in lanes_of_peers(*mean_ns, is_one_stage=True)}
    return found


def test_noise_of_peers() -> None:
    # The noise of peers is their robust deviation
    assert noise(90, 100, 110, 100, 120, 100, 80) == pytest.approx(1.4826 * 10, rel=1e-3)
    # Where a device slows half of the lanes that is not their noise: half of them take four times as long: by the
    # median distance they would vary by as much.
    assert noise(100, 98, 99, 100, 400, 402, 401, 399) == 2.0
    assert noise(100, 130) == pytest.approx(1.4826 * 15, rel=1e-3)  # of two who knows


def test_a_transfer_counts_once_however_many_of_its_members_were_read() -> None:
    """Of two slow collectives of stage 0 all members were read, of two quick ones of stage 1 the last one alone."""
    took = {0: 300, 1: 300, 2: 100, 3: 100}
    rows = [
        row(4 * group + member, 10, 10 + ns, group=group, size=1e6)
        for group, ns in took.items()
        for member in range(4 if ns == 300 else 1)
    ]
    members = {group: tuple(range(4 * group, 4 * group + 4)) for group in took}
    stage_of = {rank: rank // 8 for rank in range(16)}
    places = {rank: Place(f"h{rank}") for rank in range(16)}
    kinds = dict.fromkeys(took, "dp")
    topology = Topology(16, places, members, ("dp0", "dp1", "dp2", "dp3"), stage_of, kinds=kinds)
    excess_ns = attribute_by_peers(graph_of(*rows), 0, topology).path_excess_ns
    assert max(excess_ns.values()) == 200
    assert max(excess_ns, key=lambda lane: excess_ns[lane]).first in (0, 1)


def test_ranks_whose_programs_differ_are_no_peers_though_nobody_announced_their_stages() -> None:
    """Ranks 0 and 1 reduce twice, ranks 2 and 3 three times in as many communicators of their own."""
    rows = []
    for rank, times in enumerate((2, 2, 3, 3)):
        rows += [row(rank, 100 * n, 100 * n + 50 + rank, group=rank // 2, sequence=n) for n in range(times)]
    topology = Topology(4, {}, {0: (0, 1), 1: (2, 3)}, ("a", "b"))
    graph = graph_of(*rows)
    program = dict(zip(graph.rank.tolist(), _programs(graph, graph.operator).tolist(), strict=True))
    assert program[0] == program[1] != program[2] == program[3]
    assert attribute_by_peers(graph, 0, topology).work_excess_ns.keys() == {0, 1, 2, 3}


def test_work_before_shards_and_replicas_of_data_is_told_apart() -> None:
    """Both are of kind dp and of four ranks; all ranks work for long before the one, and hardly before the other."""
    groups = [tuple(range(4 * shard, 4 * shard + 4)) for shard in range(4)]
    groups += [tuple(range(replica, 16, 4)) for replica in range(4)]
    rows = []
    for iteration in range(4):
        for number, ranks in enumerate(groups):
            start = 1_000 * iteration + (840 if number < 4 else 900)
            rows += [row(rank, start, start + 50, group=number, sequence=iteration, iteration=iteration)
                     for rank in ranks]  # fmt: skip
    names = tuple(f"dp{number}" for number in range(8))
    topology = Topology(16, {}, dict(enumerate(groups)), names, kinds=dict.fromkeys(range(8), "dp"))
    entry = {(rank, iteration): 1_000 * iteration for rank in range(16) for iteration in range(4)}
    found = attribute_by_peers(graph_of(*rows, entry=entry), 3, topology)
    assert max(found.path_excess_ns.values()) == 0


WORLD = Lane("collective", 0)


def waits_of(*rows: dict[str, Any]) -> Waits:
    """The operators without their starts."""
    columns = columns_of(list(rows))
    return find_waits(columns | {"start_ns": np.full(len(rows), UNKNOWN)})


def lockstep(iteration: int, work: tuple[int, ...], transfer: int = 4) -> list[dict[str, Any]]:
    """All ranks work and meet in one all_reduce."""
    past = max(work) + transfer
    return [row(rank, own, past, sequence=iteration, iteration=iteration) for rank, own in enumerate(work)]


def test_waits_by_the_quickest_member() -> None:
    # Who spends least inside came last
    waits = waits_of(*lockstep(0, (10, 25, 12)))
    assert waits.waited_ns.tolist() == [15, 0, 13]
    assert waits.made_wait_ns.tolist() == [0, 15, 0]
    assert waits.table.lanes == [WORLD]
    assert waits.table.sums_ns.tolist() == [[4]]
    # What says nothing is left out
    pair = [row(0, 0, 9, "send", peer=1, sequence=9), row(1, 5, 9, "recv", peer=0, sequence=9)]
    lost = lockstep(1, (10, 25, 12))[:2]
    open_row = [row(0, 0, None, sequence=5)]
    rooted = [row(rank, 40, past, "reduce", sequence=7) for rank, past in enumerate((70, 41, 42))]  # to rank 0
    waits = waits_of(*lockstep(0, (10, 25, 12)), *pair, *lost, *open_row, *rooted)
    assert set(waits.iteration.tolist()) == {0}
    assert len(waits.rank) == 3
    assert len(waits_of(*pair).rank) == 0


def usual_of(*iterations: int) -> tuple[Waits, dict[int, float]]:
    regular = [one for number in iterations for one in lockstep(number, (10, 10, 12))]
    return waits_of(*regular), {0: 10.0, 1: 10.0, 2: 12.0}


def test_excess_without_start_times() -> None:
    # The rank that others waited for has the excess
    regular, work_ns = usual_of(0, 1, 2)
    work = Work({0: 10.0, 1: 30.0, 2: 12.0}, work_ns)
    found = attribute_untimed(waits_of(*lockstep(7, (10, 30, 12))), 7, usual_lanes(regular.table), work)
    assert found.path_excess_ns == {Lane("work", 1): 20.0, WORLD: 0.0}
    assert found.pieces[Lane("work", 1)][1:4] == (1, row(0, 0, 1)["operator"], 0)
    assert found.work_excess_ns == {0: 0.0, 1: 20.0, 2: 0.0}
    # A slow transfer is its communicators and accuses no device
    regular, work_ns = usual_of(0, 1, 2)
    slow = waits_of(*lockstep(7, (10, 10, 12), transfer=40))
    found = attribute_untimed(slow, 7, usual_lanes(regular.table), Work(work_ns, work_ns))
    assert found.path_excess_ns == {Lane("work", 2): 0.0, WORLD: 36.0}
    assert found.lanes == {}
    # Once is no proof
    regular, work_ns = usual_of(0, 1, 2)
    found = attribute_untimed(regular, 1, usual_lanes(regular.table), Work(work_ns, work_ns))
    assert found.incomplete == {0, 1, 2}
    # What all ranks work longer is nobodys
    regular, work_ns = usual_of(0, 1, 2)
    longer = waits_of(*lockstep(7, (20, 20, 24)))
    found = attribute_untimed(longer, 7, usual_lanes(regular.table), Work({0: 20.0, 1: 20.0, 2: 24.0}, work_ns, 2.0))
    assert found.path_excess_ns[EVERYBODY] == 12.0
    assert found.path_excess_ns[Lane("work", 2)] == 0.0
    # An iteration without collectives says nothing
    regular, work_ns = usual_of(0)
    found = attribute_untimed(regular, 5, usual_lanes(regular.table), Work(work_ns, work_ns))
    assert (found.path_excess_ns, found.work_excess_ns) == ({}, {0: 0.0, 1: 0.0, 2: 0.0})


def test_a_stage_with_fewer_collectives_waits_less_often_and_is_not_waited_for() -> None:
    """Ranks 0 to 2 meet four times and 3 to 5 sixteen times; one of these works longer once, others take turns."""
    rows = []
    for group, (members, meetings) in enumerate([((0, 1, 2), 4), ((3, 4, 5), 16)]):
        for sequence in range(meetings):
            at = 100 * sequence
            works = {rank: 10 + (rank + sequence) % 3 for rank in members}
            if (group, sequence) == (1, 7):
                works[4] += 20
            past = at + max(works.values()) + 4
            rows += [row(rank, at + own, past, group=group, sequence=sequence) for rank, own in works.items()]
    usual_ns = dict.fromkeys(range(6), 100.0)
    found = attribute_untimed(waits_of(*rows), 0, {}, Work({**usual_ns, 4: 120.0}, usual_ns))
    assert found.path_excess_ns == {Lane("work", 4): 20.0}


@pytest.mark.parametrize("late", [0, 2])
def test_peers_say_who_is_late(late: int) -> None:
    work = {rank: 30.0 if rank == late else 10.0 for rank in range(3)}
    waits = waits_of(*lockstep(0, tuple(int(ns) for ns in work.values())))
    late_ns = {rank: ns - 10.0 for rank, ns in work.items()}
    found = attribute_untimed_by_peers(waits, 0, work, late_ns, Topology(3, {}, {0: (0, 1, 2)}, ("world",)))
    assert found.path_excess_ns[Lane("work", late)] == 20.0
