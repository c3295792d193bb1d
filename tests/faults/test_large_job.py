"""A job whose state is many messages, through a worker that is killed in the middle."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.runs.analysis import analyze
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import monitor_settings
from irregulars.kafka.topics import MAX_MESSAGE_BYTES, SNAPSHOT_TOPICS
from irregulars.producers.trace.directory import read_trace
from tests.integration.pipelines import COMMAND, Pipeline
from tests.integration.test_end_to_end import stored_verdicts
from tests.integration.worker_runs import DEADLINE_S, wait_until

pytestmark = pytest.mark.integration

RANKS, ITERATIONS = 256, 24
SPEED = 0.25  # 15 seconds: the worker is killed while the job runs
LEAST_BYTES = 300  # of a job's state for each of its ranks, once some iterations are judged


def is_as_far(pipeline: Pipeline, wanted: dict[str, Any]) -> bool:
    """Whether each verdict had all its revisions: they come to the database by another way than iterations."""
    stored = stored_verdicts(pipeline)
    return all(one in stored and stored[one]["revision"] >= verdict["revision"] for one, verdict in wanted.items())


def test_a_job_whose_state_is_many_messages_is_judged_as_by_analyze(pipeline: Pipeline, tmp_path: Path) -> None:
    directory = tmp_path / "job"
    own = f"--set dp=16 --set pp=4 --set tp=4 --set micro_batches=4 --iterations {ITERATIONS} --json"
    fault = f"slow_rank:rank=5,from={ITERATIONS // 2},to={ITERATIONS * 7 // 8},excess=0.3"
    command = [*COMMAND, "simulate", str(directory), *shlex.split(own), "--fault", fault]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    verdicts = analyze(read_trace(directory), monitor_settings(Settings())).verdicts
    wanted = {verdict.verdict_id: verdict.to_json() for verdict in verdicts}
    worker = pipeline.start_worker()
    replay = pipeline.start("replay", str(directory), "--speed", str(SPEED), "--keep-times", "--json")
    wait_until(lambda: pipeline.stored_iterations() >= ITERATIONS // 2, "half of the iterations")

    def sizes(topic: str) -> list[int]:
        return [len(message.value() or b"") for message in pipeline.bus.read(topic)]

    with replay.suspended():  # a judge that has much to do lets nobody take its state
        wait_until(lambda: sum(sizes("job_snapshots")) >= RANKS * LEAST_BYTES, "a snapshot of the job")
        worker.kill()
    second = pipeline.start_worker()
    partitions = 2 * pipeline.settings.partitions
    wait_until(lambda: second.output().count("event=restored") >= partitions, "a restart")
    wait_until(lambda: pipeline.stored_iterations() == ITERATIONS, "all iterations")
    wait_until(lambda: is_as_far(pipeline, wanted), "the last revision of all verdicts")
    assert replay.wait(DEADLINE_S) == 0, replay.output()
    assert second.stop(60.0) == 0, second.output()[-2000:]
    assert wanted
    assert stored_verdicts(pipeline) == wanted
    assert max(size for topic in SNAPSHOT_TOPICS for size in sizes(topic)) < MAX_MESSAGE_BYTES
    restored_bytes = sum(map(int, re.findall(r"event=restored .*read_bytes=(\d+)", second.output())))
    assert restored_bytes > RANKS * 300  # it went on from pieces, and did not begin anew
