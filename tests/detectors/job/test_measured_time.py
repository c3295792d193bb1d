"""How exactly moments of a log compare, and that the operator graph never asks them to compare more exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.job.measured_time import resolutions_ns, slack_ns
from irregulars.detectors.job.thresholds import JOB
from tests.detectors.operator_graphs import at, logged_graph, row

US = 1_000
MS = 1_000_000
S = 1_000_000_000
EPOCH = 1_700_000_000 * S


def resolutions(*logs: list[tuple[int, int]]) -> list[int]:
    """Resolution found for each rank's log, a list of starts and elapsed times, ns."""
    rank = np.repeat(np.arange(len(logs)), [len(log) for log in logs])
    times = np.array([times for log in logs for times in log], dtype=np.int64).reshape(-1, 2)
    found = resolutions_ns(rank, times[:, 0], times[:, 1])
    return [int(found[rank == one].max()) for one in range(len(logs))]


def log_of(step_ns: int, rows: int = 20) -> list[tuple[int, int]]:
    """Times of an exporter that rounds to `step_ns`: not all of them are multiples of ten such steps."""
    return [(EPOCH + step_ns * (1_001 * number), step_ns * (7 * number + 3)) for number in range(rows)]


# --- resolutions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_ns", [1, 10, 100, 1 * US, 10 * US, 100 * US, MS, S])
def test_the_resolution_is_the_step_of_the_log_between_a_microsecond_and_a_millisecond(step_ns: int) -> None:
    assert resolutions(log_of(step_ns)) == [min(max(step_ns, JOB.least_resolution_ns), MS)]


def test_resolution_of_a_log() -> None:
    # Each rank has the resolution of its own exporter
    logs = log_of(1), log_of(US), log_of(10 * US), log_of(MS)
    assert resolutions(*logs) == [US, US, 10 * US, MS]
    # Rows of ranks may stand in any order
    logs = [*(("fine", one) for one in log_of(1)), *(("coarse", one) for one in log_of(10 * US))]
    logs = logs[::3] + logs[1::3] + logs[2::3]
    rank = np.array([5 if name == "coarse" else 2 for name, _ in logs])
    times = np.array([one for _, one in logs], dtype=np.int64)
    found = resolutions_ns(rank, times[:, 0], times[:, 1])
    np.testing.assert_array_equal(found, np.where(rank == 5, 10 * US, US))
    # One row off the step makes the times of the whole rank finer
    fine, coarse = log_of(1), log_of(MS)
    starts, elapsed = [start for start, _ in coarse], [ns for _, ns in coarse]
    exact_starts, exact = [start for start, _ in fine], [ns for _, ns in fine]
    assert resolutions(list(zip([*starts[:-1], starts[-1] + 30 * US], exact, strict=True))) == [10 * US]
    assert resolutions(list(zip(exact_starts, [*elapsed[:-1], MS + 30 * US], strict=True))) == [10 * US]
    # Of starts and elapsed times the coarser ones count: an end is a start and an elapsed time, and it is compared
    # with other starts.
    assert resolutions([(EPOCH + 17 * number, 10 * US * number) for number in range(20)]) == [10 * US]
    assert resolutions([(EPOCH + 10 * US * number, 17 * number) for number in range(20)]) == [10 * US]
    # Times that are all 0 have no resolution
    assert resolutions([(EPOCH + 17 * number, 0) for number in range(20)]) == [US]


def test_resolution_of_few_or_odd_times() -> None:
    # Few rows say nothing
    assert resolutions(log_of(10 * US, rows=3)) == [JOB.least_resolution_ns]
    assert resolutions(log_of(10 * US, rows=4)) == [10 * US]
    assert resolutions(log_of(10 * US, rows=1), log_of(10 * US, rows=9)) == [US, 10 * US]
    # Without rows there is no resolution
    nothing = np.empty(0, dtype=np.int64)
    assert len(resolutions_ns(nothing, nothing, nothing)) == 0
    assert len(slack_ns(nothing, nothing)) == 0
    # Times before the origin have the same resolution
    assert resolutions([(start_ns - 2 * EPOCH, ns) for start_ns, ns in log_of(10 * US)]) == [10 * US]


# --- slack ----------------------------------------------------------------------------------------------------------


def test_the_slack_is_two_resolutions_and_the_drift_of_what_was_measured() -> None:
    found = slack_ns(np.array([US, US, 10 * US]), np.array([0, 10 * S, 50 * MS]))
    assert found.tolist() == [2 * US, 2 * US + MS, 25 * US]


@given(elapsed_ns=st.integers(0, 10**13), longer_ns=st.integers(0, 10**13), step_ns=st.sampled_from([US, MS]))
def test_longer_operators_have_no_less_slack(elapsed_ns: int, longer_ns: int, step_ns: int) -> None:
    one, two = slack_ns(np.array([step_ns, step_ns]), np.array([elapsed_ns, elapsed_ns + longer_ns])).tolist()
    assert 2 * step_ns <= one <= two


@given(start_ns=st.integers(0, 10**15), elapsed_ns=st.integers(0, 10**11), ppm=st.floats(-100, 100))
def test_rounded_times_of_another_clock_are_off_by_less(start_ns: int, elapsed_ns: int, ppm: float) -> None:
    measured_ns = round(elapsed_ns * (1 + ppm * 1e-6) / US) * US
    logged_end_ns = round(start_ns / US) * US + measured_ns
    slack = int(slack_ns(np.array([US]), np.array([measured_ns]))[0])
    assert abs(logged_end_ns - (start_ns + elapsed_ns)) <= slack + elapsed_ns * JOB.drift_ratio**2 + 1


# --- the operator before --------------------------------------------------------------------------------------------


LATE = [
    pytest.param(10 * MS, 1, id="1 ns"),
    pytest.param(10 * MS, US, id="1 µs"),
    pytest.param(10 * MS, 2 * US, id="both rounded"),
    pytest.param(10 * S, MS, id="drift of 10 s"),
    pytest.param(1 * S, 100 * US + US, id="drift and rounding of 1 s"),
]


@pytest.mark.parametrize(("next_start_ns", "late_ns"), LATE)
def test_what_ends_a_little_after_the_next_one_began_came_before_it(next_start_ns: int, late_ns: int) -> None:
    """Rank 0 waits for rank 1 nearly all the time: were its operator not over, that waiting would be its work."""
    graph = logged_graph(
        row(0, 0, next_start_ns + late_ns), row(1, next_start_ns - MS, next_start_ns),
        row(0, next_start_ns, next_start_ns + MS, group=1), entry={(0, 0): 0, (1, 0): 0},
    )  # fmt: skip
    here = at(graph, 0, next_start_ns)
    assert graph.previous[here] == at(graph, 0, 0)
    assert graph.gap_ns[here] == 0
    assert graph.own_work_ns(0)[0] == 0


def test_starts_that_are_rounded_coarser_than_elapsed_times_are_as_inexact() -> None:
    """An exporter that writes starts in steps of 10 us and elapsed times in us: the end comes 9 us late."""
    rows = [row(0, 100 * US, 100 * US + 60 * MS + 9 * US), row(1, 60 * MS, 60 * MS + 100 * US)]
    rows += [
        row(0, 60 * MS + 100 * US + number * MS, 60 * MS + number * MS + 333 * US, group=1) for number in range(4)
    ]
    graph = logged_graph(*rows)
    first, second = at(graph, 0, 100 * US), at(graph, 0, 60 * MS + 100 * US)
    assert (graph.previous[second], graph.gap_ns[second]) == (first, 0)


@pytest.mark.parametrize(("next_start_ns", "late_ns"), [(10 * MS, 150 * US), (10 * S, 2 * MS)])
def test_what_ends_later_than_clocks_explain_runs_beside_it(next_start_ns: int, late_ns: int) -> None:
    graph = logged_graph(
        row(0, 0, next_start_ns + late_ns), row(0, next_start_ns, next_start_ns + 5 * MS, group=1),
        entry={(0, 0): 0},
    )  # fmt: skip
    assert graph.previous[at(graph, 0, next_start_ns)] == -1
    assert graph.gap_ns[at(graph, 0, next_start_ns)] == next_start_ns


def test_a_coarse_log_has_more_slack() -> None:
    def previous(step_us: int) -> int:
        """Operators of 1 ms of which the fifth begins 20 µs before the end of the fourth, logged in such steps."""
        starts_us = [0, 1000, 2000, 3000, 4000 - 20]
        rows = [row(0, us * US, (us + 1000) * US, group=us) for us in starts_us]
        rows += [row(0, (8000 + step_us) * US, (9000 + 3 * step_us) * US, group=9)]
        graph = logged_graph(*rows)
        return int(graph.previous[at(graph, 0, 3980 * US)])

    assert previous(step_us=10) == 3
    assert previous(step_us=1) == 2


def test_operators_of_one_rank_are_never_each_others_previous_one() -> None:
    graph = logged_graph(*(row(0, 10 * US + number, 10 * US + number + 500, group=number) for number in range(10)))
    assert (graph.previous < np.arange(10)).all()


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Start and end, ns, of operators of one rank that follow each other at some distance."""
    now_ns, found = EPOCH + draw(st.integers(0, US)), []
    for _ in range(draw(st.integers(1, 20))):
        start_ns = now_ns + draw(st.integers(5 * US, 5 * MS))
        now_ns = start_ns + draw(st.integers(5 * US, 2 * S))
        found.append((start_ns, now_ns))
    return found


@given(chain=chains())
def test_rounding_changes_no_order_of_what_is_well_apart(chain: list[tuple[int, int]]) -> None:
    exact = logged_graph(*(row(0, start_ns, end_ns, sequence=at) for at, (start_ns, end_ns) in enumerate(chain)))
    rounded = []
    for number, (start_ns, end_ns) in enumerate(chain):
        begun_ns = round(start_ns / US) * US
        rounded.append(row(0, begun_ns, begun_ns + round((end_ns - start_ns) / US) * US, sequence=number))
    coarse = logged_graph(*rounded)
    assert exact.previous.tolist() == coarse.previous.tolist() == list(range(-1, len(chain) - 1))
    assert np.abs(exact.gap_ns - coarse.gap_ns).max() <= 2 * US


@given(chain=chains(), data=st.data())
def test_what_touches_follows_when_its_end_comes_late(chain: list[tuple[int, int]], data: st.DataObject) -> None:
    """Each operator begins when the one before ends, and the log says that it ended up to the slack later."""
    rows, now_ns = [], EPOCH
    for number, (start_ns, end_ns) in enumerate(chain):
        late_ns = data.draw(st.integers(0, 2 * US))
        rows.append(row(0, now_ns, now_ns + end_ns - start_ns + late_ns, sequence=number))
        now_ns += end_ns - start_ns
    graph = logged_graph(*rows)
    assert graph.previous.tolist() == list(range(-1, len(chain) - 1))
    assert not graph.gap_ns.any()


SPANS = st.tuples(st.integers(0, 50 * US), st.integers(0, 30 * US))


@given(spans=st.lists(SPANS, min_size=1, max_size=16), ranks=st.integers(1, 3), entry_ns=st.integers(0, 60 * US))
def test_no_gap_is_negative_none_before_is_after(spans: list[tuple[int, int]], ranks: int, entry_ns: int) -> None:
    rows = [row(n % ranks, start, start + ns, sequence=n // ranks) for n, (start, ns) in enumerate(spans)]
    graph = logged_graph(*rows, entry={(rank, 0): entry_ns for rank in range(ranks)})
    assert (graph.gap_ns >= 0).all()
    assert (graph.transfer_ns >= 0).all()
    assert (graph.wait_ns >= 0).all()
    assert (graph.previous < np.arange(len(graph))).all()
    has = graph.previous >= 0
    before = graph.previous[has]
    assert (graph.end_ns[before] - graph.slack_ns[before] <= graph.start_ns[has]).all()
    assert (graph.block[before] == graph.block[has]).all()


# --- partners -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_ns", [0, 1, US, JOB.clock_error_ns])
def test_a_partner_that_came_after_the_end_by_the_clocks_error_was_waited_for(after_ns: int) -> None:
    graph = logged_graph(row(0, 0, MS), row(1, MS + after_ns, MS + after_ns + 5 * US))
    here = at(graph, 0, 0)
    assert graph.rank[graph.blocker[here]] == 1
    assert graph.transfer_ns[here] == 0


@pytest.mark.parametrize(("operator", "other"), [("broadcast", "broadcast"), ("send", "recv")])
@pytest.mark.parametrize(("after_ns", "is_waited_for"), [(1, True), (2 * US, True), (10 * US, False)])
def test_who_may_leave_early_has_some_slack(operator: str, other: str, after_ns: int, is_waited_for: bool) -> None:
    peers = (1, 0) if operator == "send" else (None, None)
    came_ns = MS + after_ns
    graph = logged_graph(row(0, 0, MS, operator, peer=peers[0]), row(1, came_ns, came_ns + MS, other, peer=peers[1]))
    here = at(graph, 0, 0)
    assert bool(graph.rank[graph.blocker[here]] == 1) is is_waited_for
    assert graph.transfer_ns[here] == (0 if is_waited_for else MS)


# --- batches --------------------------------------------------------------------------------------------------------


def batched(*times_ns: tuple[int, int]) -> int:
    """Number of batches that a rank's sends and recvs with these starts and ends are."""
    ends = ("send", "recv")
    graph = logged_graph(
        *(row(0, one, two, ends[n % 2], peer=n + 1, sequence=n) for n, (one, two) in enumerate(times_ns))
    )
    return len(set(graph.batch.tolist()))


def test_batches_within_the_slack() -> None:
    # Parts whose times differ by less than the slack are one batch
    assert batched((0, MS), (0, MS)) == 1
    assert batched((0, MS), (1, MS + 1)) == 1
    assert batched((0, MS), (US, MS - US)) == 1
    assert batched((0, MS), (US, MS), (2 * US, MS + US)) == 1
    # Parts that start or end further apart are batches by themselves
    assert batched((0, MS), (10 * US, MS)) == 2
    assert batched((0, MS), (0, MS + 10 * US)) == 2
    # Sends and recvs of ranks and iterations are never one batch
    graph = logged_graph(
        row(0, 0, MS, "send", peer=1), row(1, 0, MS, "recv", peer=0),
        row(0, 0, MS, "send", peer=1, sequence=1, iteration=1),
    )  # fmt: skip
    assert len(set(graph.batch.tolist())) == 3
    # Collectives are no batches
    graph = logged_graph(row(0, 0, MS), row(0, 0, MS, group=1), row(0, 0, MS, "send", peer=1))
    assert len(set(graph.batch.tolist())) == 3
    # A batch whose parts were rounded apart waits for the last of all partners: rank 1 sends to 2 and receives from 0
    # at once; 0 comes late.
    graph = logged_graph(
        row(1, 0, MS, "send", peer=2), row(1, 700, MS + US, "recv", peer=0),
        row(2, 0, MS // 10, "recv", peer=1), row(0, MS // 2, MS, "send", peer=1),
    )  # fmt: skip
    own = np.flatnonzero(graph.rank == 1)
    assert len(set(graph.batch[own].tolist())) == 1
    assert graph.ready_ns[own].tolist() == [MS // 2, MS // 2]
    assert graph.rank[graph.blocker[own]].tolist() == [0, 0]
