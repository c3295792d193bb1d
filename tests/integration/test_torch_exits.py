"""Kafka as a way out of the training process: what stands on the topics, and a broker that dies. Without torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings
from irregulars.producers.publishing.agent import AgentSettings
from irregulars.producers.torch_hook.exporters import Kafka
from tests.apache_kafka.broker import KafkaBroker
from tests.integration.test_agent import PARTITIONS, read_topics
from tests.integration.worker_runs import wait_until
from tests.producers.torch_hook.sources import Rank

pytestmark = pytest.mark.integration

ITERATIONS = 5
DEADLINE_S = 60.0


class Publishing:
    """A rank whose exit runs in a thread, as in training."""

    def __init__(self, settings: AgentSettings) -> None:
        self.rank, self.stopping, self.troubles = Rank(0), threading.Event(), list[Exception]()
        exporter = Kafka(settings.bootstrap, settings.topics, self.troubles.append)
        self._thread = threading.Thread(target=exporter.run, args=(self.rank.source, self._wait))
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _wait(self, seconds: float) -> bool:
        return self.stopping.wait(seconds) if seconds else self.stopping.is_set()


@contextmanager
def publishing(bootstrap: str, topic_prefix: str) -> Iterator[tuple[Publishing, AgentSettings]]:
    settings = AgentSettings(bootstrap, TopicSettings(topic_prefix, PARTITIONS))
    create_topics(bootstrap, settings.topics)
    running = Publishing(settings)
    try:
        yield running, settings
    finally:
        running.stop()


def test_what_a_rank_did_stands_on_the_topics(kafka_bootstrap: str, topic_prefix: str) -> None:
    with publishing(kafka_bootstrap, topic_prefix) as (running, settings):
        running.rank.train(ITERATIONS)
        running.stop()
        published = read_topics(settings)
    assert [(one.job, one.rank) for one in published.announcements] == [("job", 0)]
    for schema in ("commops", "iterations"):
        assert published.rows(schema, 0)["iteration"].tolist() == list(range(ITERATIONS))
    assert published.heartbeats[0][-1].state == "ended"
    assert running.troubles == []


def test_training_goes_on_without_a_broker_and_rows_come_later(kafka_broker: KafkaBroker, topic_prefix: str) -> None:
    with publishing(kafka_broker.bootstrap, topic_prefix) as (running, settings):
        running.rank.train(1)
        wait_until(lambda: bool(read_topics(settings).batches), "its first rows")
        kafka_broker.kill()
        for number in range(1, ITERATIONS):
            with running.rank.iterations.mark(number):
                running.rank.operate(number)
        kafka_broker.start()
        # A process that ends gives up on a broker soon, so as not to hold up its job: the rows come before that.
        wait_until(
            lambda: iterations_on(settings) == list(range(ITERATIONS)), "the rows of the time without a broker"
        )


def iterations_on(settings: AgentSettings) -> list[int]:
    published: list[int] = read_topics(settings).rows("commops", 0)["iteration"].tolist()
    return published
