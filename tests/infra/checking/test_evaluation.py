from __future__ import annotations

import numpy as np

from irregulars.infra.checking.changed import Given
from irregulars.infra.checking.evaluation import EVALUATIONS, insert_evaluation
from irregulars.messages.records import PHASES, UNKNOWN
from tests.infra.checking.recordings import apply, recorded, simulated, touched

EVAL = PHASES.index("eval")


def test_evaluations_are_marked_rows_of_all_ranks_between_two_iterations() -> None:
    before = recorded("gloo-slow-nic")
    changed = apply("evaluation", before)
    table, (first, past) = changed.recording.tables["iterations"], changed.naming.inserted
    is_new = table["phase"] == EVAL
    assert past - first == EVALUATIONS
    assert sorted(zip(table["rank"][is_new].tolist(), table["iteration"][is_new].tolist(), strict=True)) == [
        (rank, number) for rank in range(4) for number in range(first, past)
    ]
    for rank in range(4):
        rows = np.flatnonzero(table["rank"] == rank)
        rows = rows[np.argsort(table["iteration"][rows])]
        ends_ns = table["start_ns"][rows] + table["elapsed_ns"][rows]
        assert (np.diff(table["iteration"][rows]) == 1).all()
        assert (table["start_ns"][rows][1:] >= ends_ns[:-1]).all()


def test_all_that_follows_is_later_by_the_same_time() -> None:
    before = recorded("gloo-slow-nic")
    changed = apply("evaluation", before)
    assert touched(before, changed.recording) == {"commops.start_ns", "commops.iteration", "iterations", "bandwidth"}
    old, new = (one.tables["commops"] for one in (before, changed.recording))
    moved, first = new["start_ns"] - old["start_ns"], changed.naming.inserted[0]
    (pause_ns,) = set(moved[old["iteration"] >= first].tolist())
    assert pause_ns > 0
    assert set(moved[(old["iteration"] != UNKNOWN) & (old["iteration"] < first)].tolist()) == {0}
    later = np.where((old["iteration"] != UNKNOWN) & (old["iteration"] >= first), EVALUATIONS, 0)
    np.testing.assert_array_equal(new["iteration"] - old["iteration"], later)
    is_unnumbered = old["iteration"] == UNKNOWN  # set-up, and the last barrier
    is_late = old["start_ns"] > old["start_ns"][old["iteration"] == first].max()
    assert set(moved[is_unnumbered & is_late].tolist()) == {pause_ns}
    assert set(moved[is_unnumbered & ~is_late].tolist()) == {0}


def test_nics_are_idle_meanwhile_and_sampled_on() -> None:
    before = recorded("gloo-slow-nic")
    changed = apply("evaluation", before)
    old, new = (one.tables["bandwidth"] for one in (before, changed.recording))
    added = slice(len(old["rank"]), None)
    assert len(new["rank"][added]) > 4
    assert not new["tx_bytes_per_s"][added].any()
    assert not new["rx_bytes_per_s"][added].any()
    longest_ns = [
        max(np.diff(np.sort(table["time_ns"][table["rank"] == rank])).max() for rank in range(4))
        for table in (old, new)
    ]
    assert longest_ns[1] <= longest_ns[0] + 20_000_000


def test_a_hang_is_recorded_for_longer() -> None:
    before = simulated("stopped")
    after = apply("evaluation", before).recording
    assert (after.job.recorded_until_ns or 0) > (before.job.recorded_until_ns or 0)


def test_without_rows_of_all_ranks_there_is_no_place_for_it() -> None:
    recording = recorded("gloo-slow-nic")
    given = Given(np.random.default_rng(0))
    of_two = recording.with_rows("iterations", recording.tables["iterations"]["rank"] < 2)
    assert insert_evaluation(of_two, given) is None
    assert insert_evaluation(recording.with_rows("iterations", np.empty(0, dtype=np.int64)), given) is None
