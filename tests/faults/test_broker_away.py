"""The broker is away for long under a working worker: it waits, says so once, and goes on; or it stops in time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.apache_kafka.broker import KafkaBroker
from tests.integration.worker_runs import Bus, Job, Worker, require_each_once, wait_until

pytestmark = pytest.mark.integration

SESSION_S = 6.0
AWAY_S = 20.0
"""Longer than the session: the group has forgotten the worker when the broker is back."""


def has_ended(worker: Worker) -> bool:
    return worker.process.poll() is not None


def test_a_worker_waits_for_its_broker_and_says_so_once(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bus = Bus(kafka_broker.bootstrap)
    job = Job(bus, "waiting", ranks=4)
    job.announce()
    job.run(20)
    bus.flush()
    worker = Worker(bus, tmp_path, session_s=SESSION_S, broker_timeout_s=10.0)
    try:
        wait_until(lambda: len(bus.verdict_ids()) >= 4 * 18 or has_ended(worker), "verdicts before")
        kafka_broker.kill()
        time.sleep(AWAY_S)
        assert worker.process.poll() is None, "the worker must wait for its broker"
        kafka_broker.start()
        job.run(20)
        job.end()
        bus.flush()
        wait_until(lambda: set(bus.verdict_ids()) >= job.wanted_ids() or has_ended(worker), "verdicts after")
        assert worker.process.poll() is None
        said = worker.output()
        assert said.count("event=broker_away") == said.count("event=broker_back") == 1
        assert "Traceback" not in said
        assert [line for line in said.splitlines() if "level=ERROR" in line or "level=CRITICAL" in line] == []
        require_each_once(bus, job.wanted_ids(), worker)
    finally:
        print(worker.output()[-12000:])
        if worker.process.poll() is None:
            worker.kill()


def test_a_worker_stops_within_its_time_while_the_broker_is_away(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bus = Bus(kafka_broker.bootstrap)
    job = Job(bus, "stopped", ranks=4)
    job.announce()
    job.run(20)
    bus.flush()
    worker = Worker(bus, tmp_path, stop_s=5.0)
    try:
        wait_until(lambda: len(bus.verdict_ids()) >= 4 * 18 or has_ended(worker), "verdicts before")
        kafka_broker.kill()
        time.sleep(1.0)
        worker.process.send_signal(signal.SIGTERM)
        worker.process.wait(30.0)  # 5 s, and what a busy machine takes to end it
        assert "Traceback" not in worker.output()
        assert worker.process.returncode in (0, 1)
    finally:
        print(worker.output()[-6000:])
        if worker.process.poll() is None:
            worker.kill()
        bus.close()
