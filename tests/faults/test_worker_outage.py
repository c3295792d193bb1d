"""The broker dies under a working worker, and comes back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.apache_kafka.broker import KafkaBroker
from tests.integration.worker_runs import Bus, Job, Worker, require_each_once, wait_until

pytestmark = pytest.mark.integration


def test_nothing_is_lost_and_nothing_comes_twice_when_the_broker_is_killed(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    bus = Bus(kafka_broker.bootstrap)
    job = Job(bus, "outage", ranks=4)
    job.announce()
    job.run(20)
    bus.flush()
    worker = Worker(bus, tmp_path)
    try:
        wait_until(lambda: len(bus.verdict_ids()) >= 4 * 18, "verdicts before")
        kafka_broker.kill()
        time.sleep(3.0)
        kafka_broker.start()
        job.run(20)
        job.end()
        bus.flush()
        if worker.process.poll() is not None:  # it may give up; whoever runs it starts it again
            worker = Worker(bus, tmp_path)
        require_each_once(bus, job.wanted_ids(), worker)
    finally:
        print(worker.output()[-6000:])
        if worker.process.poll() is None:
            worker.kill()
