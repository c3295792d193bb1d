from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.runs.analysis import analyze
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.trace.directory import read_trace
from tests.benchmarks.incidents import Incident, Incidents
from tests.benchmarks.localization.processes import fork
from tests.benchmarks.localization.running import Hearing, judged_row, truth_of
from tests.benchmarks.localization.scoring import Truth
from tests.benchmarks.simulated_cases import suite_case

SETTINGS = suite_case(SimulatorSettings(dp=4, pp=2, tp=8, iterations=34, seed=8, bandwidth_period_ms=50.0), 1)


@pytest.fixture(scope="module")
def job() -> Incidents:
    return Incidents(SETTINGS)


@pytest.fixture(scope="module")
def incident(job: Incidents) -> Incident:
    return job.run("slow_rank:rank=21,from=22,to=30,excess=0.5")


def heard(incident: Incident, delta: float = 1.1) -> list[dict[str, Any]]:
    hearing = Hearing(incident, (delta,))
    hearing.hear(incident.batches())
    return [verdict.to_json() for verdict in hearing.verdicts()]


def test_the_suite_judges_as_analyze_does(incident: Incident, tmp_path: Path) -> None:
    incident.write(tmp_path / "trace")
    found = analyze(read_trace(tmp_path / "trace"))
    hearing = Hearing(incident, (1.1,))
    hearing.hear(incident.batches())
    assert found.verdicts
    assert hearing.verdicts() == found.verdicts
    assert hearing.iterations() == found.iterations


def test_a_job_heard_in_two_parts_is_judged_as_in_one(incident: Incident) -> None:
    hearing = Hearing(incident, (1.1,))
    hearing.hear(incident.batches(past=20), is_end=False)
    hearing.hear(incident.batches(20))
    assert [verdict.to_json() for verdict in hearing.verdicts()] == heard(incident)


def test_each_delta_is_judged_as_if_it_were_alone(incident: Incident) -> None:
    hearing = Hearing(incident, (1.1, 1.3, 9.0))
    hearing.hear(incident.batches())
    for number, delta in enumerate(hearing.deltas):
        assert [verdict.to_json() for verdict in hearing.verdicts(number)] == heard(incident, delta)
    assert hearing.verdicts(0)
    assert not hearing.verdicts(2)


def test_a_row_says_what_was_right_and_what_it_cost(incident: Incident) -> None:
    hearing = Hearing(incident, (1.1,))
    hearing.hear(incident.batches())
    row = judged_row(hearing, truth_of(incident), 22)
    assert row["is_top1"]
    assert row["truth"] == {"kind": "slow_rank", "culprits": (("gpu", 21),)}
    assert 1 <= row["iterations_to_verdict"] <= 8
    assert row["operators"] == 34 * len(incident.job.engine.plan.rows.step)
    assert row["log_bytes"] > row["operators"] * 40
    assert row["read_bytes"] > 0
    assert row["iterations"] == 34


@pytest.mark.parametrize(
    ("fault", "kind", "culprits"),
    [
        ("slow_host:host=3,from=9,factor=2", "slow_rank", (("host", "node-3"),)),
        ("slow_nic:rank=17,from=9,factor=4", "slow_nic", (("nic", "node-2", "mlx5_1"),)),
        ("slow_link:src=50,dst=18,from=9,factor=4", "slow_link", (("link", 18, 50),)),
        ("slow_switch:switch=1,from=9,factor=4", "slow_communicator", (("switch", "leaf-1"),)),
        ("slow_stage:stage=1,factor=2", "slow_stage", (("stage", *range(32, 64)),)),
        ("uneven_data:spread=0.2", "imbalance", ()),
        ("hang:rank=9,from=11", "hang", (("gpu", 9),)),
    ],
)
def test_the_truth_names_devices_as_verdicts_do(job: Incidents, fault: str, kind: str, culprits: Any) -> None:
    assert truth_of(job.run(fault)) == Truth(kind, culprits)


def test_a_job_without_faults_has_no_culprit(job: Incidents) -> None:
    assert truth_of(job.run()) == Truth("none", ())


def test_faults_of_one_device_are_one_culprit(job: Incidents) -> None:
    twice = job.run("slow_rank:rank=5,from=3,to=4,factor=2", "slow_rank:rank=5,from=8,to=9,factor=2")
    assert truth_of(twice).culprits == (("gpu", 5),)


# --- processes of their own -----------------------------------------------------------------------------------------


def test_a_fork_knows_what_this_process_knows_and_changes_nothing_here() -> None:
    known = {"answer": 42}

    def change() -> dict[str, Any]:
        known["answer"] += 1
        return dict(known)

    assert fork(change) == {"answer": 43}
    assert known == {"answer": 42}


def test_what_a_fork_raises_is_raised_here() -> None:
    def fail() -> dict[str, Any]:
        raise KeyError("no such case")

    with pytest.raises(KeyError, match="no such case"):
        fork(fail)


def test_a_fork_that_dies_is_an_error_and_no_silence() -> None:
    with pytest.raises(RuntimeError, match="its process died"):
        fork(lambda: os._exit(3))
