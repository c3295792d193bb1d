"""Topics are deleted and made anew: what comes then is read, all of it, and nothing is told twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from irregulars.streams.kafka.topic_admin import create_topics, delete_topics
from tests.integration.worker_runs import Bus, Job, StartWorker, Worker, run_last_jobs, wait_until

pytestmark = pytest.mark.integration

LONG, SHORT = 30, 6
"""Iterations of the job before, and of those after: their messages stand at offsets that were read before."""


def make_anew(bus: Bus, *topics: str) -> None:
    delete_topics(bus.bootstrap, [bus.topics.name(topic) for topic in topics], {})
    for topic in topics:
        bus._read_to = {place: at for place, at in bus._read_to.items() if place[0] != bus.topics.name(topic)}
    wait_until(lambda: are_there(bus, topics), "topics that are made anew")


def are_there(bus: Bus, topics: Sequence[str]) -> bool:
    try:
        report = create_topics(bus.bootstrap, bus.topics)
    except KafkaException as error:  # it is being deleted
        assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        return False
    known = AdminClient({"bootstrap.servers": bus.bootstrap}).list_topics(timeout=10).topics
    return bool(report) and {bus.topics.name(topic) for topic in topics} <= known.keys()


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


def test_a_topic_made_anew_while_no_worker_runs_is_read_from_its_beginning(
    bus: Bus, start_worker: StartWorker
) -> None:
    worker = start_worker()
    wanted = run(bus, "before", LONG)
    require_told(bus, wanted, worker)
    assert worker.stop() == 0
    make_anew(bus, "commops", "heartbeats")
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
