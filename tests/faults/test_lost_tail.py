"""Kafka loses what it has acknowledged, as after an unclean leader election: whoever publishes goes on.

librdkafka's idempotent producer refuses all further work then (OUT_OF_ORDER_SEQUENCE_NUMBER, fatal).
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.bundles import decode_batches
from irregulars.messages.judgements import Verdict
from irregulars.producers.publishing.publisher import AgentSettings, Publisher
from irregulars.producers.publishing.spool import Message
from irregulars.producers.publishing.spooling_publisher import SpoolingPublisher, SpoolSettings
from irregulars.sinks.connection import DatabaseSettings
from irregulars.sinks.notices.state_log import StateLog
from tests.apache_kafka.broker import KafkaBroker
from tests.integration.pipelines import COMMAND, Pipeline, replaying_agent
from tests.integration.worker_runs import Bus, wait_until

pytestmark = pytest.mark.integration

KEY = b"job/0"
VALUES = [b"%03d" % number for number in range(120)]
BEFORE = 80
"""Acknowledged before the broker dies, ten to a request: a log cut off elsewhere ends with a whole request."""

Send = Callable[[Sequence[bytes]], object]
"""Publishes values with `KEY` on the topic ``jobs``; returns when all are acknowledged."""


def cut(broker: KafkaBroker, topic: str, share: float) -> None:
    """Cut the end of the log of partition 0 off while the broker is down, and let it forget its producers."""
    folder = broker._data.path / "data" / f"{topic}-0"
    log = max(folder.glob("*.log"))
    with log.open("r+b") as file:
        file.truncate(int(log.stat().st_size * (1 - share)))
    for path in folder.iterdir():
        if path.suffix in (".index", ".timeindex", ".snapshot"):
            path.unlink()


def by_publisher(broker: KafkaBroker, topics: TopicSettings, folder: Path) -> Iterator[Send]:
    yield from _by_agents(Publisher(AgentSettings(broker.bootstrap, topics)))


def by_spooling_publisher(broker: KafkaBroker, topics: TopicSettings, folder: Path) -> Iterator[Send]:
    spool = SpoolSettings(folder, final_s=60.0)
    yield from _by_agents(SpoolingPublisher(AgentSettings(broker.bootstrap, topics), spool))


def _by_agents(publisher: Publisher) -> Iterator[Send]:
    def send(values: Sequence[bytes]) -> None:
        for value in values:
            publisher.send(Message("jobs", KEY, value))
        publisher.flush()

    publisher.connect(["jobs"])
    yield send
    assert publisher.delivered.messages == len(VALUES)
    publisher.close()


def by_outbox(broker: KafkaBroker, topics: TopicSettings, folder: Path) -> Iterator[Send]:
    outbox = Outbox(broker.bootstrap, {}, 60.0)

    async def deliver(values: Sequence[bytes]) -> None:
        for value in values:
            await outbox.send(topics.name("jobs"), KEY, value, headers=[("number", value)])
        await asyncio.wait_for(outbox.barrier(), 60.0)

    yield lambda values: asyncio.run(deliver(values))
    outbox.close()


def by_state_log(broker: KafkaBroker, topics: TopicSettings, folder: Path) -> Iterator[Send]:
    with closing(StateLog(broker.bootstrap, topics, {}, threading.Event())) as log:
        yield lambda values: [log._write("jobs", (KEY, value), headers=[("number", value)]) for value in values]


@pytest.mark.parametrize("way", [by_publisher, by_spooling_publisher, by_outbox, by_state_log])
def test_what_was_not_acknowledged_is_published_in_order(
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    way: Callable[[KafkaBroker, TopicSettings, Path], Iterator[Send]],
) -> None:
    topics = TopicSettings(f"cut-{uuid4().hex[:8]}-", 1)
    create_topics(kafka_broker.bootstrap, topics)
    sending = way(kafka_broker, topics, tmp_path)
    send = next(sending)
    for begin in range(0, BEFORE, 10):
        send(VALUES[begin : begin + 10])
    kafka_broker.kill()
    cut(kafka_broker, topics.name("jobs"), 0.35)
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(send, VALUES[BEFORE:])
        kafka_broker.start()
        sent.result(90)
    assert next(sending, None) is None
    with closing(LogReader(kafka_broker.bootstrap, {})) as reader:
        found = list(reader.read_tail(topics.name("jobs"), 0))
    kept = len(found) - len(VALUES[BEFORE:])
    assert 10 < kept < BEFORE, "the broker must have lost some, and kept some"
    assert [message.value() for message in found] == VALUES[:kept] + VALUES[BEFORE:]
    assert {message.headers() is None for message in found} == {way in (by_publisher, by_spooling_publisher)}
    assert caplog.text.count("event=producer_made_anew") == 1


SPEED = 0.7
"""Of the simulated job, which then takes 40 s."""

JOBS = ("replayed", "simulated")
"""Of the command `replay`, and of an agent."""


def test_replay_and_agent_go_on_and_the_verdicts_are_right(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    pipeline = Pipeline(kafka_broker.bootstrap, DatabaseSettings("http://127.0.0.1:1"), tmp_path, partitions=1)
    topic = pipeline.bus.topics.name("commops")
    job = tmp_path / "job"
    simulate = "simulate --shape ddp --set dp=8 --preset tidy --fault slow_rank:rank=3,from=70,to=90,excess=0.3"
    subprocess.run([*COMMAND, *simulate.split(), "--iterations", "120", str(job)], check=True)
    try:
        replay = pipeline.start("replay", str(job), "--speed", str(SPEED), "--job", JOBS[0], "--json")
        agent = pipeline.start("agent", str(replaying_agent(tmp_path, job, SPEED)))
        wait_until(lambda: are_underway(pipeline.bus), "iterations of both jobs")
        kafka_broker.kill()
        cut(kafka_broker, topic, 0.35)
        kafka_broker.start()
        worker = pipeline.start("worker", "--no-store")
        assert replay.wait(120) == 0, replay.output()
        wait_until(lambda: closed_verdicts(pipeline).keys() == set(JOBS), "verdicts of both jobs")
        assert agent.stop(90) == 0
        for one in (replay, agent):
            assert one.output().count("event=producer_made_anew") == 1
            assert "Traceback" not in one.output()
        assert "event=spool_kept" not in agent.output()
        assert worker.stop(90) == 0
        for job, found in closed_verdicts(pipeline).items():
            (verdict,) = found
            assert (verdict.kind, verdict.suspects[0].rank, verdict.iterations[0]) == ("slow_rank", 3, 70), job
    finally:
        pipeline.close()


def are_underway(bus: Bus) -> bool:
    """Whether 35 iterations of each job are on the topic, and those that are slow are not yet."""
    newest: dict[str, int] = {}
    for message in bus.read("commops"):
        for batch in decode_batches(message.value(), "commops"):
            newest[batch.header.job] = int(np.max(batch.columns["iteration"]))
    return len(newest) == len(JOBS) and min(newest.values()) >= 35


def closed_verdicts(pipeline: Pipeline) -> dict[str, list[Verdict]]:
    found = [one for one in pipeline.revisions() if one.state == "closed"]
    return {job: [one for one in found if one.job == job] for job in {one.job for one in found}}
