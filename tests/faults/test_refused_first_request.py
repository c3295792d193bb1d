"""A broker that refuses the first request for a partition, and takes the second: nothing acknowledged may be lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from irregulars.infra.runs.child_process import HOST, free_port
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topics import SENDING
from tests.apache_kafka.broker import KafkaBroker
from tests.faults.refusing_gate import RefusingGate

pytestmark = pytest.mark.integration

TOPIC = "just-made-topic"
MESSAGES = 6


class BrokerBehindGate(KafkaBroker):
    """Tells its clients the address of a gate."""

    gate_port = 0

    def _own_properties(self) -> Mapping[str, str]:
        return {"advertised.listeners": f"PLAINTEXT://{HOST}:{self.gate_port}"}


@pytest.fixture
def gate() -> Iterator[RefusingGate]:
    broker = BrokerBehindGate()
    broker.gate_port = free_port()
    gate = RefusingGate(broker.gate_port, int(broker.bootstrap.rpartition(":")[2]), TOPIC)
    runner = asyncio.Runner()
    loop = runner.get_loop()
    serving = loop.create_task(gate.serve())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([serving])))
    with broker:
        thread.start()
        yield gate
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(10)
    runner.close()


def send_one_by_one(bootstrap: str, config: Mapping[str, str | int | bool]) -> list[Message]:
    """Send messages in requests of their own; return those that were acknowledged."""
    acknowledged: list[Message] = []

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None
        acknowledged.append(message)

    producer = Producer({"bootstrap.servers": bootstrap, **config, "batch.num.messages": 1, "linger.ms": 0})
    for number in range(MESSAGES):
        producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=note)
    assert producer.flush(30) == 0
    return acknowledged


def test_what_is_acknowledged_is_stored(gate: RefusingGate) -> None:
    bootstrap = f"{HOST}:{gate.port}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (made,) = admin.create_topics([NewTopic(TOPIC, 1, 1)]).values()
    made.result()
    acknowledged = send_one_by_one(bootstrap, SENDING)
    reader = LogReader(bootstrap, {})
    stored = [message.value() for message in reader.read_tail(TOPIC, 0)]
    reader.close()
    assert gate.refused == 1
    assert len(acknowledged) == MESSAGES
    assert stored == [b"%d" % number for number in range(MESSAGES)]
