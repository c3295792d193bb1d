"""A broker that refuses the first request for a partition, and takes the second: nothing acknowledged may be lost."""

from __future__ import annotations

import asyncio
import struct
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

import pytest
from confluent_kafka import KafkaError, Message, Producer

from irregulars.infra.runs.child_process import HOST, free_port
from irregulars.kafka.log_reader import LogReader
from irregulars.kafka.topics import SENDING
from tests.apache_kafka.broker import KafkaBroker
from tests.integration.worker_runs import make_topics

_PRODUCE: Final = 0
_OTHERS_S: Final = 0.5  # in which a client that sends more without waiting has sent it


class RefusingGate:
    """Forwards whole requests and responses, and lets no produce request for `topic` through that is the first.

    That one goes to the broker under the name of a topic that does not exist, and its refusal comes back under the
    right name, after `_OTHERS_S`: a client that waits for no answer has sent its next request by then.
    """

    def __init__(self, port: int, target: int, topic: str) -> None:
        self.port = port
        self._target = target
        self._name = topic.encode()
        self._wrong_name = b"x" * len(self._name)
        self.refused = 0

    async def serve(self) -> None:
        """Serve until cancelled."""
        async with await asyncio.start_server(self._connect, HOST, self.port) as server:
            await server.serve_forever()

    async def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
        refused: set[int] = set()
        with suppress(OSError, asyncio.IncompleteReadError):
            await asyncio.gather(
                self._requests(reader, far_writer, refused), self._responses(far_reader, writer, refused)
            )
        writer.close()
        far_writer.close()

    async def _requests(self, reader: StreamReader, writer: StreamWriter, refused: set[int]) -> None:
        while True:
            frame = await _read_frame(reader)
            kind, _, correlation = struct.unpack_from(">hhi", frame)
            if kind == _PRODUCE and self._name in frame and not self.refused:
                self.refused += 1
                refused.add(correlation)
                frame = frame.replace(self._name, self._wrong_name)
            _write_frame(writer, frame)

    async def _responses(self, reader: StreamReader, writer: StreamWriter, refused: set[int]) -> None:
        while True:
            frame = await _read_frame(reader)
            if struct.unpack_from(">i", frame)[0] in refused:
                await asyncio.sleep(_OTHERS_S)
                frame = frame.replace(self._wrong_name, self._name)
            _write_frame(writer, frame)


async def _read_frame(reader: StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _write_frame(writer: StreamWriter, frame: bytes) -> None:
    writer.write(struct.pack(">i", len(frame)) + frame)


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
    assert producer.flush(60) == 0
    return acknowledged


def test_what_is_acknowledged_is_stored(gate: RefusingGate) -> None:
    bootstrap = f"{HOST}:{gate.port}"
    make_topics(bootstrap, TOPIC)
    acknowledged = send_one_by_one(bootstrap, SENDING)
    reader = LogReader(bootstrap, {})
    stored = [message.value() for message in reader.read_tail(TOPIC, 0)]
    reader.close()
    assert gate.refused == 1
    assert len(acknowledged) == MESSAGES
    assert stored == [b"%d" % number for number in range(MESSAGES)]
