"""Jobs whose states can't be read begin anew, though retention has deleted what they began with."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from irregulars.streams.snapshots.published_verdicts import VERDICT_TOPICS
from irregulars.streams.snapshots.records import POSITION_KEY, PositionRecord, decode_record
from tests.integration.pipelines import ITERATIONS, Pipeline, held_replay
from tests.integration.test_end_to_end import is_open
from tests.integration.worker_runs import Bus, Job, Worker, partition_of, wait_until

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("is_killed", [True, False])
def test_old_verdicts_are_not_read_at_each_start(kafka_bootstrap: str, tmp_path: Path, is_killed: bool) -> None:
    bus = Bus(kafka_bootstrap)
    names = (name for number in itertools.count() if partition_of((name := f"job-{number}").encode(), bus) == 0)
    gone, kept = Job(bus, next(names), ranks=2), Job(bus, next(names), ranks=2)
    run_and_judge(bus, tmp_path, gone)
    bus.delete_all("evidence")
    run_and_judge(bus, tmp_path, kept, is_killed=is_killed)
    bus.spoil("job_snapshots", "damaged")
    workers = [Worker(bus, tmp_path)]
    wait_until(lambda: "event=begun_anew" in workers[0].output(), "a beginning anew")
    wait_until(lambda: "event=restored hop=job partition=0" in workers[0].output(), "a restored partition")
    time.sleep(3.0)  # what would come twice comes now
    assert workers[0].stop() == 0
    assert max(bus.verdict_ids().values()) == max(bus.verdict_ids("alerts").values()) == 1
    ends = newest_position(bus, partition=0).ends
    assert ends is not None
    assert sum(ends["verdicts"].values()) == len(gone.wanted_ids() | kept.wanted_ids())
    bus.close()


def run_and_judge(bus: Bus, folder: Path, job: Job, *, is_killed: bool = False) -> None:
    """Let a worker judge a job; one that is killed has stored nothing of it."""
    job.run_whole(10)
    worker = Worker(bus, folder, **({"snapshot_s": 3600.0} if is_killed else {}))
    wait_until(
        lambda: all(set(bus.verdict_ids(topic)) >= job.wanted_ids() for topic in VERDICT_TOPICS),
        "verdicts and alerts",
    )
    if is_killed:
        worker.kill()
    else:
        assert worker.stop() == 0


def newest_position(bus: Bus, partition: int) -> PositionRecord:
    own = [m for m in bus.read("job_snapshots") if (m.partition(), m.key()) == (partition, POSITION_KEY)]
    record = decode_record(POSITION_KEY, own[-1].value() or b"")
    assert isinstance(record, PositionRecord)
    return record


def test_a_job_whose_announcements_are_deleted_is_judged_again_and_opens_nothing_twice(pipeline: Pipeline) -> None:
    worker = pipeline.start_worker()
    with held_replay(pipeline, "gloo-slow-rank", 78) as go_on:  # its fault is in iterations 60 to 79
        wait_until(lambda: is_open(pipeline.revisions()), "an open verdict")
        assert worker.stop() == 0
        pipeline.bus.delete_all("evidence")
        pipeline.bus.spoil("job_snapshots", "damaged")
        go_on.set()
        worker = pipeline.start_worker()
    judged = "SELECT max(iteration) FROM iterations FINAL"
    wait_until(lambda: int(pipeline.query(judged)) == ITERATIONS - 1, "the last iteration")
    assert worker.stop() == 0
    assert "event=begun_anew hop=job" in worker.output()
    assert int(pipeline.query("SELECT min(ranks_reported) FROM iterations FINAL WHERE iteration > 100")) == 4
    opened = [verdict for verdict in pipeline.revisions("alerts") if verdict.event in ("opened", "raised")]
    assert len({verdict.verdict_id for verdict in pipeline.revisions()}) == len(opened) == 1
