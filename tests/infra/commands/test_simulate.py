from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest

from irregulars.producers.simulator import source
from irregulars.producers.simulator.settings import SimulatorSettings, described_keys, with_preset, with_shape
from irregulars.producers.trace.directory import read_trace
from tests.infra.conftest import Run, refused


def sets(**values: object) -> list[str]:
    return [text for key, value in values.items() for text in ("--set", f"{key}={value}")]


SMALL = (*sets(dp=2, pp=2, tp=2), "--iterations", "12")


def test_it_writes_a_trace_that_reads_back_with_its_truth(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("simulate", "out", *SMALL, "--fault", "slow_rank:rank=5,from=6,excess=0.4")
    assert status == 0
    assert "slow_rank on rank 5 in iterations 6 to 11: +4" in out
    assert "Next: irregulars analyze out" in out
    assert read_trace(tmp_path / "out").world_size == 8
    assert json.loads((tmp_path / "out" / "label.json").read_text())["rank"] == 5


def test_its_truth_is_json_if_wanted_and_nothing_else(run: Run) -> None:
    faults = ("--fault", "slow_rank:rank=5,from=2,to=4,factor=3", "--fault", "hang:rank=1,from=9")
    status, out, _ = run("simulate", "out", *SMALL, *faults, "--preset", "off_clocks", "--json")
    label = json.loads(out)
    assert status == 0
    assert [fault["kind"] for fault in label["faults"]] == ["slow_rank", "hang"]


def test_settings_reach_the_job_after_its_shape_and_presets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[SimulatorSettings] = []
    monkeypatch.setattr(source, "simulate_trace", lambda _, job, **__: jobs.append(job) or {})
    own = sets(dp=16, unlogged_ratio=0.25, logged="some_hosts", is_launched_ahead="false", hidden="tp,barrier",
               workload_changes="3:1.5,9:1", clock_drift_ppm=7)  # fmt: skip
    presets = ("--preset", "field", "--preset", "off_clocks")
    assert run("simulate", "out", "--shape", "fsdp", *presets, "--iterations", "4", "--seed", "3", *own)[0] == 0
    wanted = with_preset(with_preset(with_shape(SimulatorSettings(), "fsdp"), "field"), "off_clocks")
    assert jobs == [replace(
        wanted, iterations=4, seed=3, dp=16, unlogged_ratio=0.25, logged="some_hosts", is_launched_ahead=False,
        hidden=("tp", "barrier"), workload_changes=((3, 1.5), (9, 1.0)), clock_drift_ppm=7.0,
    )]  # fmt: skip


def test_a_trace_has_the_ranks_that_are_wanted(run: Run, tmp_path: Path) -> None:
    ramp = ("--fault", "slow_rank:rank=3,from=1,factor=2,shape=ramp,over=3")
    own = sets(cp=2, ep=2, shards=2, logged="tp_leaders", checkpoint_every=4, is_checkpoint_marked="false")
    assert run("simulate", "out", *SMALL, *own, *ramp)[0] == 0
    job = json.loads((tmp_path / "out" / "job.json").read_text())
    assert job["world_size"] == 64
    assert job["logged_ranks"] == list(range(0, 64, 2))
    assert {"cp", "ep"} <= {one["kind"] for one in job["communicators"].values()}


def test_every_setting_is_a_key_that_the_help_lists(run: Run) -> None:
    _, out, _ = run("simulate", "--help")
    listed = {pair.partition("=")[0] for keys, _ in described_keys() for pair in keys.split(", ")}
    assert listed == {field.name for field in fields(SimulatorSettings)} - {"faults"}
    assert all(re.search(rf"\b{key}=", out) for key in listed)


@pytest.mark.parametrize(("arguments", "message"), [
    (("--fault", "slow_gpu:rank=1"), "fault must begin with one of slow_rank"),
    (("--fault", "slow_rank:rank=8,factor=2"), "rank must be below 8; got 8 (fault slow_rank)"),
    (("--preset", "wild"), "preset must be one of default, tidy, suite, untidy, field, off_clocks; got 'wild'"),
    (("--shape", "sphere"), "shape must be one of pipeline, ddp, fsdp"),
    (sets(clock="gps"), "clock must be one of shared, per_host; got 'gps'"),
    (sets(workload_changes="3"), "workload_changes must be pairs ITERATION:FACTOR, as 80:1.5; got '3'"),
    (sets(dp="two"), "dp must be an integer; got 'two' (--set dp=two)"),
    (sets(microbatches=2), "got 'microbatches' (--set microbatches=2); did you mean micro_batches?"),
    (sets(faults="hang:rank=1"), "got 'faults' (--set faults=hang:rank=1); it is given by --fault"),
    (("--set", "dp"), "a setting of the job must be KEY=VALUE; got 'dp' (--set)"),
    (sets(model_chunks=2), "pp must be 3 or more where model_chunks is above 1; got 2"),
])  # fmt: skip
def test_a_job_that_can_not_be_is_one_line(run: Run, arguments: Sequence[str], message: str) -> None:
    assert message in refused(run, "simulate", "out", *SMALL, *arguments)


def test_a_place_that_can_not_be_written_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    assert "OUT must be a directory that can be written" in refused(run, "simulate", "taken", *SMALL)
