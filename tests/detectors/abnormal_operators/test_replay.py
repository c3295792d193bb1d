from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.abnormal_operators.replay import (
    MOST_ROUNDS,
    _pace,
    abnormal_ratios,
    replay,
    without_slowness,
)
from irregulars.detectors.abnormal_operators.usual_pieces import (
    UsualPieces,
    huber_means,
    iteration_ns,
    learn_usual_pieces,
    log_ratios,
    share_above_usual,
    shrink_together,
    spread_of_pieces,
)
from irregulars.detectors.path.operator_graph import OperatorGraph, build_graph
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import SimulatorSettings
from tests.detectors.known_operators import ABNORMAL_RATIO, graph_of_iterations, read_operators
from tests.detectors.operator_graphs import at, graph_of, logged_graph, row
from tests.present import present

SETTINGS = SimulatorSettings(
    dp=2, pp=2, tp=2, micro_batches=4, iterations=16, gpus_per_host=2, bandwidth_period_ms=0.0
)  # fmt: skip
FAULTY = 15


def pieces(graph: OperatorGraph) -> tuple[np.ndarray, np.ndarray]:
    return graph.gap_ns.astype(np.float64), graph.transfer_ns.astype(np.float64)


UNTIDY = replace(
    SETTINGS, is_gradient_overlapped=True, gradient_buckets=3, is_send_buffered=True, has_loss_reduction=True,
    rank_spread_ratio=0.02, micro_batch_spread_ratio=0.03, has_data_broadcast=True,
)  # fmt: skip
each_job = pytest.mark.parametrize("job", [SETTINGS, UNTIDY], ids=["plain", "untidy"])


def judged(job: SimulatorSettings) -> tuple[np.ndarray, np.ndarray]:
    """Which operators of the faulty iteration are abnormal, and their ratios."""
    reference, _ = graph_of_iterations(job, range(4, 14))
    graph, is_abnormal = graph_of_iterations(job, [FAULTY])
    usual = present(learn_usual_pieces(reference))
    return is_abnormal, abnormal_ratios(graph, usual)


def f1(is_abnormal: np.ndarray, called: np.ndarray) -> float:
    return float(2 * (is_abnormal & called).sum() / (is_abnormal.sum() + called.sum()))


@each_job
def test_with_the_same_pieces_everything_happens_when_it_did(job: SimulatorSettings) -> None:
    graph, _ = graph_of_iterations(job, [3, 4])
    again = replay(graph, *pieces(graph))
    np.testing.assert_allclose(again.start_ns, graph.start_ns, atol=2)
    np.testing.assert_allclose(again.end_ns, graph.end_ns, atol=2)


def test_replay_sets_waiting_free_along_chains() -> None:
    # Who was late and is not any more is waited for no longer
    graph = graph_of(row(0, 100, 160), row(1, 150, 160), entry={(0, 0): 0, (1, 0): 0})
    gap_ns, transfer_ns = pieces(graph)
    gap_ns[at(graph, 1, 150)] = 90.0
    again = replay(graph, gap_ns, transfer_ns)
    assert again.start_ns[at(graph, 1, 150)] == 90
    assert again.end_ns.tolist() == [110, 110]
    # Delays travel over chains of ranks
    rows = [row(rank, 10 * rank, 10 * rank + 10, "send", group=1, sequence=rank, peer=rank + 1) for rank in range(5)]
    rows += [row(rank + 1, 0, 10 * rank + 10, "recv", group=1, sequence=rank, peer=rank) for rank in range(5)]
    graph = graph_of(*rows, entry={(rank, 0): 0 for rank in range(6)})
    gap_ns, transfer_ns = pieces(graph)
    gap_ns[at(graph, 0, 0)] = 7.0
    again = replay(graph, gap_ns, transfer_ns)
    np.testing.assert_array_equal(again.end_ns, graph.end_ns + 7)


def chain(meetings: int) -> OperatorGraph:
    """Each rank meets the next one; each comes 100 later than the one before, which so waits for it."""
    rows = []
    for number in range(meetings):
        end = 100 * (number + 1) + 10
        rows.append(row(number, 100 * number + (20 if number else 0), end, group=number))
        rows.append(row(number + 1, 100 * (number + 1), end, group=number))
    return graph_of(*rows, entry={(rank, 0): 0 for rank in range(meetings + 1)})


@pytest.mark.parametrize(("meetings", "settles"), [(MOST_ROUNDS - 10, True), (MOST_ROUNDS + 10, False)])
def test_a_replay_in_which_partners_change_for_ever_says_that_it_did_not_settle(meetings: int, settles: bool) -> None:
    """The first rank is late, so that at each meeting it is not the next rank any more who comes last."""
    graph, late_ns = chain(meetings), 1_000_000
    gap_ns, transfer_ns = pieces(graph)
    gap_ns[at(graph, 0, 0)] = late_ns
    again = replay(graph, gap_ns, transfer_ns)
    if settles:
        assert again.end_ns.max() == late_ns + 10 + 20 * (meetings - 1)
    else:
        assert np.isnan(again.start_ns).all()
        assert np.isnan(again.end_ns).all()


def test_rows_that_wait_for_each_other_in_a_circle_have_no_times() -> None:
    """Each rank ran one collective, then the other; by their clocks each waited for the other first."""
    us = 1_000
    graph = logged_graph(
        row(0, 0, 50 * us, group=1), row(0, 60 * us, 70 * us + 1, group=2),
        row(1, 0, 50 * us, group=2), row(1, 60 * us, 70 * us + 1, group=1),
    )  # fmt: skip
    assert np.isnan(replay(graph, *pieces(graph)).end_ns).all()
    usual = present(learn_usual_pieces(graph))
    assert np.isnan(abnormal_ratios(graph, usual)).all()


@each_job
@pytest.mark.parametrize("fault", [
    "slow_rank:rank=5,factor=1.5", "slow_rank:rank=1,add_ms=60", "slow_nic:rank=3,factor=20",
    "slow_host:host=1,factor=1.3",
])  # fmt: skip
def test_abnormal_operators_are_found(job: SimulatorSettings, fault: str) -> None:
    is_abnormal, ratios = judged(replace(job, faults=(parse_fault(f"{fault},from={FAULTY}"),)))
    assert is_abnormal.any()
    assert f1(is_abnormal, ratios > ABNORMAL_RATIO) > 0.75


@each_job
def test_in_a_healthy_iteration_hardly_any_operator_is_abnormal(job: SimulatorSettings) -> None:
    _, ratios = judged(job)
    assert (ratios > ABNORMAL_RATIO).mean() < 0.02


def test_a_job_that_works_longer_as_a_whole_has_no_abnormal_rank() -> None:
    _, ratios = judged(replace(SETTINGS, workload_changes=((FAULTY, 1.3),)))
    assert (ratios > ABNORMAL_RATIO).mean() < 0.05


def test_other_names_of_ranks_and_another_time_change_nothing() -> None:
    job = replace(SETTINGS, faults=(parse_fault(f"slow_rank:rank=5,factor=1.5,from={FAULTY}"),))
    found = []
    for by, later_ns in ((0, 0), (700, 86_400_000_000_000)):
        reference, _ = graph_of_iterations(job, range(4, 14), rank_by=by, later_ns=later_ns)
        graph, _ = graph_of_iterations(job, [FAULTY], rank_by=by, later_ns=later_ns)
        usual = present(learn_usual_pieces(reference))
        found.append(abnormal_ratios(graph, usual))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3)


def test_unknown_operators_are_left_as_they_are() -> None:
    # Operators that were never seen before are left as they are
    usual = present(
        learn_usual_pieces(graph_of(*(row(rank, 0, 10, iteration=i) for rank in (0, 1) for i in range(5))))
    )
    graph = graph_of(row(7, 0, 50, group=3, iteration=9), row(8, 40, 50, group=3, iteration=9))
    np.testing.assert_array_equal(abnormal_ratios(graph, usual), [1.0, 1.0])
    # Nothing to learn from and nothing to judge
    assert learn_usual_pieces(graph_of()) is None
    usual = present(learn_usual_pieces(graph_of(row(0, 0, 10), row(1, 0, 10))))
    assert len(abnormal_ratios(graph_of(), usual)) == 0


@pytest.mark.parametrize(("recording", "least"), [("gloo-slow-nic", 0.2), ("gloo-slow-link", 0.2)])
def test_on_real_jobs_slow_transfers_are_abnormal_on_all_ranks(recording: str, least: float) -> None:
    assert min(abnormal_share(recording)) > least


@pytest.mark.parametrize(("recording", "late"), [("gloo-slow-rank", 2), ("gloo-slow-compute", 3)])
def test_on_real_jobs_victims_of_a_late_rank_are_abnormal_and_it_is_not(recording: str, late: int) -> None:
    share = abnormal_share(recording)
    assert share[late] < min(share[rank] for rank in range(4) if rank != late) / 2


def abnormal_share(recording: str) -> list[float]:
    """Part of each rank's operators that are abnormal in the faulty iterations of a recording."""
    columns = read_operators(recording)
    entry_ns: dict[tuple[int, int], int] = {}  # when each rank had ended the iteration before
    ends_ns = columns["start_ns"] + columns["elapsed_ns"].astype(np.int64)
    for rank, before, end_ns in zip(columns["rank"].tolist(), columns["iteration"].tolist(), ends_ns.tolist(),
                                    strict=True):  # fmt: skip
        entry_ns[rank, before + 1] = max(end_ns, entry_ns.get((rank, before + 1), 0))

    def graph_of_range(iterations: range) -> OperatorGraph:
        own = np.isin(columns["iteration"], iterations)
        return build_graph({name: column[own] for name, column in columns.items()}, entry_ns)

    usual = present(learn_usual_pieces(graph_of_range(range(50, 60))))
    called: list[list[float]] = [[], [], [], []]
    for iteration in range(60, 80):
        graph = graph_of_range(range(iteration, iteration + 1))
        ratios = abnormal_ratios(graph, usual)
        for rank in range(4):
            called[rank].append(float((ratios[graph.rank == rank] > ABNORMAL_RATIO).mean()))
    return [float(np.mean(one)) for one in called]


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
    for place in range(rounds):
        own = [round(WORK_NS * (work or {}).get(rank, 1.0)) for rank in range(RANKS)]
        own[0] += stand_ns * (place == 1)
        end = free + max(own) + round(TRANSFER_NS * transfer)
        sequence = number * rounds + place
        rows += [row(rank, free + own[rank], end, sequence=sequence, iteration=number) for rank in range(RANKS)]
        free = end
    return graph_of(*rows, entry={(rank, number): 0 for rank in range(RANKS)})


def usual(rounds: int = 4, excess_ns: float | None = None, of: OperatorGraph | None = None) -> UsualPieces:
    """What is usual, learned from iterations that are all alike; so that `of` took `excess_ns` too long."""
    found = present(learn_usual_pieces(iteration(0, rounds=rounds)))
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


@pytest.mark.parametrize(("share", "is_slow"), [(0.23, False), (0.27, True)])
def test_a_slow_rank_must_explain_a_quarter_of_the_excess(share: float, is_slow: bool) -> None:
    graph = iteration(0, work={2: 1.1})
    assert work_after(graph, usual(of=graph, excess_ns=4 * 0.1 * WORK_NS / share), 2) == pytest.approx(
        1.0 if is_slow else 1.1, abs=1e-4
    )


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
    (0.06, 4, False), (0.08, 4, True), (0.20, 2, False), (0.20, 3, True), (0.35, 2, True),
])  # fmt: skip
def test_a_slow_lane_explains_a_tenth_and_more_if_of_few_transfers(share: float, rounds: int, is_slow: bool) -> None:
    graph = iteration(0, rounds=rounds, transfer=1.5)
    excess_ns = rounds * 0.5 * TRANSFER_NS / share
    assert transfer_after(graph, usual(rounds, excess_ns, graph)) == pytest.approx(1.0 if is_slow else 1.5, abs=1e-4)


def test_the_pace_of_the_job() -> None:
    # The pace of the job is that of the rank at the first quarter
    assert _pace(np.array([0.0, 0.1, 0.2, 0.3, 0.4])) == pytest.approx(0.1)
    assert _pace(np.array([0.1, 0.1, 0.1, 0.1])) == pytest.approx(0.1)
    assert _pace(np.array([0.1, 0.1, 0.1])) == 0.0  # of three nobody knows


def test_usual_pieces_and_their_ratios() -> None:
    # The usual gap and transfer of a row are the medians at its place
    graph = graph_of(
        *(row(0, 100 * n, 100 * n + 10 * n, sequence=2 * n, iteration=n) for n in (1, 2, 3)),
        *(row(0, 100 * n + 50, 100 * n + 60 + n, sequence=2 * n + 1, iteration=n) for n in (1, 2, 3)),
    )
    usual = present(learn_usual_pieces(graph))
    gap_ns, transfer_ns = usual.of_graph(graph)
    assert transfer_ns[at(graph, 0, 350)] == 12
    assert transfer_ns[at(graph, 0, 300)] == 20
    assert gap_ns[at(graph, 0, 350)] == 30
    # A gap after another operator than usual is not known
    usual = learn_usual_pieces(graph_of(*(
        row(0, 1000 * n + 100 * k, 1000 * n + 100 * k + 10, group=k, sequence=n, iteration=n)
        for n in range(3) for k in range(3)
    )))  # fmt: skip
    assert usual is not None
    graph = graph_of(row(0, 0, 10, sequence=9, iteration=9), row(0, 200, 210, group=2, sequence=9, iteration=9))
    gap_ns, transfer_ns = usual.of_graph(graph)
    assert np.isnan(gap_ns[at(graph, 0, 200)])
    assert transfer_ns[at(graph, 0, 200)] == 10
    # An iteration lasts from its entry to its last end
    graph = graph_of(row(0, 50, 90), row(1, 60, 91), entry={(0, 0): 20, (1, 0): 30})
    assert iteration_ns(graph, 0) == 71
    # A ratio is known where both times are
    found = log_ratios(np.array([2.0, 0.0, 3.0, 3.0]), np.array([1.0, 1.0, 0.0, np.nan]))
    np.testing.assert_allclose(found, [np.log(2), np.nan, np.nan, np.nan])
    # Of a time that is twice the usual half is above it
    np.testing.assert_allclose(share_above_usual(np.log(np.array([2.0, 1.0, 0.5]))), [0.5, 0.0, -1.0])


def test_robust_means_of_ratios() -> None:
    # A value far from the median counts as if it were three deviations away
    found = huber_means(np.zeros(3, dtype=np.int64), np.array([0.0, 0.0, 9.0]), np.ones(3), 1.0)
    np.testing.assert_allclose(found, [1.0])
    # Values that are not known and weights of nothing do not count
    group = np.array([0, 0, 0, 1])
    found = huber_means(group, np.array([1.0, np.nan, 5.0, np.nan]), np.array([2.0, 1.0, 0.0, 1.0]), 1.0)
    np.testing.assert_allclose(found, [1.0, 0.0])
    # Pieces that are always alike vary by a percent at least
    assert spread_of_pieces(np.zeros(3), np.ones(3)) == pytest.approx(0.01)
    assert spread_of_pieces(np.array([-0.2, 0.2, 0.1]), np.ones(3)) == pytest.approx(1.4826 * 0.2)
    # Slow ones that surely differ stay apart
    values, sigma = np.array([0.1, 0.9, 0.0]), np.full(3, 0.001)
    found = shrink_together(values, np.array([True, True, False]), sigma)
    np.testing.assert_allclose(found, values, atol=1e-5)
    # A slow one alone keeps its factor and without one there is none
    values, sigma = np.array([0.1, 0.9]), np.full(2, 0.1)
    np.testing.assert_allclose(shrink_together(values, np.array([False, True]), sigma), [0.0, 0.9])
    np.testing.assert_allclose(shrink_together(values, np.array([False, False]), sigma), [0.0, 0.0])
