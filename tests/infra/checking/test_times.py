from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.infra.checking.times import CLOCK_PPM, DRIFT_PPM, OFFSET_MS, SHIFT_NS
from irregulars.messages.records import UNKNOWN
from tests.infra.checking.recordings import apply, recorded, simulated, touched

TIMES = {
    "commops.start_ns",
    "commops.elapsed_ns",
    "iterations.start_ns",
    "iterations.elapsed_ns",
    "bandwidth.time_ns",
}
STARTS = {"commops.start_ns", "iterations.start_ns", "bandwidth.time_ns"}
SLOW_NIC = "gloo-slow-nic"


@pytest.mark.parametrize(("name", "step_ns"), [("round-1ns", 1), ("round-1us", 1_000), ("round-10us", 10_000)])
@given(seed=st.integers(0, 2**32 - 1))
def test_rounded_times_lie_on_the_grid_and_near_the_old_ones(name: str, step_ns: int, seed: int) -> None:
    before, after = recorded(SLOW_NIC), apply(name, recorded(SLOW_NIC), seed).recording
    assert touched(before, after) == TIMES
    for schema, column in (one.split(".") for one in TIMES):
        old, new = before.tables[schema][column], after.tables[schema][column]
        assert (new % step_ns == 0).all()
        assert np.abs(new - old).max() <= step_ns / 2 + 1


def test_start_and_elapsed_are_rounded_apart() -> None:
    before, after = (
        one.tables["commops"] for one in (recorded(SLOW_NIC), apply("round-1us", recorded(SLOW_NIC)).recording)
    )
    ends = [table["start_ns"] + table["elapsed_ns"].astype(np.int64) for table in (before, after)]
    assert np.abs(ends[1] - ends[0]).max() > 600


def test_what_is_not_known_stays_so() -> None:
    hung = simulated("stopped")
    table = hung.tables["commops"]
    start_ns = np.where(np.arange(len(table["rank"])) % 7 == 0, UNKNOWN, table["start_ns"])
    hung = hung.with_columns("commops", start_ns=start_ns)
    assert np.isnan(table["elapsed_ns"]).any()
    for name in ("round-10us", "elapsed-fast", "shift", "clock-drift"):
        after = apply(name, hung).recording.tables["commops"]
        np.testing.assert_array_equal(np.isnan(after["elapsed_ns"]), np.isnan(table["elapsed_ns"]))
        np.testing.assert_array_equal(after["start_ns"] == UNKNOWN, start_ns == UNKNOWN)


@pytest.mark.parametrize(("name", "ppm"), [("elapsed-fast", CLOCK_PPM), ("elapsed-slow", -CLOCK_PPM)])
def test_a_clock_of_elapsed_changes_elapsed_times_of_operators_alone(name: str, ppm: float) -> None:
    before, after = recorded(SLOW_NIC), apply(name, recorded(SLOW_NIC)).recording
    assert touched(before, after) == {"commops.elapsed_ns"}
    old, new = (one.tables["commops"]["elapsed_ns"] for one in (before, after))
    assert np.abs(new - old * (1 + ppm / 1e6)).max() <= 0.5


def test_clocks_of_elapsed_differ_from_rank_to_rank() -> None:
    before, after = recorded(SLOW_NIC), apply("elapsed-apart", recorded(SLOW_NIC)).recording
    assert touched(before, after) == {"commops.elapsed_ns"}
    old, new, rank = (
        before.tables["commops"]["elapsed_ns"],
        after.tables["commops"]["elapsed_ns"],
        before.tables["commops"]["rank"],
    )
    ppm = [(new[rank == r].sum() / old[rank == r].sum() - 1) * 1e6 for r in range(4)]
    assert len({round(one) for one in ppm}) == 4
    assert max(map(abs, ppm)) <= CLOCK_PPM


def test_a_shift_moves_all_moments_alike() -> None:
    for before in (recorded(SLOW_NIC), simulated("stopped")):
        after = apply("shift", before).recording
        until = {"recorded_until_ns"} if before.job.recorded_until_ns else set()
        assert touched(before, after) == STARTS | until
        for schema, column in (one.split(".") for one in STARTS):
            assert set(np.unique(after.tables[schema][column] - before.tables[schema][column])) <= {SHIFT_NS}


def test_clocks_of_hosts_are_off_by_one_offset_each() -> None:
    before = simulated("three")
    after = apply("clock-offsets", before).recording
    assert touched(before, after) == STARTS | {"clock"}
    assert after.job.clock == "per_host"
    moved = after.tables["commops"]["start_ns"] - before.tables["commops"]["start_ns"]
    host = before.tables["commops"]["rank"] // 4
    offsets = [np.unique(moved[host == number]) for number in range(3)]
    assert [len(one) for one in offsets] == [1, 1, 1]
    assert len(np.unique(np.concatenate(offsets))) == 3
    assert np.abs(moved).max() <= OFFSET_MS * 1e6


def test_drift_grows_with_time() -> None:
    before = simulated("three")
    after = apply("clock-drift", before).recording
    assert touched(before, after) == STARTS | {"clock"}
    start_ns, rank = before.tables["commops"]["start_ns"], before.tables["commops"]["rank"]
    moved = after.tables["commops"]["start_ns"] - start_ns
    for host in range(3):
        own = rank // 4 == host
        ppm, _ = np.polyfit((start_ns[own] - start_ns.min()) / 1e9, moved[own] / 1e3, 1)
        assert 0.01 < abs(ppm) <= DRIFT_PPM


def test_ranks_of_unknown_hosts_have_a_clock_each() -> None:
    before = recorded(SLOW_NIC)
    before = replace(before, job=replace(before.job, places={}))
    after = apply("clock-offsets", before).recording
    moved = after.tables["commops"]["start_ns"] - before.tables["commops"]["start_ns"]
    assert len(np.unique(moved)) == 4
