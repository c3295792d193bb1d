"""Topics are deleted and made anew: what comes then is read, all of it, and nothing is told twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

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
    job.announce()
    job.run(iterations)
    job.end()
    bus.flush()
    return job.wanted_ids()


def require_told(bus: Bus, wanted: set[str], worker: Worker) -> None:
    def are_told() -> bool:
        assert worker.is_running, worker.output()[-2000:]
        return set(bus.verdict_ids()) >= wanted

    wait_until(are_told, f"{len(wanted)} verdicts")


def twice(found: Counter[str]) -> list[str]:
    return [name for name, count in found.items() if count > 1]


def test_a_deleted_topic_ends_a_worker_and_is_read_from_its_beginning_once_it_is_made_anew(
    bus: Bus, start_worker: StartWorker
) -> None:
    worker = start_worker()
    wanted = run(bus, "before", LONG)
    require_told(bus, wanted, worker)
    delete(bus, "commops", "heartbeats")
    wait_until(lambda: not worker.is_running, "the end of the worker")
    assert "Run: irregulars topics create" in worker.output().splitlines()[-1]
    make_anew(bus)
    wanted |= run(bus, "after", SHORT)
    worker = start_worker()
    require_told(bus, wanted, worker)
    assert worker.output().count("event=topic_made_anew") == 2
    assert "event=topic_made_anew topic=commops" in worker.output()
    assert worker.stop() == 0
    worker = start_worker()
    wanted |= run(bus, "last", SHORT) | run_last_jobs(bus)
    require_told(bus, wanted, worker)
    assert worker.stop() == 0
    assert "event=topic_made_anew" not in worker.output()
    assert twice(bus.verdict_ids()) == twice(bus.verdict_ids("alerts")) == []


ANEW = (
    ("commops",),
    ("jobs", "iterations", "bandwidth", "gpu_health", "heartbeats"),
    ("evidence",),
    ("progress",),
    ("rank_snapshots",),
    ("job_snapshots",),
    ("verdicts", "alerts"),  # last of what keeps results: whoever loses both can't know what was told
    ("feedback", "thresholds"),
)


def is_read_anew(worker: Worker, topics: Sequence[str]) -> bool:
    _, found, since = worker.output().rpartition(f"event=topics_changed topics={','.join(sorted(topics))} ")
    return bool(found) and "event=restored hop=job partition=3" in since  # the last of them


def test_topics_made_anew_while_a_worker_runs_are_read_from_their_beginning(
    bus: Bus, start_worker: StartWorker
) -> None:
    worker = start_worker()
    told = run(bus, "before", LONG)
    require_told(bus, told, worker)
    for number, topics in enumerate(ANEW):
        make_anew(bus, *topics)
        told |= run(bus, f"after-{number}", SHORT)
        require_told(bus, told, worker)
        wait_until(partial(is_read_anew, worker, topics), "partitions that are restored")
    run_last_jobs(bus)
    assert worker.stop() == 0
    for topic in ("verdicts", "alerts"):
        assert twice(bus.verdict_ids(topic)) == []


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
