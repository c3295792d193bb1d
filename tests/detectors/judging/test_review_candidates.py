"""Whether evidence alone shows that a large job may have a standing fault, and which ranks a review reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.judging.iteration_rows import IterationRows, split_by_iteration
from irregulars.detectors.judging.review_candidates import ToReview, lanes_of_slow_switch, late_of, ranks_to_review
from irregulars.detectors.path.ranks_to_read import LaneSums, lanes_by_role
from irregulars.messages.evidence import CLASS_COLUMNS, concatenate
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import RECV
from tests.streams.evidence_rows import MS, evidence_of

RANKS = 64


def topology(stages: int = 1) -> Topology:
    places = {rank: Place(f"h{rank // 8}", rank % 8, "eth0") for rank in range(RANKS)}
    stage_of = {rank: rank * stages // RANKS for rank in range(RANKS)} if stages > 1 else {}
    return Topology(RANKS, places, {}, (), stage_of=stage_of)


def iteration(number: int, over_ms: Mapping[int, float], lost: tuple[int, ...] = ()) -> IterationRows:
    """An iteration of 100 ms; ranks work 50 ms, and some of them longer."""
    parts = [
        evidence_of(
            rank, {number: 100.0}, work_ns=(50.0 + over_ms.get(rank, 0.0)) * MS, operators=10 - (rank in lost)
        )
        for rank in range(RANKS)
    ]
    (rows,) = split_by_iteration(concatenate(parts), np.ones(RANKS, dtype=bool))
    return rows


def with_recvs(rows: IterationRows, took_ms: Mapping[int, float]) -> IterationRows:
    """Let each rank of the second half receive one message from its partner in the first half, in 1 ms or so."""
    receivers = range(RANKS // 2, RANKS)
    values = {
        "communicator": np.zeros(len(receivers), dtype=np.int64),
        "operator": np.full(len(receivers), RECV),
        "peer": np.arange(RANKS // 2),
        "count": np.ones(len(receivers), dtype=np.int64),
        "shortest_ns": np.array([took_ms.get(rank, 1.0 + 0.001 * (rank % 7)) * MS for rank in receivers]),
    }
    assert values.keys() == CLASS_COLUMNS.keys()
    return replace(rows, names=("pp",), classes=Ragged((np.arange(RANKS) >= RANKS // 2).astype(np.int64), values))


def review(over_ms: Mapping[int, float], stages: int = 1) -> ToReview:
    rows = [iteration(number, over_ms) for number in range(5)]
    return ranks_to_review(rows, {}, topology(stages), 1.1)


def test_a_healthy_job_has_nothing_odd() -> None:
    assert not review({}).is_odd


@pytest.mark.parametrize(("over_ms", "is_odd"), [(4.0, False), (4.9, False), (5.1, True), (6.0, True)])
def test_a_rank_is_odd_if_it_costs_half_of_what_delta_allows(over_ms: float, is_odd: bool) -> None:
    found = review({7: over_ms})
    assert (found.is_odd, 7 in found.ranks) == (is_odd, is_odd)


@pytest.mark.parametrize(("over_ms", "is_odd"), [(4.9, False), (5.1, True)])
def test_so_is_a_stage(over_ms: float, is_odd: bool) -> None:
    assert review(dict.fromkeys(range(16), over_ms), stages=4).is_odd == is_odd


@pytest.mark.parametrize(("took_ms", "is_odd"), [(1.9, False), (2.1, True)])
def test_so_is_a_pair_that_takes_twice_as_long_as_others_in_its_role(took_ms: float, is_odd: bool) -> None:
    """Of a NIC that slows a collective of all ranks nothing else may show: all collectives are equally slow."""
    rows = [with_recvs(iteration(number, {}), {40: took_ms}) for number in range(5)]
    found = ranks_to_review(rows, {"pp": 0}, topology(), 1.1)
    assert (found.is_odd, found.ranks >= {8, 40}) == (is_odd, is_odd)


def test_odd_ranks_and_pairs() -> None:
    # A pair that hangs now and then is not odd
    rows = [with_recvs(iteration(number, {}), {40: 4.0} if number < 2 else {}) for number in range(5)]
    assert not ranks_to_review(rows, {"pp": 0}, topology(), 1.1).is_odd
    # Ranks that take turns are uneven and odd together
    rows = [iteration(number, {number: 30.0}) for number in range(5)]
    assert ranks_to_review(rows, {}, topology(), 1.1).is_odd
    # The sixteen oddest ranks are read with the slowest and sixteen peers of each stage
    found = review({rank: 100.0 - rank for rank in range(40, 60)})
    assert found.ranks == {0, *range(40, 56)}
    assert len(found.peers) == 16
    assert len(review({}, stages=2).peers) == 32
    # A rank that lost operators is not known to be late
    whole, lossy = iteration(0, {}), iteration(1, {7: 30.0}, lost=(7,))
    assert 7 not in late_of(lossy, topology(), [whole])
    assert late_of(iteration(1, {7: 30.0}), topology(), [whole])[7] == pytest.approx(30 * MS)


PER_SWITCH = 16
JOB = Topology(
    world_size=3 * PER_SWITCH,
    places={rank: Place(f"node-{rank}", 0, "nic-0", f"leaf-{rank // PER_SWITCH}") for rank in range(3 * PER_SWITCH)},
    members={},
    stage_of={rank: rank // PER_SWITCH for rank in range(3 * PER_SWITCH)},
)
"""Three stages, each below its own switch; each rank sends to those of the other stages."""


def chosen(iterations: Sequence[LaneSums], topology: Topology) -> list[Lane]:
    return lanes_of_slow_switch(iterations, [lanes_by_role(one, topology) for one in iterations], topology)


def sums(slow: Collection[int], factor: float, seed: int = 0) -> LaneSums:
    """Transfers of 1 ms; those that pass the `slow` switches take `factor` of it."""
    random = np.random.default_rng(seed)
    mean_ns = {}
    for source in range(3 * PER_SWITCH):
        for target in range(3 * PER_SWITCH):
            if source // PER_SWITCH != target // PER_SWITCH:
                is_slow = {source // PER_SWITCH, target // PER_SWITCH} & set(slow)
                mean_ns[Lane("pair", source, target)] = MS * random.normal(factor if is_slow else 1.0, 0.05)
    return LaneSums(mean_ns, dict.fromkeys(mean_ns, 4))


def test_no_switch_is_odd() -> None:
    # Nothing is odd where all switches are alike
    assert chosen([sums((), 1.0, seed) for seed in range(5)], JOB) == []
    # Without iterations or switches there is nothing to look at
    assert chosen([], JOB) == []
    bare = Topology(JOB.world_size, {}, {}, stage_of=JOB.stage_of)
    assert chosen([sums((0,), 3.0)], bare) == []


@pytest.mark.parametrize("slow", range(4))
def test_a_slow_switch_has_lanes_read_of_it_and_beside_it(slow: int) -> None:
    """Eight switches carry ranks of both stages: lanes of one role pass different switches."""
    half, per_switch = 64, 8

    def leaf(rank: int) -> int:
        return rank % half // per_switch

    places = {rank: Place(f"node-{rank}", 0, "nic-0", f"leaf-{leaf(rank)}") for rank in range(2 * half)}
    job = Topology(2 * half, places, {}, stage_of={rank: rank // half for rank in range(2 * half)})
    random = np.random.default_rng(slow)
    mean_ns = {}
    for rank in range(half):
        other = half + (rank + per_switch) % half
        for source, target in ((rank, other), (other, rank)):
            factor = 3.0 if slow in (leaf(source), leaf(target)) else 1.0
            mean_ns[Lane("pair", source, target)] = MS * random.normal(factor, 0.05)
    found = chosen([LaneSums(mean_ns, dict.fromkeys(mean_ns, 4))], job)
    passing = [lane for lane in found if slow in (leaf(lane.first), leaf(lane.second))]
    assert len(passing) >= 16
    assert 8 <= len(found) - len(passing) <= 16


# --- on either side of each threshold -------------------------------------------------------------------------------


def between(lanes: int, factor: float, peers: int = 6) -> tuple[LaneSums, Topology]:
    """Pairs of the same role: as many pass leaf-0 and take `factor` ms, and `peers` pass leaf-1 and take 1 ms."""
    ranks = 2 * (lanes + peers)
    of_0 = set(range(2 * lanes))
    places = {
        rank: Place(f"node-{rank}", 0, "nic-0", "leaf-0" if rank in of_0 else "leaf-1") for rank in range(ranks)
    }
    pairs = [Lane("pair", rank, rank + 1) for rank in range(0, ranks, 2)]
    mean_ns = {lane: MS * (factor if lane.first in of_0 else 1.0) for lane in pairs}
    return LaneSums(mean_ns, dict.fromkeys(mean_ns, 4)), Topology(ranks, places, {})


def read(lanes: int, factor: float, peers: int = 20) -> list[Lane]:
    """Lanes that are chosen to be read, of pairs that are all of one role."""
    sums_of, topology = between(lanes, factor, peers)
    return lanes_of_slow_switch([sums_of], [[list(sums_of.mean_ns)]], topology)


@pytest.mark.parametrize(("factor", "is_read"), [(1.9, False), (2.1, True)])
def test_a_switch_is_read_whose_lanes_take_twice_as_long(factor: float, is_read: bool) -> None:
    assert bool(read(10, factor)) == is_read


@pytest.mark.parametrize(("lanes", "is_read"), [(3, False), (4, True)])
def test_a_switch_with_few_lanes_is_not_looked_at_as_one(lanes: int, is_read: bool) -> None:
    assert bool(read(lanes, 3.0)) == is_read


@pytest.mark.parametrize(("peers", "is_read"), [(3, False), (4, True)])
def test_with_few_lanes_of_a_role_nobody_knows_what_is_usual(peers: int, is_read: bool) -> None:
    """Nine pairs pass the slow switch, in roles of as many lanes each, of which the quicker half does not."""
    sums_of, topology = between(12, 3.0, peers=12)
    slow, usual = list(sums_of.mean_ns)[:12], list(sums_of.mean_ns)[12:]
    roles = [slow[at : at + peers // 2] + usual[at : at + (peers + 1) // 2] for at in range(0, 12, peers // 2)]
    assert bool(lanes_of_slow_switch([sums_of], [[*roles]], topology)) == is_read


def test_of_a_slow_switch_the_sixteen_slowest_lanes_and_the_sixteen_fastest_are_read() -> None:
    assert len(read(40, 3.0, peers=60)) == 16 + 16
