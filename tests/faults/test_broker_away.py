"""The broker is away at a worker's start or under it: it waits, says so once, and goes on; or it stops in time."""

from __future__ import annotations

import signal
import time

import pytest

from tests.apache_kafka.broker import KafkaBroker
from tests.integration.worker_runs import Bus, Job, StartWorker, Worker, require_each_once, wait_until

pytestmark = pytest.mark.integration

AWAY_S = 20.0
"""Longer than the session: the group has forgotten the worker when the broker is back."""


@pytest.fixture
def kafka_bootstrap(kafka_broker: KafkaBroker) -> str:
    """Put the bus of these tests on a broker that may be killed."""
    return kafka_broker.bootstrap


def wait_for_verdicts(job: Job, worker: Worker) -> None:
    wait_until(lambda: len(job.bus.verdict_ids()) >= 4 * 18 or not worker.is_running, "verdicts before")


def require_said_once(worker: Worker) -> None:
    said = worker.output()
    assert said.count("event=broker_away") == said.count("event=broker_back") == 1
    assert "Traceback" not in said


def test_a_worker_waits_for_its_broker_once(kafka_broker: KafkaBroker, bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "waiting", ranks=4)
    job.begin(20)
    worker = start_worker(broker_timeout_s=10.0)
    wait_for_verdicts(job, worker)
    kafka_broker.kill()
    time.sleep(AWAY_S)
    assert worker.is_running, "the worker must wait for its broker"
    kafka_broker.start()
    job.finish(20)
    wait_until(lambda: set(bus.verdict_ids()) >= job.wanted_ids() or not worker.is_running, "verdicts after")
    assert worker.is_running
    require_said_once(worker)
    said = worker.output().splitlines()
    assert [line for line in said if "level=ERROR" in line or "level=CRITICAL" in line] == []
    require_each_once(bus, job.wanted_ids(), worker)


def test_a_broker_away_at_start_is_awaited(kafka_broker: KafkaBroker, bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "later", ranks=4)
    kafka_broker.kill()
    worker = start_worker(broker_timeout_s=2.0)
    wait_until(lambda: "event=broker_away" in worker.output() or not worker.is_running, "a broker that is away")
    time.sleep(6.0)
    assert worker.is_running, worker.output()
    kafka_broker.start()
    job.run_whole(40)
    require_each_once(bus, job.wanted_ids(), worker)
    require_said_once(worker)


def test_a_killed_broker_loses_nothing(kafka_broker: KafkaBroker, bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "outage", ranks=4)
    job.begin(20)
    worker = start_worker()
    wait_for_verdicts(job, worker)
    kafka_broker.kill()
    time.sleep(3.0)
    kafka_broker.start()
    job.finish(20)
    if not worker.is_running:  # it may give up; whoever runs it starts it again
        worker = start_worker()
    require_each_once(bus, job.wanted_ids(), worker)


def test_without_a_broker_it_stops_in_time(kafka_broker: KafkaBroker, bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "stopped", ranks=4)
    job.begin(20)
    worker = start_worker(stop_s=5.0)
    wait_for_verdicts(job, worker)
    kafka_broker.kill()
    time.sleep(1.0)
    worker.process.send_signal(signal.SIGTERM)
    worker.process.wait(30.0)  # 5 s, and what a busy machine takes to end it
    assert "Traceback" not in worker.output()
    assert worker.process.returncode in (0, 1)
