from __future__ import annotations

import json
from dataclasses import fields
from itertools import chain
from pathlib import Path

import pytest

from irregulars.producers.simulator.job.reality import RealitySettings
from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.logs import source
from irregulars.producers.trace.directory import read_trace
from tests.infra.test_cli import Run, run

__all__ = ["run"]  # the fixture

SMALL = ("--dp", "2", "--pp", "2", "--tp", "2", "--iterations", "12")


def test_it_writes_a_trace_that_reads_back_with_its_truth(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("simulate", "out", *SMALL, "--fault", "slow_rank:rank=5,from=6,excess=0.4")
    assert status == 0
    assert "slow_rank on rank 5 in iterations 6 to 11: +4" in out
    assert "Next: irregulars analyze out" in out
    assert read_trace(tmp_path / "out").world_size == 8
    assert json.loads((tmp_path / "out" / "label.json").read_text())["rank"] == 5


def test_its_truth_is_json_if_wanted_and_nothing_else(run: Run) -> None:
    faults = ("--fault", "slow_rank:rank=5,from=2,to=4,factor=3", "--fault", "hang:rank=1,from=9")
    status, out, _ = run("simulate", "out", *SMALL, *faults, "--clock", "per_host", "--json")
    label = json.loads(out)
    assert status == 0
    assert [fault["kind"] for fault in label["faults"]] == ["slow_rank", "hang"]


def test_flags_reach_the_job(run: Run, tmp_path: Path) -> None:
    flags = ("--cp", "2", "--ep", "2", "--shards", "2", "--logged", "tp_leaders", "--preset", "untidy")
    times = ("--workload", "3:1.5", "--evaluate-every", "5", "--checkpoint-every", "4", "--unmarked")
    assert run("simulate", "out", *SMALL, *flags, *times)[0] == 0
    job = json.loads((tmp_path / "out" / "job.json").read_text())
    assert job["world_size"] == 64
    assert job["logged_ranks"] == list(range(0, 64, 2))
    assert {"cp", "ep"} <= {one["kind"] for one in job["communicators"].values()}


NOVELTIES = {
    "gradient_sync": ("--gradient-sync", "fsdp"), "gradient_buckets": ("--buckets", 3), "fsdp_units": ("--units", 2),
    "cp_exchange": ("--cp-exchange", "ring"), "expert_spread_ratio": ("--expert-spread-ratio", 0.2),
    "expert_work_ratio": ("--expert-work-ratio", 0.4), "is_gradient_overlapped": ("--overlapped", True),
    "is_launched_ahead": ("--queued", True), "gpus_per_nic": ("--gpus-per-nic", 2),
    "gpus_per_host": ("--gpus-per-host", 4), "is_nic_contended": ("--contended", True),
    "host_phase_ratio": ("--host-phase-ratio", 0.04), "host_phase_iterations": ("--host-phase-iterations", 9.0),
    "iteration_spread_ratio": ("--iteration-spread-ratio", 0.02), "micro_batch_tail": ("--micro-batch-tail", 4.0),
    "replica_spread_ratio": ("--replica-spread-ratio", 0.02), "stalls_per_iteration": ("--stalls-per-iteration", 0.1),
    "micro_batch_spread_ratio": ("--micro-batch-spread-ratio", 0.12), "pause_ms": ("--pause-ms", 2.0),
    "pause_probability": ("--pause-probability", 0.01), "pause_tail_index": ("--pause-tail-index", 1.5),
    "warmup_iterations": ("--warmup-iterations", 3), "warmup_ratio": ("--warmup-ratio", 0.5),
    "compile_ms": ("--compile-ms", 100.0), "connect_ms": ("--connect-ms", 5.0),
    "time_resolution_ns": ("--time-resolution-ns", 1000), "elapsed_clock_ppm": ("--elapsed-clock-ppm", 5.0),
    "shared_clock_error_us": ("--shared-clock-error-us", 20.0), "logged": ("--logged", "some_ranks"),
    "unlogged_ratio": ("--unlogged-ratio", 0.25),
}  # fmt: skip


def test_every_novelty_has_a_flag_that_reaches_the_job(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[SimulatorSettings] = []
    monkeypatch.setattr(source, "simulate_trace", lambda _, job, **__: jobs.append(job) or {})
    texts = [[flag] if value is True else [flag, str(value)] for flag, value in NOVELTIES.values()]
    status, _, err = run("simulate", "out", *SMALL, "--cp", "2", "--ep", "2", *chain.from_iterable(texts))
    assert (status, err) == (0, "")
    assert {name: getattr(jobs[0], name) for name in NOVELTIES} == {n: value for n, (_, value) in NOVELTIES.items()}
    assert NOVELTIES.keys() >= {field.name for field in fields(RealitySettings)}


def test_a_shape_and_the_field_are_a_start_that_flags_change(run: Run, tmp_path: Path) -> None:
    start = ("--shape", "fsdp", "--preset", "field", "--dp", "16", "--iterations", "4", "--unlogged-ratio", "0.5")
    ramp = ("--fault", "slow_rank:rank=3,from=1,factor=2,shape=ramp,over=3", "--logged", "some_ranks")
    assert run("simulate", "out", *start, *ramp)[0] == 0
    job = json.loads((tmp_path / "out" / "job.json").read_text())
    assert job["world_size"] == 16
    assert len(job["logged_ranks"]) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fault", "slow_gpu:rank=1"), "fault must begin with one of slow_rank"),
        (("--fault", "slow_rank:rank=8,factor=2"), "rank must be below 8; got 8 (fault slow_rank)"),
        (("--preset", "wild"), "preset must be one of default, tidy, suite, untidy, field; got 'wild'"),
        (("--shape", "sphere"), "shape must be one of pipeline, ddp, fsdp"),
        (("--clock", "gps"), "clock must be one of shared, per_host; got 'gps'"),
        (("--workload", "3"), "workload must be ITERATION:FACTOR, as 80:1.5; got '3'"),
        (("--chunks", "2"), "pp must be 3 or more where model_chunks is above 1; got 2"),
    ],
)
def test_a_job_that_can_not_be_is_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = run("simulate", "out", *SMALL, *arguments)
    assert status == 2
    assert not out
    assert message in err
    assert err.count("\n") == 1


def test_a_place_that_can_not_be_written_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    status, _, err = run("simulate", "taken", *SMALL)
    assert status == 2
    assert "OUT must be a directory that can be written" in err
