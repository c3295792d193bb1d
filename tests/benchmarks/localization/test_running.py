from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.runs.analysis import analyze
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.trace.directory import read_trace
from tests.benchmarks.incidents import Incident, Incidents, suite_case
from tests.benchmarks.localization.processes import fork
from tests.benchmarks.localization.running import Hearing, judged_row, truth_of
from tests.benchmarks.localization.scoring import Truth

SETTINGS = suite_case(SimulatorSettings(dp=4, pp=2, tp=8, iterations=34, seed=8, bandwidth_period_ms=50.0), 1)


@pytest.fixture(scope="module")
def job() -> Incidents:
    return Incidents(SETTINGS)


@pytest.fixture(scope="module")
def incident(job: Incidents) -> Incident:
    return job.run("slow_rank:rank=21,from=22,to=30,excess=0.5")


def test_the_suite_judges_as_analyze_does_in_one_part_and_in_two(incident: Incident, tmp_path: Path) -> None:
    incident.write(tmp_path / "trace")
    found = analyze(read_trace(tmp_path / "trace"))
    hearing, parts = Hearing(incident, 1.1), Hearing(incident, 1.1)
    hearing.hear(incident.batches())
    parts.hear(incident.batches(past=20), is_end=False)
    parts.hear(incident.batches(20))
    assert found.verdicts
    assert hearing.verdicts() == parts.verdicts() == found.verdicts
    assert hearing.iterations == found.iterations
    row = judged_row(hearing, truth_of(incident), 22)
    assert row["is_top1"]
    assert row["truth"] == {"kind": "slow_rank", "culprits": (("gpu", 21),)}
    assert 1 <= row["iterations_to_verdict"] <= 8
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


def test_faults_of_one_device_are_one_culprit_and_none_has_none(job: Incidents) -> None:
    assert truth_of(job.run()) == Truth("none", ())
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


def test_a_fork_that_raises_or_dies_is_an_error_and_no_silence() -> None:
    def fail() -> dict[str, Any]:
        raise KeyError("no such case")

    with pytest.raises(KeyError, match="no such case"):
        fork(fail)
    with pytest.raises(RuntimeError, match="its process died"):
        fork(lambda: os._exit(3))
