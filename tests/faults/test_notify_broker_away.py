"""A broker that goes away and comes back while ``irregulars notify`` runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings
from irregulars.sinks.notices.mutes import Mute
from irregulars.sinks.notices.state_log import StateLog
from tests.apache_kafka.broker import KafkaBroker
from tests.integration.notify_runs import NotifyRun, send_alert, webhook
from tests.integration.worker_runs import Bus, wait_until
from tests.sinks.notices.receiver import Receiver

pytestmark = pytest.mark.integration

AWAY_S = 10.0
STOPS_S = 20.0


@pytest.fixture
def kafka_bootstrap(kafka_broker: KafkaBroker) -> str:
    """Put the bus of these tests on a broker that may be killed."""
    return kafka_broker.bootstrap


def test_a_broker_that_was_away_costs_no_notice_and_few_lines(
    kafka_broker: KafkaBroker, bus: Bus, start_notify: Callable[..., NotifyRun]
) -> None:
    with Receiver() as receiver:
        run = start_notify(webhook(receiver.url))
        send_alert(bus, "v1")
        wait_until(lambda: len(receiver.requests) == 1, "a notice")
        kafka_broker.kill()
        time.sleep(AWAY_S)
        assert run.process.poll() is None
        kafka_broker.start()
        send_alert(bus, "v1", 2, "closed")
        send_alert(bus, "v2")
        wait_until(lambda: len(receiver.requests) == 3, "what came afterwards")
        assert run.stop() == 0
    assert sum(" level=WARNING " in line for line in run.output().splitlines()) < 20
    assert "Traceback" not in run.output()
    assert [(one["incident"], one["event"]) for one in receiver.bodies()] == [
        ("v1", "opened"), ("v1", "resolved"), ("v2", "opened"),
    ]  # fmt: skip


def test_a_stop_needs_no_broker(kafka_broker: KafkaBroker, bus: Bus, start_notify: Callable[..., NotifyRun]) -> None:
    with Receiver() as receiver:
        run = start_notify(webhook(receiver.url))
        kafka_broker.kill()
        time.sleep(5)
        begin_s = time.monotonic()
        assert run.stop() == 0
        assert time.monotonic() - begin_s < STOPS_S
    kafka_broker.start()


def test_what_a_slow_broker_takes_after_a_stop_is_waited_for(kafka_broker: KafkaBroker, topic_prefix: str) -> None:
    topics, is_stopping = TopicSettings(topic_prefix, 1), threading.Event()
    create_topics(kafka_broker.bootstrap, topics)
    with closing(StateLog(kafka_broker.bootstrap, topics, {}, is_stopping)) as log:
        log.set_mute(Mute("before", 1, 2, "tested", "ada", host="a"))
        is_stopping.set()
        assert kafka_broker.pid is not None
        os.kill(kafka_broker.pid, signal.SIGSTOP)
        goes_on = threading.Timer(1.0, os.kill, (kafka_broker.pid, signal.SIGCONT))
        goes_on.start()
        try:
            log.set_mute(Mute("after", 1, 2, "tested", "ada", host="a"))
        finally:
            goes_on.join()
        assert {one.mute_id for one in log.mutes()} == {"before", "after"}
