"""On a worker: a job that is killed and starts again elsewhere under its name and attempt; two jobs of one name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from irregulars.infra.wiring import agent_settings
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource
from irregulars.producers.trace.writer import write_trace
from tests.integration.pipelines import Pipeline, Process
from tests.integration.worker_runs import wait_until
from tests.streams.eight_ranks import HOSTS, EightRanks
from tests.streams.lockstep_job import MS

pytestmark = pytest.mark.integration

FAR_NS = 2_000_000_000_000_000_000
GRACE_S = 5.0


def record(
    folder: Path, name: str, iterations: int, late: Callable[[int, int], bool] = lambda number, rank: False
) -> Path:
    """Record a job on hosts of this name, of iterations of 25 ms, whose ranks are late where it says so."""
    places = {rank: {**place, "host": f"{name}-{rank // 2}"} for rank, place in HOSTS.items()}
    made = EightRanks(places, job="one-name", start_ns=FAR_NS)
    made.late_ns = lambda number, rank: 20 * MS * late(number, rank)
    trace = made.trace(iterations)
    batches = [batch for schema in ("commops", "iterations") for batch in trace.batches(schema).values()]
    write_trace(folder / name, trace.announcements, batches)
    return folder / name


def replay(pipeline: Pipeline, directory: Path) -> Process:
    return pipeline.start("replay", str(directory), "--speed", "1", "--now", "--json")


def is_closed(pipeline: Pipeline) -> bool:
    verdicts = pipeline.newest()
    return bool(verdicts) and all(one.state == "closed" for one in verdicts.values())


def test_the_host_is_named_on_which_a_killed_job_started_again(pipeline: Pipeline, tmp_path: Path) -> None:
    worker = pipeline.start_worker(grace_s=GRACE_S)
    old, new = (
        record(tmp_path, "OLD", 800),
        record(tmp_path, "NEW", 110, lambda number, rank: rank == 3 and number >= 50),
    )
    before = replay(pipeline, old)
    wait_until(lambda: len(pipeline.bus.read("commops")) > 20, "some rows of the first start")
    before.kill()
    assert replay(pipeline, new).wait() == 0
    wait_until(lambda: is_closed(pipeline), "the verdict")
    (verdict,) = pipeline.newest().values()
    assert (verdict.suspects[0].host, verdict.suspects[0].rank, verdict.attempt) == ("NEW-1", 3, 2)
    assert verdict.iterations == (50, 110)
    assert "event=two_jobs_of_one_name" not in worker.output()


def test_two_jobs_of_one_name_are_told_and_nobody_is_named(pipeline: Pipeline, tmp_path: Path) -> None:
    worker = pipeline.start_worker(grace_s=GRACE_S)
    slow = replay(pipeline, record(tmp_path, "SLOW", 800, lambda number, rank: rank == 3 and number >= 50))
    wait_until(lambda: len(pipeline.bus.read("commops")) > 0, "some rows of the first job")
    other = replay(pipeline, record(tmp_path, "OTHER", 800))
    wait_until(lambda: "event=two_jobs_of_one_name job='one-name'" in worker.output(), "a line about the two")
    assert slow.wait() == other.wait() == 0
    wait_until(lambda: is_closed(pipeline), "the end")
    assert not any(one.close_reason == "recovered" for one in pipeline.revisions())
    assert all(not one.suspects for one in pipeline.newest().values())


def test_without_ids_the_contradiction_is_told_and_nobody_is_named(pipeline: Pipeline, tmp_path: Path) -> None:
    worker = pipeline.start_worker(grace_s=GRACE_S)
    old, new = (
        record(tmp_path, "OLD", 40),
        record(tmp_path, "NEW", 110, lambda number, rank: rank == 3 and number >= 50),
    )
    for directory, is_ended in ((old, False), (new, True)):
        Agent(TraceSource(read_trace(directory), 0), agent_settings(pipeline.settings), ends_ranks=is_ended).run()
    wait_until(lambda: "event=job_contradicts job='one-name' what=host" in worker.output(), "a line about the hosts")
    wait_until(lambda: is_closed(pipeline), "the end")
    assert all(not one.suspects and one.close_reason != "recovered" for one in pipeline.newest().values())
