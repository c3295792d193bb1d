"""The truth about a simulated job: the excess that a fault causes, its label, and faults that have none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import PRESETS, SimulatorSettings, with_preset
from irregulars.producers.simulator.source import simulate_trace
from irregulars.producers.simulator.truth import measure
from irregulars.producers.trace.directory import read_trace
from tests.producers.simulator.conftest import faulty, record, times_s

BASE = with_preset(SimulatorSettings(iterations=30, seed=5, bandwidth_period_ms=50.0), "suite")


@pytest.mark.parametrize(
    ("fault", "excess"),
    [
        ("slow_rank:rank=21,from=10,to=20", 0.05), ("slow_rank:rank=21,from=10,to=20", 1.0),
        ("slow_host:host=3,from=10,to=20", 0.2), ("slow_stage:stage=2,from=10,to=20", 0.05),
        ("slow_nic:rank=17,from=10,to=20", 0.05), ("slow_nic:rank=17,from=10,to=20", 1.0),
        ("slow_link:src=1,dst=17,from=10,to=20", 0.2), ("slow_switch:switch=1,from=10,to=20", 1.0),
        ("uneven_data:from=10,to=20", 0.2), ("slow_rank:rank=21,from=12,shape=spike", 0.2),
        ("slow_nic:rank=17,from=10,to=25,shape=fluctuating", 0.2), ("slow_rank:rank=21,shape=from_start", 0.2),
        ("slow_nic:rank=17,from=10,by=add_ms", 0.2),
    ],
)  # fmt: skip
def test_a_wanted_excess_is_reached(fault: str, excess: float) -> None:
    found = measure(faulty(BASE, f"{fault},excess={excess}")).label
    assert found["excess_ratio"] == pytest.approx(excess, rel=0.1)
    assert found["wanted_excess_ratio"] == excess


def test_an_excess_of_iterations_that_no_job_has_is_refused() -> None:
    idle = SimulatorSettings(dp=2, pp=1, tp=1, iterations=3, gpus_per_host=1, data_loading_ms=0.0)
    with pytest.raises(InputError, match="excess must be wanted of iterations that are run; got 7 to 3"):
        measure(faulty(idle, "slow_rank:rank=0,from=7,excess=0.2"))


def test_two_faults_keep_their_own_strength() -> None:
    both = ("slow_rank:rank=21,from=5,to=10,excess=0.2", "slow_nic:rank=40,from=15,to=20,excess=0.3")
    found = measure(faulty(BASE, *both)).label["faults"]
    assert [one["excess_ratio"] for one in found] == pytest.approx([0.2, 0.3], rel=0.1)
    assert [one["kind"] for one in found] == ["slow_rank", "slow_nic"]


def test_a_written_job_that_hangs_says_until_when_it_was_recorded(tmp_path: Path) -> None:
    settings = SimulatorSettings(iterations=6, faults=(parse_fault("hang:rank=9,from=3,inside=yes"),))
    simulate_trace(tmp_path, settings)
    until_ns = json.loads((tmp_path / "job.json").read_text())["recorded_until_ns"]
    trace = read_trace(tmp_path)
    assert trace.rejected.count == 0
    last_ns = max(int(batch.columns["start_ns"].max()) for batch in trace.commops.values())
    assert 50e9 < until_ns - last_ns < 70e9
    label = json.loads((tmp_path / "label.json").read_text())
    assert (label["kind"], label["ranks"], label["iterations"]) == ("hang", [9], [3, 4])


PERIODS = st.tuples(st.integers(0, 7), st.integers(1, 4)).map(lambda x: f"from={x[0]},to={x[0] + x[1]}")
FAULTS = st.tuples(
    st.sampled_from(["slow_rank:rank=5,factor=3", "slow_nic:rank=17,factor=9", "slow_host:host=1,add_ms=20"]), PERIODS
).map(",".join)


@examples(max_examples=20)
@given(faults=st.lists(FAULTS, max_size=2), seed=st.integers(0, 50))
def test_a_job_with_faults_equals_its_twin_before_the_first_and_is_never_faster(faults: list[str], seed: int) -> None:
    healthy = replace(BASE, iterations=8, seed=seed)
    slow = faulty(healthy, *faults)
    first = min([fault.first for fault in slow.faults], default=8)
    engine, twins = Engine(slow), Engine(healthy)
    for number in range(8):
        run, twin = engine.advance(), twins.advance()
        assert number >= first or np.array_equal(run.end_ns, twin.end_ns)
        assert np.all(run.end_ns >= twin.end_ns - 1)
        assert np.all(run.departure_ns >= run.arrival_ns - 1e-3)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_job_that_runs_and_repeats(name: str) -> None:
    settings = with_preset(SimulatorSettings(iterations=4, dp=2, pp=2, tp=2), name)
    one, same = (record(settings) for _ in range(2))
    for columns, others in ((one.commops, same.commops), (one.iterations, same.iterations),
                            (one.bandwidth, same.bandwidth)):  # fmt: skip
        assert columns
        for key, column in columns.items():
            np.testing.assert_array_equal(column, others[key], err_msg=key)


def test_a_healthy_suite_job_is_untidy_and_does_not_get_slower_than_its_drift() -> None:
    found_s = times_s(replace(BASE, iterations=60))
    median_s = np.median(found_s)
    assert np.quantile(found_s, 0.9) / np.quantile(found_s, 0.1) > 1.04
    assert np.count_nonzero(found_s > 1.3 * median_s) <= 6
    assert np.median(found_s[-20:]) / np.median(found_s[:20]) == pytest.approx(1.066, abs=0.03)
