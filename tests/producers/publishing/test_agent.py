from __future__ import annotations

import itertools
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from irregulars.errors import InputError, ServiceUnavailable
from irregulars.messages.announcements import (
    Announcement,
    Communicator,
    Heartbeat,
    SourceProgress,
    decode_announcement,
    decode_heartbeat,
)
from irregulars.messages.records import Batch, Header
from irregulars.producers.publishing.agent import Agent, AgentSettings
from irregulars.producers.publishing.publisher import Publisher
from irregulars.producers.publishing.sources import GONE, Record
from irregulars.producers.publishing.spool import Message
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.source import TraceSource
from tests.producers.given_source import GivenSource
from tests.producers.trace_directories import RECORDINGS


class CountsCloses(TraceSource):
    closes = 0

    def close(self) -> None:
        self.closes += 1


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(RECORDINGS / "gloo-clean")


@pytest.fixture
def nowhere() -> str:
    """An address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(("values", "text"), [
    ({"compression": "gzip"}, "compression must be zstd or lz4; got 'gzip'"),
    ({"queue_messages": 0}, "queue_messages must be at least 1; got 0"),
    ({"queue_bytes": 1000}, "queue_bytes must be at least 2097152; got 1000"),
    ({"heartbeat_s": 0.0}, "heartbeat_s must be above 0 and finite; got 0.0"),
    ({"broker_wait_s": float("inf")}, "broker_wait_s must be above 0 and finite; got inf"),
    ({"linger_ms": -1.0}, "linger_ms must be at least 0 and below broker_wait_s; got -1.0"),
    ({"linger_ms": 2000.0, "broker_wait_s": 1.0}, "linger_ms must be at least 0 and below broker_wait_s"),
])  # fmt: skip
def test_a_setting_that_breaks_its_rule_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        AgentSettings("127.0.0.1:9092", **values)


def test_settings_do_not_print_credentials() -> None:
    settings = AgentSettings("127.0.0.1:9092", kafka={"sasl.password": "swordfish"})
    assert "swordfish" not in repr(settings)


@pytest.mark.parametrize(("kafka", "text"), [
    ({"partitioner": "random"}, "must not hold 'partitioner'"),
    ({"no.such.setting": "1"}, 'No such configuration property: "no.such.setting"'),
    ({"security.protocol": "smoke"}, "security.protocol"),
])  # fmt: skip
def test_settings_that_librdkafka_refuses_are_ours(
    trace: Trace, nowhere: str, kafka: dict[str, str], text: str
) -> None:
    source = CountsCloses(trace, 0)
    with pytest.raises(InputError, match=text):
        Agent(source, AgentSettings(nowhere, kafka=kafka)).run()
    assert source.closes == 1


def test_a_broker_that_is_not_there_is_waited_for_within_bounds(trace: Trace, nowhere: str) -> None:
    source = CountsCloses(trace, 0)
    with pytest.raises(ServiceUnavailable, match=rf"^Kafka at {nowhere} must answer within 1 s; got .*refused"):
        Agent(source, AgentSettings(nowhere, broker_wait_s=1.0)).run()
    assert source.closes == 1
    assert source.position() == "records=0"


class Keeps(Publisher):
    """Keeps all messages, and knows no broker."""

    def __init__(self) -> None:
        super().__init__(AgentSettings("127.0.0.1:1"))
        self.sent: list[Message] = []

    def connect(self, topics: Sequence[str]) -> None:
        return

    def send(self, message: Message) -> None:
        self.sent.append(message)
        self.delivered.messages += 1

    def flush(self) -> None:
        return


ANNOUNCED = Announcement("job", 0, 0, 1, 1, (), sources=("bandwidth",))


def beats_of(*steps: Sequence[Record], heartbeat_s: float = 0.5) -> list[Heartbeat]:
    """All heartbeats of an agent, on a clock that each look moves by a second."""
    kept, seconds = Keeps(), itertools.count()
    clock_s, settings = (lambda: float(next(seconds))), AgentSettings("127.0.0.1:1", heartbeat_s=heartbeat_s)
    agent = Agent(
        GivenSource(*steps), settings, clock_s=clock_s, make_publisher=lambda _: kept, idle_s=0.0, ends_ranks=False
    )
    agent.run()
    return [decode_heartbeat(message.value) for message in kept.sent if message.topic == "heartbeats"]


def progress_of(*steps: Sequence[Record]) -> list[SourceProgress]:
    """Progress in the heartbeats before the agent's last; one is due after each record and empty step."""
    beats = beats_of([ANNOUNCED], *steps)[:-1]
    assert all(one.sources.keys() == {"bandwidth"} for one in beats)
    return [one.sources["bandwidth"] for one in beats]


def samples(first: int) -> Batch:
    """Two samples of rank 0, after `first` others."""
    header = Header("bandwidth", "job", 0, 0, rows_before=first, watermark_ns=first + 2, names=("mlx5_0",))
    zeros = np.zeros(2)
    own = {"time_ns": np.arange(first + 1, first + 3), "path": zeros.astype(np.uint8)}
    own |= {"device": zeros.astype(np.uint16), "tx_bytes_per_s": zeros, "rx_bytes_per_s": zeros}
    return Batch(header, own)


def test_no_heartbeats_are_sent_of_earlier_attempts_or_ranks_that_are_gone() -> None:
    """As of a job whose processes were killed and started again several times."""
    killed = [Announcement("job", attempt, rank, 2, 2, ()) for attempt in range(5) for rank in range(2)]
    assert [(one.attempt, one.rank) for one in beats_of(killed, heartbeat_s=1e9)] == [(4, 0), (4, 1)]
    beats = beats_of([ANNOUNCED], [], [Heartbeat("job", 0, 0, state=GONE)], *[[]] * 20)
    assert [one.state for one in beats] == ["running"]


def test_a_name_that_no_message_can_carry_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"^name of the job must be below 4096 bytes; got 70002$"):
        beats_of([Announcement("j" * 70_000, 0, 0, 2, 2, ())])


def test_a_heartbeat_says_at_once_what_no_batch_can_and_nothing_more() -> None:
    assert progress_of([samples(0)], [samples(2)], [samples(4)]) == [SourceProgress(0)]
    lost = Heartbeat("job", 0, 0, {"bandwidth": SourceProgress(2, 9, lost_rows=5)})
    expected = [SourceProgress(0), SourceProgress(2, 9, lost_rows=5)]
    assert progress_of([samples(0)], [lost], [samples(2)], []) == expected
    assert len(progress_of(*[[]] * 20)) == 3


class Away(Keeps):
    """As one whose broker is away, with little to send: it waits in memory, and is behind nothing."""

    def send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.mark.parametrize(
    ("kind", "hours", "again"),
    [(Keeps, 0.02, 0), (Away, 0.1, 7), (Keeps, 30, 22)],
    ids=["all is well", "Kafka is away", "the host is suspended each time"],
)
def test_ranks_are_announced_again_where_nothing_came_for_long(kind: type[Keeps], hours: float, again: int) -> None:
    """A worker forgets a rank of which nothing came for a day: all its rows went to the dead letters from then on."""
    settings = AgentSettings("127.0.0.1:1", heartbeat_s=0.5)
    kept, seconds, moments = kind(), itertools.count(), itertools.count(step=hours)
    newest = replace(ANNOUNCED, communicators=(Communicator("world", "world", (0,)),))
    Agent(
        GivenSource([ANNOUNCED, newest], *[[]] * 19), settings, clock_s=lambda: float(next(seconds)),
        make_publisher=lambda _: kept, idle_s=0.0, ends_ranks=False, now_s=lambda: 3600.0 * next(moments),
    ).run()  # fmt: skip
    announced = [decode_announcement(message.value) for message in kept.sent if message.topic == "jobs"]
    assert announced[0] == ANNOUNCED
    assert [one for one in announced[1:] if one == ANNOUNCED] == ([ANNOUNCED] if hours > 6 else [])
    assert len(announced) == 2 + again
