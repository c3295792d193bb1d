"""One job whose ranks spread over workers, one of which joins and another is killed: the verdicts are `analyze`'s."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from irregulars.infra.runs.analysis import analyze
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import monitor_settings
from irregulars.kafka.topics import TopicSettings, group_key, partition_of
from irregulars.producers.trace.directory import read_trace
from tests.integration.pipelines import AS_SHIPPED, COMMAND, Pipeline, Process
from tests.integration.worker_runs import wait_until

pytestmark = pytest.mark.integration

DEFAULTS = Settings()
PARTITIONS = TopicSettings().partitions
ITERATIONS = 100
SPEED = 0.15  # a minute and a half: a worker joins and another is killed while the job runs
JOB = "--set dp=8 --set pp=4 --set tp=8 --set micro_batches=2"  # 256 ranks on 32 hosts, whose rows come as bundles


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A job of 256 ranks, one of which turns slow in its first third, and another in its last."""
    slow = ("slow_rank:rank=37,from=25,to=45,excess=0.3", "slow_nic:rank=200,from=65,to=90,excess=0.4")
    faults = " ".join(f"--fault {one}" for one in slow)
    command = f"simulate {tmp_path / 'spread'} {JOB} --iterations {ITERATIONS} --seed 3 {faults} --json"
    subprocess.run([*COMMAND, *shlex.split(command)], check=True, stdout=subprocess.DEVNULL)
    return tmp_path / "spread"


@pytest.fixture
def partitions() -> int:
    """As many as users have."""
    return PARTITIONS


def restored(worker: Process) -> int:
    return worker.output().count("event=restored hop=rank")


def wait_for_iterations(pipeline: Pipeline, count: int) -> None:
    wait_until(lambda: pipeline.stored_iterations() >= count, f"{count} iterations")


def test_a_worker_that_joins_and_one_that_is_killed_change_no_verdict(recording: Path, pipeline: Pipeline) -> None:
    trace = read_trace(recording)
    groups = {f"{one.host}/0" for one in trace.announcements}
    spread = {partition_of(group_key("spread", group), PARTITIONS) for group in groups}
    assert len(spread) > PARTITIONS // 2, "ranks must lie on most partitions"
    first, second = pipeline.start_worker(**AS_SHIPPED), pipeline.start_worker(**AS_SHIPPED)
    wait_until(lambda: restored(first) >= 1 and restored(second) >= PARTITIONS // 2, "partitions for both")
    replay = pipeline.start("replay", str(recording), "--speed", str(SPEED), "--keep-times", "--json")
    wait_for_iterations(pipeline, ITERATIONS // 5)
    third = pipeline.start_worker(**AS_SHIPPED)
    wait_until(lambda: restored(third) >= 2, "partitions for the third")
    wait_for_iterations(pipeline, ITERATIONS * 2 // 5)
    assert replay.is_running, "the job must still run when a worker is killed"
    first.kill()
    wait_for_iterations(pipeline, ITERATIONS)
    assert replay.wait() == 0, replay.output()
    wanted = [one.to_json() for one in analyze(trace, monitor_settings(DEFAULTS)).verdicts]
    assert len(wanted) == 2, "each fault has a verdict"
    wait_until(lambda: len(closed(pipeline)) >= len(wanted), "the last revision of all verdicts")
    assert canonical(newest(pipeline)) == canonical(wanted)
    revisions = pipeline.revision_counts("verdicts")
    assert set(revisions.values()) == {1}, "no revision is told twice"
    assert second.stop(60.0) == 0
    assert third.stop(60.0) == 0


def newest(pipeline: Pipeline) -> list[dict[str, object]]:
    return [one.to_json() for one in pipeline.newest().values()]


def closed(pipeline: Pipeline) -> list[dict[str, object]]:
    return [one for one in newest(pipeline) if one["state"] == "closed"]


def canonical(verdicts: list[dict[str, object]]) -> bytes:
    return json.dumps(sorted(verdicts, key=lambda one: str(one["verdict_id"])), sort_keys=True).encode()
