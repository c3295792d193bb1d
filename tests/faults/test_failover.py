"""One of two workers is killed, with the settings that users have: nothing missing, nothing false, and soon."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings
from irregulars.producers.publishing.agent import Agent, Progress
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource
from tests.integration.pipelines import AS_SHIPPED, ITERATIONS, RECORDINGS, Pipeline, Process
from tests.integration.test_end_to_end import (
    FAULTY,
    REPLAYED,
    analysed,
    require_each_revision_once,
    stored_verdicts,
    verdicts_of,
)
from tests.integration.worker_runs import wait_until

pytestmark = pytest.mark.integration

DEFAULTS = Settings()
SPEED = 0.1
"""Of the replays, which then last a minute: the kill falls into the midst of them."""

RECOVERY_S = 60.0
"""A deadline, for a machine with much other work; what it takes is printed, and stands on the page of guarantees."""


class Gaps:
    """The longest time for which each job was without a new iteration in the database."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._newest: dict[str, tuple[int, float]] = {}
        self.longest_s: dict[str, float] = {}

    def look(self) -> dict[str, int]:
        """Note who has come further; return the iterations of each job."""
        now_s = time.monotonic()
        counts = stored_by_job(self._pipeline)
        for job, count in counts.items():
            before, since_s = self._newest.get(job, (0, now_s))
            if before < ITERATIONS:
                self.longest_s[job] = max(self.longest_s.get(job, 0.0), now_s - since_s)
            if count > before:
                self._newest[job] = count, now_s
        return counts

    def is_over(self) -> bool:
        return sorted(self.look().values()) == [ITERATIONS] * len(REPLAYED)


def stored_by_job(pipeline: Pipeline) -> dict[str, int]:
    if not pipeline.query("EXISTS TABLE iterations"):
        return {}
    rows = pipeline.client.query("SELECT job, count() FROM iterations FINAL GROUP BY job").result_rows
    return {str(job): int(count) for job, count in rows}


def test_one_of_two_workers_is_killed_with_default_settings(pipeline: Pipeline) -> None:
    """No verdict is missing and none is false and each job is judged again soon."""
    workers = [pipeline.start_worker(**AS_SHIPPED) for _ in range(2)]
    wait_until(lambda: all(w.output().count("event=restored hop=job") >= 2 for w in workers), "partitions for both")
    with ThreadPoolExecutor(len(REPLAYED)) as pool:
        replays = [pool.submit(replay_slowly, pipeline, name) for name in REPLAYED]
        wait_until(lambda: has_begun(pipeline), "a start")
        gaps = Gaps(pipeline)
        restored = workers[1].output().count("event=restored hop=job")
        killed_s = time.monotonic()
        workers[0].kill()
        all_partitions = restored + pipeline.bus.partitions
        wait_until(lambda: restored_jobs(workers[1], gaps) == all_partitions, "all partitions with the other worker")
        print(f"all partitions taken over after {time.monotonic() - killed_s:.1f} s, load {os.getloadavg()[0]:.1f}")
        wait_until(gaps.is_over, "all iterations")
        print("longest gaps, s:", gaps.longest_s)
        assert [replay.result(60).reason for replay in replays] == ["finished"] * len(replays)
    require_what_analyze_says(pipeline)
    assert workers[1].stop() == 0
    assert max(gaps.longest_s.values()) <= RECOVERY_S


def restored_jobs(worker: Process, gaps: Gaps) -> int:
    gaps.look()
    return worker.output().count("event=restored hop=job")


def test_the_defaults_leave_room_for_a_recovery_within_15_s() -> None:
    """Until the broker misses a worker, and until what the next one judges is stored at the latest."""
    assert DEFAULTS.session_s + DEFAULTS.snapshot_s <= 12.0


def replay_slowly(pipeline: Pipeline, name: str) -> Progress:
    """Replay a recording as an agent would send a job that runs: a batch for each half second."""
    source = TraceSource(read_trace(RECORDINGS / name), SPEED, max_span_s=0.5 * SPEED)
    return Agent(source, agent_settings(pipeline.settings)).run()


def has_begun(pipeline: Pipeline) -> bool:
    stored = stored_by_job(pipeline)
    return len(stored) == len(REPLAYED) and min(stored.values()) > 8


def require_what_analyze_says(pipeline: Pipeline) -> None:
    analyses = analysed(*REPLAYED)
    wanted = verdicts_of(analyses)
    assert len(wanted) == len(FAULTY)
    wait_until(lambda: stored_states(pipeline) == ["closed"] * len(wanted), "all verdicts closed")
    assert stored_verdicts(pipeline) == {name: verdict.to_json() for name, verdict in wanted.items()}
    require_each_revision_once(pipeline, analyses, REPLAYED)


def stored_states(pipeline: Pipeline) -> list[str]:
    return [row["state"] for row in pipeline.rows("verdicts").to_pylist()]
