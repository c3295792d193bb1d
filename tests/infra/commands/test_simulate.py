from __future__ import annotations

import json
from pathlib import Path

import pytest

from producers.trace import read_trace
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fault", "slow_gpu:rank=1"), "fault must begin with one of slow_rank"),
        (("--fault", "slow_rank:rank=8,factor=2"), "rank must be below 8; got 8 (fault slow_rank)"),
        (("--preset", "wild"), "preset must be one of default, tidy, suite, untidy; got 'wild'"),
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
