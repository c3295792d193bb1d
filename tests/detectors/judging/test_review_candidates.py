"""Whether evidence alone shows that a large job may have a standing fault, and which ranks a review reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.judging.reading.iteration_rows import IterationRows, split_by_iteration
from irregulars.detectors.judging.review_candidates import ToReview, late_of, ranks_to_review
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
            rank,
            {number: 100.0},
            work_ns=(50.0 + over_ms.get(rank, 0.0)) * MS,
            operators=10 - (rank in lost),
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
def test_so_is_a_pair_that_takes_twice_as_long_as_others_in_its_role_whatever_it_costs(
    took_ms: float, is_odd: bool
) -> None:
    """Of a NIC that slows a collective of all ranks nothing else may show: all collectives are equally slow."""
    rows = [with_recvs(iteration(number, {}), {40: took_ms}) for number in range(5)]
    found = ranks_to_review(rows, {"pp": 0}, topology(), 1.1)
    assert (found.is_odd, found.ranks >= {8, 40}) == (is_odd, is_odd)


def test_a_pair_that_hangs_now_and_then_is_not_odd() -> None:
    rows = [with_recvs(iteration(number, {}), {40: 4.0} if number < 2 else {}) for number in range(5)]
    assert not ranks_to_review(rows, {"pp": 0}, topology(), 1.1).is_odd


def test_ranks_that_take_turns_are_uneven_and_odd_together() -> None:
    rows = [iteration(number, {number: 30.0}) for number in range(5)]
    assert ranks_to_review(rows, {}, topology(), 1.1).is_odd


def test_the_sixteen_oddest_ranks_are_read_with_the_slowest_and_sixteen_peers_of_each_stage() -> None:
    found = review({rank: 100.0 - rank for rank in range(40, 60)})
    assert found.ranks == {0, *range(40, 56)}
    assert len(found.peers) == 16
    assert len(review({}, stages=2).peers) == 32


def test_a_rank_that_lost_operators_is_not_known_to_be_late() -> None:
    whole, lossy = iteration(0, {}), iteration(1, {7: 30.0}, lost=(7,))
    assert 7 not in late_of(lossy, topology(), [whole])
    assert late_of(iteration(1, {7: 30.0}), topology(), [whole])[7] == pytest.approx(30 * MS)
