"""What stands out in an iteration, and what it would be if it did not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from irregulars.detectors.abnormal_operators.healthy_pieces import _pace, without_slowness
from irregulars.detectors.abnormal_operators.usual_pieces import UsualPieces, learn_usual_pieces
from irregulars.detectors.path.operator_graph import OperatorGraph
from tests.detectors.operator_graphs import graph_of, row

RANKS, WORK_NS, TRANSFER_NS = 6, 100_000, 30_000


def iteration(
    number: int, *, rounds: int = 4, work: dict[int, float] | None = None, stand_ns: int = 0, transfer: float = 1.0
) -> OperatorGraph:
    """Rounds of work and a collective of all ranks.

    ``work``: how many times as long ranks work; ``stand_ns``: how much longer rank 0 works in the second round;
    ``transfer``: how many times as long the collectives take.
    """
    rows: list[dict[str, Any]] = []
    free = 0
    for at in range(rounds):
        own = [round(WORK_NS * (work or {}).get(rank, 1.0)) for rank in range(RANKS)]
        own[0] += stand_ns * (at == 1)
        end = free + max(own) + round(TRANSFER_NS * transfer)
        sequence = number * rounds + at
        rows += [row(rank, free + own[rank], end, sequence=sequence, iteration=number) for rank in range(RANKS)]
        free = end
    return graph_of(*rows, entry={(rank, number): 0 for rank in range(RANKS)})


def usual(rounds: int = 4, excess_ns: float | None = None, of: OperatorGraph | None = None) -> UsualPieces:
    """What is usual, learned from iterations that are all alike; so that `of` took `excess_ns` too long."""
    found = learn_usual_pieces(iteration(0, rounds=rounds))
    assert found is not None
    if of is not None and excess_ns is not None:
        found = found._replace(iteration_ns=float(of.end_ns.max()) - excess_ns)
    return found


def work_after(graph: OperatorGraph, usual: UsualPieces, rank: int) -> float:
    """How many times as long as usual a rank works without what was slow."""
    return float(without_slowness(graph, usual).gap_ns[graph.rank == rank].sum() / WORK_NS / 4)


def transfer_after(graph: OperatorGraph, usual: UsualPieces) -> float:
    """How many times as long as usual transfers take without what was slow."""
    last = graph.blocker == np.arange(len(graph))
    return float(without_slowness(graph, usual).transfer_ns[last].mean() / TRANSFER_NS)


def test_an_iteration_as_usual_stays_as_it_is() -> None:
    graph = iteration(0)
    healthy = without_slowness(graph, usual())
    np.testing.assert_array_equal(healthy.gap_ns, graph.gap_ns)
    np.testing.assert_array_equal(healthy.transfer_ns, graph.transfer_ns)


@pytest.mark.parametrize(("slower", "is_slow"), [(1.018, False), (1.0225, True)])
def test_a_rank_is_slow_by_four_deviations(slower: float, is_slow: bool) -> None:
    """Ranks that are always alike are taken to vary by half a percent."""
    graph = iteration(0, work={2: slower})
    assert work_after(graph, usual(), 2) == pytest.approx(1.0 if is_slow else slower, abs=1e-4)


@pytest.mark.parametrize(("share", "is_slow"), [(0.27, False), (0.33, True)])
def test_a_slow_rank_must_explain_three_tenths_of_the_excess(share: float, is_slow: bool) -> None:
    graph = iteration(0, work={2: 1.1})
    assert work_after(graph, usual(of=graph, excess_ns=4 * 0.1 * WORK_NS / share), 2) == pytest.approx(
        1.0 if is_slow else 1.1, abs=1e-4
    )


@pytest.mark.parametrize(("slower", "is_slow"), [(1.0220, False), (1.0285, True)])
def test_an_excess_of_a_fiftieth_of_the_iteration_is_the_least_that_must_be_explained(
    slower: float, is_slow: bool
) -> None:
    """The transfers take three quarters of the iteration, so that work explains little of it."""
    graph = iteration(0, work={2: slower}, transfer=10)
    known = usual(of=graph, excess_ns=0.0)
    known = known._replace(transfer_ns=np.full(len(known.transfer_ns), 10.0 * TRANSFER_NS))
    assert work_after(graph, known, 2) == pytest.approx(1.0 if is_slow else slower, abs=1e-4)


@pytest.mark.parametrize(("stand_ns", "is_set_back"), [(11_000, False), (13_500, True)])
def test_a_single_gap_that_is_far_out_is_set_to_the_usual(stand_ns: int, is_set_back: bool) -> None:
    """Gaps vary by 3 % here, so that four deviations are 12 µs."""
    graph = iteration(0, stand_ns=stand_ns)
    found = without_slowness(graph, usual(of=graph, excess_ns=0.0)._replace(gap_sigma=0.03, rank_sigma=0.1))
    assert found.gap_ns.max() == pytest.approx(WORK_NS if is_set_back else WORK_NS + stand_ns)


@pytest.mark.parametrize(("log_slower", "is_slow"), [(0.045, False), (0.055, True)])
def test_a_lane_is_slow_by_a_twentieth(log_slower: float, is_slow: bool) -> None:
    slower = float(np.exp(log_slower))
    graph = iteration(0, transfer=slower)
    after = transfer_after(graph, usual(of=graph, excess_ns=0.0))
    assert after == pytest.approx(1.0 if is_slow else slower, abs=1e-4)


@pytest.mark.parametrize(("share", "rounds", "is_slow"), [
    (0.08, 4, False), (0.10, 4, True), (0.20, 2, False), (0.20, 3, True), (0.35, 2, True),
])  # fmt: skip
def test_a_slow_lane_must_explain_a_tenth_of_the_excess_and_more_if_it_has_few_transfers(
    share: float, rounds: int, is_slow: bool
) -> None:
    graph = iteration(0, rounds=rounds, transfer=1.5)
    excess_ns = rounds * 0.5 * TRANSFER_NS / share
    assert transfer_after(graph, usual(rounds, excess_ns, graph)) == pytest.approx(1.0 if is_slow else 1.5, abs=1e-4)


def test_the_pace_of_the_job_is_that_of_the_rank_at_the_first_quarter() -> None:
    assert _pace(np.array([0.0, 0.1, 0.2, 0.3, 0.4])) == pytest.approx(0.1)
    assert _pace(np.array([0.1, 0.1, 0.1, 0.1])) == pytest.approx(0.1)
    assert _pace(np.array([0.1, 0.1, 0.1])) == 0.0  # of three nobody knows


def test_a_job_that_is_slower_as_a_whole_has_no_slow_rank() -> None:
    graph = iteration(0, work=dict.fromkeys(range(RANKS), 1.3))
    assert work_after(graph, usual(), 2) == pytest.approx(1.3)
