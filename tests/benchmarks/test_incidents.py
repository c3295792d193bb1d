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
from irregulars.messages.announcements import Announcement
from irregulars.messages.records import Batch
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import PRESETS, SimulatorSettings, with_preset
from irregulars.producers.simulator.source import SimulatorSource, simulate_trace
from irregulars.producers.trace.directory import read_trace
from tests.benchmarks.incidents import Incidents

BASE = with_preset(SimulatorSettings(iterations=30, seed=5, bandwidth_period_ms=50.0), "suite")


@pytest.fixture(scope="module")
def job() -> Incidents:
    return Incidents(BASE)


def sent(settings: SimulatorSettings) -> dict[tuple[str, int], dict[str, np.ndarray]]:
    source, found = SimulatorSource(settings), {}
    while not source.is_exhausted:
        for one in source.poll(10_000_000):
            if isinstance(one, Batch):
                found.setdefault((one.header.schema, one.header.rank), []).append(one.columns)
    return {key: joined(parts) for key, parts in found.items()}


def joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize("texts", [
    (),
    ("slow_nic:rank=17,from=8,to=12,factor=8",),
    ("slow_rank:rank=5,from=3,to=5,factor=2", "uneven_data:spread=0.3,from=20,to=22"),
    ("slow_rank:rank=40,from=3,to=9,add_ms=40,shape=fluctuating",),
    ("hang:rank=9,from=11",),
])  # fmt: skip
def test_an_incident_is_the_run_that_its_settings_describe(job: Incidents, texts: tuple[str, ...]) -> None:
    incident = job.run(*texts)
    parts: dict[tuple[str, int], list[dict[str, np.ndarray]]] = {}
    for batch in incident.batches():
        parts.setdefault((batch.header.schema, batch.header.rank), []).append(dict(batch.columns))
    whole = sent(replace(BASE, faults=tuple(map(parse_fault, texts))))
    assert parts.keys() == whole.keys()
    for key, wanted in whole.items():
        for name, column in joined(parts[key]).items():
            if column.dtype.kind == "f":  # what ran later is shifted: rounded in another place
                apart = np.abs(column - wanted[name]) / np.maximum(2, 1e-6 * np.abs(wanted[name]))
                assert (np.isnan(column) == np.isnan(wanted[name])).all(), (key, name)
                assert np.nanmax(apart, initial=0.0) <= 1, (key, name)
            else:
                assert np.abs(column - wanted[name]).max() <= 2, (key, name)


def test_only_iterations_that_a_fault_touches_are_run(job: Incidents) -> None:
    incident = job.run("slow_rank:rank=5,from=10,to=14,add_ms=60")
    assert all(incident.runs[n] is job.healthy(n) for n in range(10))
    assert all(incident.runs[n].flow_ns is job.healthy(n).flow_ns for n in range(14, 30))  # the same, later
    assert incident.runs[20].start_ns[0] > job.healthy(20).start_ns[0] + 100e6
    assert not any(incident.runs[n].flow_ns is job.healthy(n).flow_ns for n in range(10, 14))


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
def test_a_wanted_excess_is_reached(job: Incidents, fault: str, excess: float) -> None:
    found = job.run(f"{fault},excess={excess}").label()
    assert found["excess_ratio"] == pytest.approx(excess, rel=0.1)
    assert found["wanted_excess_ratio"] == excess


def test_a_simulated_job_calibrates_its_faults_as_an_incident_does(job: Incidents, tmp_path: Path) -> None:
    text = "slow_rank:rank=21,from=10,to=20,excess=0.2"
    wanted = job.run(text).label()
    found = simulate_trace(tmp_path, replace(BASE, faults=(parse_fault(text),)))
    assert found["factor"] == pytest.approx(wanted["factor"])
    assert found["excess_ratio"] == pytest.approx(wanted["excess_ratio"])


def test_faults_that_no_iteration_or_healthy_settings_have_are_refused() -> None:
    idle = Incidents(SimulatorSettings(dp=2, pp=1, tp=1, iterations=3, gpus_per_host=1, data_loading_ms=0.0))
    with pytest.raises(InputError, match="excess must be wanted of iterations that are run; got 7 to 3"):
        idle.run("slow_rank:rank=0,from=7,excess=0.2")
    with pytest.raises(InputError, match="faults must be given to run"):
        Incidents(replace(BASE, faults=(parse_fault("slow_rank:rank=1,factor=2"),)))


def test_two_faults_keep_their_own_strength(job: Incidents) -> None:
    both = job.run("slow_rank:rank=21,from=5,to=10,excess=0.2", "slow_nic:rank=40,from=15,to=20,excess=0.3").label()
    assert [one["excess_ratio"] for one in both["faults"]] == pytest.approx([0.2, 0.3], rel=0.1)
    assert [one["kind"] for one in both["faults"]] == ["slow_rank", "slow_nic"]


def test_an_incident_writes_the_trace_and_its_truth(job: Incidents, tmp_path: Path) -> None:
    incident = job.run("hang:rank=9,from=11")
    incident.write(tmp_path)
    written = json.loads((tmp_path / "job.json").read_text())
    assert written["recorded_until_ns"] == incident.recorded_until_ns
    trace = read_trace(tmp_path)
    assert trace.rejected.count == 0
    label = json.loads((tmp_path / "label.json").read_text())
    assert (label["kind"], label["ranks"], label["iterations"]) == ("hang", [9], [11, 12])


def test_a_written_job_that_hangs_says_until_when_it_was_recorded(tmp_path: Path) -> None:
    settings = SimulatorSettings(iterations=6, faults=(parse_fault("hang:rank=9,from=3,inside=yes"),))
    simulate_trace(tmp_path, settings)
    until_ns = json.loads((tmp_path / "job.json").read_text())["recorded_until_ns"]
    trace = read_trace(tmp_path)
    last_ns = max(int(batch.columns["start_ns"].max()) for batch in trace.commops.values())
    assert 50e9 < until_ns - last_ns < 70e9


PERIODS = st.tuples(st.integers(0, 7), st.integers(1, 4)).map(lambda x: f"from={x[0]},to={x[0] + x[1]}")
FAULTS = st.tuples(
    st.sampled_from(["slow_rank:rank=5,factor=3", "slow_nic:rank=17,factor=9", "slow_host:host=1,add_ms=20"]), PERIODS
).map(",".join)


@examples(max_examples=20)
@given(faults=st.lists(FAULTS, max_size=2), seed=st.integers(0, 50))
def test_a_run_equals_its_twin_before_the_first_fault_and_is_never_faster(faults: list[str], seed: int) -> None:
    job = Incidents(replace(BASE, iterations=8, seed=seed, bandwidth_period_ms=0.0))
    incident = job.run(*faults)
    first = min([fault.first for fault in incident.faults], default=8)
    assert all(incident.runs[n] is job.healthy(n) for n in range(first))
    for run in incident.runs:
        twin = job.healthy(run.iteration)
        assert np.all(run.end_ns >= twin.end_ns - 1)
        assert np.all(run.departure_ns >= run.arrival_ns - 1e-3)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_job_that_runs_and_repeats(name: str) -> None:
    settings = with_preset(SimulatorSettings(iterations=4, dp=2, pp=2, tp=2), name)
    one, same = (sent(settings) for _ in range(2))
    for key, columns in one.items():
        assert all(np.array_equal(column, same[key][x], equal_nan=column.dtype.kind == "f")
                   for x, column in columns.items())  # fmt: skip


def test_a_healthy_suite_job_is_untidy_and_does_not_get_slower_than_its_drift() -> None:
    times_s = Incidents(replace(BASE, iterations=60)).run().iteration_times_s()
    median_s = np.median(times_s)
    assert np.quantile(times_s, 0.9) / np.quantile(times_s, 0.1) > 1.04
    assert np.count_nonzero(times_s > 1.3 * median_s) <= 6
    assert np.median(times_s[-20:]) / np.median(times_s[:20]) == pytest.approx(1.066, abs=0.03)


def test_announcements_of_an_incident_are_those_of_the_job(job: Incidents) -> None:
    source = SimulatorSource(BASE)
    announced = [one for one in source.poll(64) if isinstance(one, Announcement)]
    assert list(job.run().announcements()) == announced
