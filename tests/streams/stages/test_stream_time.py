"""The clocks of a worker: they stand while anybody lags, and never say more than was read."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.kafka.log_reader import ReadingThread
from irregulars.streams.stages.partition_state import Offsets, PartitionState
from irregulars.streams.stages.rank_stage import RankStage
from irregulars.streams.stages.stream_time import MOST_LOOKS, ProgressLog, ReadThrough, StreamTime
from tests.present import present

ROOT = Path(__file__).resolve().parents[3]
RANK_TOPICS = ("commops", "heartbeats")


class Log:
    """What stands on the topics, and how far the workers said that they had read."""

    def __init__(self, partitions: int = 2) -> None:
        self.ends: dict[str, list[int]] = {topic: [0] * partitions for topic in (*RANK_TOPICS, "evidence")}
        self.told: dict[int, Offsets] = {}
        self.is_away = False
        self.clocks = StreamTime(RANK_TOPICS, "evidence", self.ask_ends, self)

    async def ask_ends(self, topics: Collection[str]) -> Mapping[int, Offsets]:
        if self.is_away:
            raise ConnectionError("no broker")
        partitions = range(len(self.ends["evidence"]))
        return {partition: {topic: self.ends[topic][partition] for topic in topics} for partition in partitions}

    async def read(self) -> dict[int, Offsets]:
        return dict(self.told)

    async def write(self, partition: int, positions: Offsets) -> None:
        self.told[partition] = positions

    def tell_all(self) -> None:
        self.told = {p: {topic: self.ends[topic][p] for topic in RANK_TOPICS} for p in range(2)}

    def look(self) -> float:
        """Look, and return the moment before it."""
        before_s = self.clocks.now_s()
        asyncio.run(self.clocks.look())
        return before_s


@pytest.fixture
def log() -> Log:
    return Log()


def test_nothing_is_known_before_the_first_look(log: Log) -> None:
    assert log.clocks.rank_until_s(0, {}) is None
    assert log.clocks.job_until_s(0, {}) is None


def test_the_first_hop_s_clock_follows_its_own_partition(log: Log) -> None:
    log.ends = {"commops": [5, 9], "heartbeats": [1, 1], "evidence": [0, 0]}
    before_s = log.look()
    assert log.clocks.rank_until_s(0, {"commops": 4, "heartbeats": 1}) is None
    assert log.clocks.rank_until_s(1, {"commops": 4, "heartbeats": 1}) is None
    until_s = present(log.clocks.rank_until_s(0, {"commops": 5, "heartbeats": 1}))
    assert before_s <= until_s <= log.clocks.now_s()


def test_the_second_hop_waits_for_all_partitions_of_the_first(log: Log) -> None:
    log.ends = {"commops": [5, 9], "heartbeats": [1, 1], "evidence": [3, 0]}
    log.told = {0: {"commops": 5, "heartbeats": 1}}  # the worker that has partition 1 is dead
    log.look()
    log.look()
    assert log.clocks.job_until_s(0, {"evidence": 3}) is None
    log.tell_all()
    log.look()
    assert log.clocks.job_until_s(0, {"evidence": 3}) is not None


def test_the_second_hop_waits_for_the_evidence_of_what_the_first_has_read(log: Log) -> None:
    log.ends = {"commops": [5, 9], "heartbeats": [1, 1], "evidence": [3, 0]}
    log.tell_all()
    before_s = log.look()
    assert log.clocks.job_until_s(0, {"evidence": 2}) is None
    until_s = present(log.clocks.job_until_s(0, {"evidence": 3}))
    assert until_s >= before_s


def test_what_the_first_hop_read_since_the_last_look_counts_as_of_that_look(log: Log) -> None:
    log.ends["commops"] = [5, 9]
    first_s = log.look()
    log.tell_all()
    log.ends["commops"] = [50, 90]  # more was sent, and nobody has read it
    second_s = log.look()
    until_s = present(log.clocks.job_until_s(0, {"evidence": 0}))
    assert first_s <= until_s <= second_s


def test_without_a_broker_the_clocks_stand(log: Log) -> None:
    log.tell_all()
    log.look()
    until_s = log.clocks.job_until_s(0, {"evidence": 0})
    log.is_away = True
    log.look()
    assert log.clocks.job_until_s(0, {"evidence": 0}) == until_s
    log.is_away = False
    log.look()
    again_s = log.clocks.job_until_s(0, {"evidence": 0})
    assert until_s is not None
    assert again_s is not None
    assert again_s > until_s


def test_a_new_assignment_begins_anew(log: Log) -> None:
    log.tell_all()
    log.look()
    log.clocks.forget()
    assert log.clocks.rank_until_s(0, {"commops": 0, "heartbeats": 0}) is None
    assert log.clocks.job_until_s(0, {"evidence": 0}) is None


async def test_a_request_that_hangs_is_the_only_one(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faust's fetches go through the same few threads."""
    monkeypatch.setattr("irregulars.streams.stages.stream_time._ANSWER_S", 0.01)
    asked = []

    async def hang(topics: Collection[str]) -> Mapping[int, Offsets]:
        asked.append(topics)
        await asyncio.Event().wait()
        raise AssertionError

    clocks = StreamTime(RANK_TOPICS, "evidence", hang, log)
    for _ in range(5):
        await clocks.look()
    assert len(asked) == 1


def test_a_standing_clock_is_told_once_a_minute(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log.ends["commops"] = [5, 9]
    log.told = {0: {"commops": 5}}
    began_s = log.clocks.now_s()
    for after_s in (0.0, 59.0, 62.0, 64.0, 121.0, 124.0):
        monkeypatch.setattr(log.clocks, "now_s", lambda now_s=began_s + after_s: now_s)
        log.look()
    told = [record.getMessage() for record in caplog.records if "time_stands" in record.getMessage()]
    assert told == ["event=time_stands for_s=60 partitions=1"] * 2


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_step_of_the_system_clock_changes_nothing(log: Log, monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    log.tell_all()
    log.look()
    before_s = log.clocks.job_until_s(0, {"evidence": 0})
    stepped = time.time
    monkeypatch.setattr(time, "time", lambda: stepped() + step_s)
    now_s = log.clocks.now_s()
    log.look()
    after_s = log.clocks.job_until_s(0, {"evidence": 0})
    assert before_s is not None
    assert after_s is not None
    assert before_s < now_s <= after_s < before_s + 60.0


def test_nothing_that_judges_reads_the_system_s_clock() -> None:
    """The monitors are told the time; whoever tells it counts from the start of the process."""
    reading = re.compile(r"\btime\.time\(|\btime_ns\(\)|datetime\.(now|utcnow|today)\(")
    rooms = ("streams", "detectors", "irregulars/messages", "irregulars/kafka")
    sources = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in sources if reading.search(path.read_text())}
    assert found == {
        "irregulars/kafka/oauth_tokens.py",  # whether a token has expired
        "streams/stages/stream_time.py",  # once, at the start
        "streams/stages/job_topics.py",  # where reading of old verdicts begins, 30 days too early
    }


def test_it_stands_while_reading_lags_and_goes_on_with_it() -> None:
    clock: ReadThrough[str] = ReadThrough()
    for second in range(60):
        clock.look(float(second), {"commops": 100 * second, "jobs": 4})
    assert clock.advance({"commops": 1_050, "jobs": 4}) == 10.0
    assert clock.advance({"commops": 1_050, "jobs": 4}) == 10.0
    assert clock.advance({"commops": 5_900, "jobs": 4}) == 59.0


def test_each_place_must_have_been_read() -> None:
    clock: ReadThrough[str] = ReadThrough()
    clock.look(1.0, {"commops": 5, "jobs": 2})
    assert clock.advance({"commops": 9}) is None
    assert clock.advance({"commops": 9, "jobs": 1}) is None
    assert clock.advance({"commops": 9, "jobs": 2}) == 1.0


def test_where_nothing_is_sent_each_look_moves_it() -> None:
    clock: ReadThrough[str] = ReadThrough()
    for second in (1.0, 2.0, 700.0):
        clock.look(second, {"commops": 5})
    assert clock.advance({"commops": 5}) == 700.0


@pytest.mark.parametrize("looks", [MOST_LOOKS + 1, 20 * MOST_LOOKS])
def test_a_long_lag_takes_bounded_memory_and_never_runs_ahead(looks: int) -> None:
    clock: ReadThrough[str] = ReadThrough()
    for second in range(looks):
        clock.look(float(second), {"commops": second})
    assert len(clock._looks) <= MOST_LOOKS + 1
    half = present(clock.advance({"commops": looks // 2}))
    assert looks // 2 - looks / 8 < half <= looks // 2
    assert clock.advance({"commops": looks}) == looks - 1.0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_it_never_says_more_than_was_read(steps: list[tuple[int, int]]) -> None:
    clock: ReadThrough[str] = ReadThrough()
    end = position = 0
    sent_at: list[int] = []  # the second in which each message was sent
    for second, (sent, read) in enumerate(steps):
        sent_at += [second] * sent
        end += sent
        clock.look(second + 0.5, {"commops": end})
        position = min(position + read, end)
        until_s = clock.advance({"commops": position})
        unread = sent_at[position:]
        assert until_s is None or all(until_s < second for second in unread)


@dataclass
class Message:
    value_bytes: bytes
    at: int

    def value(self) -> bytes:
        return self.value_bytes

    def offset(self) -> int:
        return self.at


@dataclass
class Topic:
    """The topic as its reader and its producer see it."""

    messages: list[bytes] = field(default_factory=list)

    async def send(self, topic: str, key: bytes, value: bytes, *, partition: int) -> None:
        assert partition == 0
        self.messages.append(value)

    def end_offset(self, topic: str, partition: int) -> int:
        return len(self.messages)

    def read_tail(self, topic: str, partition: int, begin: int) -> list[Message]:
        return [Message(value, at) for at, value in enumerate(self.messages)][begin:]


@pytest.fixture
def topic() -> Topic:
    return Topic()


def log_on(topic: Topic) -> ProgressLog:
    reading = ReadingThread(topic, "progress")  # type: ignore[arg-type]  # all that is used of reader and outbox
    return ProgressLog("progress", reading, topic)  # type: ignore[arg-type]


def read(log: ProgressLog) -> dict[int, Offsets]:
    return asyncio.run(log.read())


def test_only_what_is_told_from_now_on_counts(topic: Topic) -> None:
    """What stands there was told by workers of which nobody knows if they live."""
    asyncio.run(log_on(topic).write(0, {"commops": 5}))
    log = log_on(topic)
    assert read(log) == {}
    asyncio.run(log.write(1, {"commops": 7}))
    assert read(log) == {1: {"commops": 7}}


def test_the_newest_word_on_a_partition_counts_whoever_says_it(topic: Topic) -> None:
    log = log_on(topic)
    read(log)
    for partition, offset in ((0, 5), (1, 2), (0, 4)):
        asyncio.run(log_on(topic).write(partition, {"commops": offset}))
    assert read(log) == {0: {"commops": 4}, 1: {"commops": 2}}


@pytest.mark.parametrize("value", [b"", b"no JSON", b"[]", b'{"partition":0}', b'{"partition":0,"positions":3}'])
def test_what_no_worker_wrote_is_passed_over(topic: Topic, value: bytes) -> None:
    log = log_on(topic)
    read(log)
    topic.messages += [value, json.dumps({"partition": 0, "positions": {"commops": 3}}).encode()]
    assert read(log) == {0: {"commops": 3}}


def test_a_topic_that_was_cut_is_followed_from_its_end(topic: Topic) -> None:
    log = log_on(topic)
    read(log)
    asyncio.run(log.write(0, {"commops": 5}))
    assert read(log) == {0: {"commops": 5}}
    topic.messages.clear()
    assert read(log) == {}


class Steps:
    """Notes in which order things are done, and what a partition had read when it was asked."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.state: PartitionState[Any] = PartitionState(3, 1, 1, {"commops": 4})
        self.states = {3: self.state}
        self.is_held = True

    async def _settle_rows(self, states: Sequence[PartitionState[Any]]) -> None:
        self.done.append("rows sent")
        for state in states:
            state.take("commops", 4)  # read meanwhile: its evidence is not among what was sent

    async def barrier(self) -> None:
        self.done.append("acknowledged")

    def holds(self, state: PartitionState[Any]) -> bool:
        return self.is_held

    async def write(self, partition: int, positions: Offsets) -> None:
        self.done.append((partition, positions))

    @property
    def services(self) -> Any:
        return self

    @property
    def outbox(self) -> Any:
        return self


def test_progress_is_told_once_its_evidence_is_acknowledged_and_no_further() -> None:
    steps = Steps()
    asyncio.run(RankStage.tell_progress(steps, steps))  # type: ignore[arg-type]  # a stage of these steps alone
    assert steps.done == ["rows sent", "acknowledged", (3, {"commops": 4})]


def test_nothing_is_told_of_a_partition_that_went_meanwhile() -> None:
    steps = Steps()
    steps.is_held = False
    asyncio.run(RankStage.tell_progress(steps, steps))  # type: ignore[arg-type]  # a stage of these steps alone
    assert steps.done == ["rows sent", "acknowledged"]
