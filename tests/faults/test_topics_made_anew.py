"""Topics are deleted and made anew: workers end, and read them from their beginning once the snapshots are gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from irregulars.kafka.topic_admin import create_topics, delete_topics, topics_there
from tests.integration.worker_runs import Bus, Job, StartWorker, Worker, run_last_jobs, wait_until

pytestmark = pytest.mark.integration

LONG, SHORT = 30, 6
"""Iterations of the job before, and of those after: their messages stand at offsets that were read before."""


def make_anew(bus: Bus, *topics: str) -> None:
    delete(bus, *topics)
    for topic in topics:
        bus._read_to = {place: at for place, at in bus._read_to.items() if place[0] != bus.topics.name(topic)}
    wait_until(lambda: are_there(bus, topics), "topics that are made anew")


def delete(bus: Bus, *topics: str) -> None:
    delete_topics(bus.bootstrap, [bus.topics.name(topic) for topic in topics], {})


def are_there(bus: Bus, topics: Sequence[str]) -> bool:
    create_topics(bus.bootstrap, bus.topics)
    return {bus.topics.name(topic) for topic in topics} <= set(topics_there(bus.bootstrap, bus.topics, {}))


def run(bus: Bus, name: str, iterations: int, ranks: int = 4) -> set[str]:
    """Let a job run to its end; return the ids of its verdicts, one for each row of evidence."""
    job = Job(bus, name, ranks)
    job.run_whole(iterations)
    return job.wanted_ids()


def require_told(bus: Bus, wanted: set[str], worker: Worker) -> None:
    def are_told() -> bool:
        assert worker.is_running, worker.output()[-2000:]
        return set(bus.verdict_ids()) >= wanted

    wait_until(are_told, f"{len(wanted)} verdicts")


def twice(found: Counter[str]) -> list[str]:
    return [name for name, count in found.items() if count > 1]


SNAPSHOTS = ("rank_snapshots", "job_snapshots")


def require_ended(worker: Worker, *words: str) -> None:
    """Wait until a worker has ended with status 1, and with one line that has these words."""
    wait_until(lambda: not worker.is_running, "the end of the worker")
    assert worker.stop() == 1
    (line,) = (line for line in worker.output().splitlines() if line.startswith("irregulars worker: "))
    assert all(word in line for word in words), line


def test_a_deleted_topic_ends_a_worker_as_does_one_made_anew_meanwhile(bus: Bus, start_worker: StartWorker) -> None:
    worker = start_worker()
    told = run(bus, "before", LONG)
    require_told(bus, told, worker)
    delete(bus, "commops", "heartbeats")
    require_ended(worker, "Run: irregulars topics create")
    make_anew(bus)
    names = ", ".join(bus.topics.name(topic) for topic in ("commops", "heartbeats"))
    require_ended(start_worker(), f"got {names}, deleted and made anew", f"delete {bus.topics.name(SNAPSHOTS[0])}")
    make_anew(bus, *SNAPSHOTS)
    told |= run(bus, "after", SHORT)
    worker = start_worker()
    require_told(bus, told | run_last_jobs(bus), worker)
    assert worker.stop() == 0
    assert twice(bus.verdict_ids()) == twice(bus.verdict_ids("alerts")) == []


@pytest.mark.parametrize(
    "topics", [("commops",), ("evidence",), ("progress",), ("job_snapshots",), ("verdicts", "alerts")]
)
def test_topics_made_anew_under_a_worker_end_it_and_are_read_from_their_beginning_without_snapshots(
    bus: Bus, start_worker: StartWorker, topics: tuple[str, ...]
) -> None:
    worker = start_worker()
    told = run(bus, "before", LONG)
    require_told(bus, told, worker)
    make_anew(bus, *topics)
    require_ended(worker, "deleted and made anew", *map(bus.topics.name, topics))
    make_anew(bus, *SNAPSHOTS)
    wanted = run(bus, "after", SHORT)
    worker = start_worker()
    require_told(bus, wanted | run_last_jobs(bus), worker)
    assert worker.stop() == 0
    if "verdicts" not in topics:  # else nothing is left that says what was told
        assert set(bus.verdict_ids()) >= told
        assert twice(bus.verdict_ids()) == twice(bus.verdict_ids("alerts")) == []


@pytest.mark.parametrize("topic", ["evidence", "job_snapshots"])
def test_a_topic_that_stays_away_is_told_and_ends_the_worker(bus: Bus, start_worker: StartWorker, topic: str) -> None:
    worker = start_worker(broker_away_s=8.0)
    require_told(bus, run(bus, "before", SHORT), worker)
    delete(bus, topic)
    wait_until(lambda: not worker.is_running, "the end of the worker")
    said = worker.output()
    assert said.count("event=topics_missing") == 1
    assert f"got none named {bus.topics.name(topic)}" in said
    assert "Traceback" not in said
