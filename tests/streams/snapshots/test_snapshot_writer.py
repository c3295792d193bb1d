"""What one owner after the other writes: bounded messages, changes alone, and little that must be read again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.dtypes import Ints
from irregulars.errors import TopicMismatch
from irregulars.kafka.topics import MAX_MESSAGE_BYTES
from irregulars.state_codec import Part
from irregulars.streams.snapshots import records, snapshot_writer
from irregulars.streams.snapshots.published_verdicts import Published, Told
from irregulars.streams.snapshots.records import PART_BYTES, PositionRecord, decode_monitor, draft_of, is_piece
from irregulars.streams.snapshots.snapshot_writer import SPAN_BYTES, SnapshotWriter
from irregulars.streams.snapshots.stored_partition import StoredPartition
from tests.streams.snapshots.memory_topic import MemoryOutbox, MemoryTopic


@dataclass(frozen=True)
class Rows:
    numbers: Ints

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and bool(np.array_equal(self.numbers, other.numbers))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class State:
    """As a monitor's: parts that stay for a while, and a rest that always changes."""

    parts: tuple[Part[Rows], ...]
    rest: bytes


def rows(seed: int, size_bytes: int) -> Rows:
    """Rows that nothing makes shorter."""
    return Rows(np.random.default_rng(seed).integers(0, 1 << 62, size_bytes // 8))


def state(parts: Sequence[Rows], rest: bytes = b"") -> State:
    return State(tuple(Part(one, one.numbers.nbytes) for one in parts), rest)


class Owner:
    """A worker that has the partition, from its claim on."""

    def __init__(self, topic: MemoryTopic) -> None:
        log = self.log = topic.writer_to()
        self.topic = topic
        self.stored: StoredPartition = log.read(0)
        self.writer: SnapshotWriter = log.writer(0, self.stored)
        self.outbox = cast(MemoryOutbox, self.writer._outbox)
        self.positions = dict(self.stored.position.positions)
        self._position()

    @property
    def found(self) -> dict[bytes, State]:
        return {key: decode_monitor(one.state, State) for key, one in self.stored.monitors.items()}

    def cycle(self, states: Mapping[bytes, State], ended: Sequence[bytes] = ()) -> None:
        async def write() -> None:
            for key, one in states.items():
                await self.writer.write_monitor(key, draft_of({"evidence": 1}, one))
            await self.writer.delete_monitors(ended)

        asyncio.run(write())
        self.positions["evidence"] = self.positions.get("evidence", 0) + 1
        self._position()

    def _position(self) -> None:
        asyncio.run(self.writer.write_position(PositionRecord(positions=self.positions)))
        found = self.writer.settle()
        if found is not None:
            self.writer.excuse(self.log.highest_epoch(0, found))


def written(topic: MemoryTopic, since: int) -> list[int]:
    return [len(line.content or b"") for line in topic.lines if line.at >= since]


def test_no_message_is_longer_than_a_broker_takes_unasked() -> None:
    topic = MemoryTopic()
    large = state([rows(1, 5 << 20)], bytes(3 << 20))
    Owner(topic).cycle({b"job": large})
    assert max(written(topic, 0)) <= MAX_MESSAGE_BYTES
    assert Owner(topic).found == {b"job": large}


def published(count: int) -> Told:
    """Verdicts whose ids nothing makes shorter."""
    ids = np.random.default_rng(1).integers(0, 1 << 62, (count, 3)).tolist()
    return Told(
        tuple(Published(f"{one}", "j", 1, "slow_rank gpu 1 None", (3, 4), False, {"verdicts": 2}) for one in ids)
    )


def test_a_position_that_has_much_to_remember_is_cut_and_written_once() -> None:
    topic, told = MemoryTopic(), published(60_000)
    owner = Owner(topic)

    def write(one: Told) -> None:
        asyncio.run(owner.writer.write_position(PositionRecord(positions={"evidence": 7}, told=one)))

    write(told)
    assert max(written(topic, 0)) <= MAX_MESSAGE_BYTES < sum(written(topic, 0))
    found = topic.writer_to().read(0)
    assert (found.position.told, found.position.positions, found.refused) == (told, {"evidence": 7}, {})
    at = topic.end
    write(told)
    assert sum(written(topic, at)) < 1_000
    write(Told())
    write(Told())
    topic.compact()
    assert [line.name for line in topic.lines if is_piece(line.name)] == []


@pytest.mark.parametrize("messages", range(16))
def test_an_owner_that_dies_while_it_takes_over_loses_nothing(monkeypatch: pytest.MonkeyPatch, messages: int) -> None:
    for module in (records, snapshot_writer):
        monkeypatch.setattr(module, "PIECE_BYTES", 1_000)
    topic, told = MemoryTopic(), published(150)
    asyncio.run(Owner(topic).writer.write_position(PositionRecord(told=told)))
    assert sum(is_piece(line.name) for line in topic.lines) > 2
    log = topic.writer_to()
    writer = log.writer(0, log.read(0))
    cast(MemoryOutbox, writer._outbox).left = messages

    async def take_over() -> None:
        for _ in range(2):
            await writer.write_position(PositionRecord(told=told))

    with suppress(ConnectionError):
        asyncio.run(take_over())
    topic.compact()
    assert topic.writer_to().read(0).position.told == told


def test_a_part_that_has_not_changed_is_not_written_again() -> None:
    topic = MemoryTopic()
    owner = Owner(topic)
    parts = [rows(n, 100_000) for n in range(10)]
    owner.cycle({b"job": state(parts)})
    assert sum(written(topic, 0)) > 1_000_000
    at, parts = topic.end, [*parts[1:], rows(10, 100_000)]
    owner.cycle({b"job": state(parts, b"changed")})
    assert 100_000 < sum(written(topic, at)) < 110_000
    assert Owner(topic).found == {b"job": state(parts, b"changed")}


def test_a_part_that_two_fields_share_is_written_once_and_is_one_object_again() -> None:
    topic = MemoryTopic()
    part = rows(1, 200_000)
    Owner(topic).cycle({b"job": state([part, part])})
    assert sum(written(topic, 0)) < 210_000
    first, second = Owner(topic).found[b"job"].parts
    assert first.value is second.value


def test_small_parts_stay_in_the_record() -> None:
    topic = MemoryTopic()
    Owner(topic).cycle({b"job": state([rows(1, PART_BYTES // 2)] * 3)})
    assert [line.name for line in topic.lines if is_piece(line.name)] == []


def test_what_is_needed_no_more_is_deleted() -> None:
    topic = MemoryTopic()
    owner = Owner(topic)
    for n in range(5):
        owner.cycle({b"job": state([rows(n, 50_000)]), b"other": state([rows(n, 50_000)])})
    owner.cycle({}, ended=[b"other"])
    topic.compact()
    assert sum(is_piece(line.name) for line in topic.lines) == 1
    assert Owner(topic).found == {b"job": state([rows(4, 50_000)])}


def test_monitors_with_equal_parts_delete_their_own_alone() -> None:
    """Two replays of one recording are two jobs with the same rows."""
    topic = MemoryTopic()
    owner = Owner(topic)
    owner.cycle({b"one": state([rows(1, 50_000)]), b"two": state([rows(1, 50_000)])})
    owner.cycle({b"one": state([])})
    topic.compact()
    assert Owner(topic).found[b"two"] == state([rows(1, 50_000)])


def test_what_a_restart_reads_does_not_grow_with_the_uptime() -> None:
    """One job goes on, another one has stood for long; nothing is ever compacted."""
    topic = MemoryTopic()
    owner = Owner(topic)
    silent = state([rows(1, 1 << 20)])
    owner.cycle({b"silent": silent})
    for n in range(300):
        again = dict.fromkeys(owner.writer.overdue(), silent)
        owner.cycle({**again, b"job": state([rows(n, 100_000)])})
    total = sum(written(topic, 0))
    assert total > 30 << 20
    topic.read.clear()
    assert Owner(topic).found == {b"silent": silent, b"job": state([rows(299, 100_000)])}
    read = sum(len(topic.lines[at].content or b"") for at in topic.read)
    assert read < 2 * SPAN_BYTES
    again_bytes = total - 301 * 100_000
    assert again_bytes < total / 2  # what is written again is not the most


@pytest.mark.parametrize("cycles", [1, 2, 5])
def test_a_former_owner_that_goes_on_writing_hides_nothing(cycles: int) -> None:
    topic = MemoryTopic()
    former = Owner(topic)
    former.cycle({b"job": state([rows(1, 50_000)]), b"idle": state([rows(2, 50_000)])})
    owner = Owner(topic)
    owner.cycle({b"job": state([rows(3, 50_000)])})
    for n in range(cycles):  # it writes all that it has, and its position is the last one
        former.cycle({b"job": state([rows(n, 60_000)]), b"idle": state([rows(n + 9, 60_000)])})
    assert Owner(topic).found == {b"job": state([rows(3, 50_000)]), b"idle": state([rows(2, 50_000)])}


def test_once_a_former_owner_is_still_little_must_be_read_again() -> None:
    topic = MemoryTopic()
    former = Owner(topic)
    owner = Owner(topic)
    former.cycle({b"job": state([rows(1, 50_000)])})
    for n in range(200):
        owner.cycle({b"job": state([rows(n, 100_000)])})
    topic.read.clear()
    assert Owner(topic).found == {b"job": state([rows(199, 100_000)])}
    assert len(topic.read) < 20


def test_what_a_former_owner_wrote_of_a_monitor_is_not_deleted_over_our_own() -> None:
    """Both had the job's first message: the one before in a session that was over, and we again."""
    topic = MemoryTopic()
    former = Owner(topic)
    Owner(topic)
    former.cycle({b"new": state([rows(1, 50_000)])})
    owner = Owner(topic)
    owner.cycle({b"new": state([rows(2, 60_000)])})
    assert Owner(topic).found == {b"new": state([rows(2, 60_000)])}


keys = st.sampled_from([b"a", b"b", b"c"])
sizes = st.sampled_from([10, 20_000, 600_000, 1_500_000])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), keys, st.lists(sizes, max_size=3), sizes),
        st.tuples(st.just("end"), keys),
        st.tuples(st.just("restart")),
        st.tuples(st.just("kill"), keys, st.lists(sizes, max_size=3), st.integers(0, 6)),
        st.tuples(st.just("compact")),
        st.tuples(st.just("late"), keys, st.lists(sizes, max_size=2)),
    ),
    min_size=1,
    max_size=14,
)


@given(steps)
def test_whoever_comes_finds_what_the_last_owner_has_stored(done: list[tuple[object, ...]]) -> None:
    """Whatever was written, deleted, cut off in mid-write, compacted, and written late by those of before."""
    topic = MemoryTopic()
    owner, former = Owner(topic), None
    wanted: dict[bytes, State] = {}
    for seed, (name, *rest) in enumerate(done):
        if name in ("write", "kill", "late"):
            made = state([rows(seed + n, size) for n, size in enumerate(cast(list[int], rest[1]))], bytes([seed]) * 9)
        if name == "write":
            key = cast(bytes, rest[0])
            again = {one: wanted[one] for one in owner.writer.overdue() if one in wanted}
            made = State(made.parts, bytes(cast(int, rest[2])))
            owner.cycle({**again, key: made})
            wanted[key] = made
        elif name == "end" and rest[0] in wanted:
            owner.cycle({}, ended=[cast(bytes, rest[0])])
            del wanted[cast(bytes, rest[0])]
        elif name == "restart":
            former, owner = owner, Owner(topic)
            assert (owner.found, owner.stored.refused) == (wanted, {})
            owner.cycle({one: wanted[one] for one in owner.writer.overdue()})
        elif name == "kill":
            key, owner.outbox.left = cast(bytes, rest[0]), cast(int, rest[2])
            with suppress(ConnectionError):
                owner.cycle({key: made})
            owner.outbox.left = None
            former, owner = None, Owner(topic)  # dead: it writes no more
            found = owner.found
            assert owner.stored.refused == {}
            assert found in (wanted, {**wanted, key: made})
            wanted = found
            owner.cycle({one: wanted[one] for one in owner.writer.overdue()})
        elif name == "late" and former is not None:
            former.cycle({cast(bytes, rest[0]): made})
        elif name == "compact" and former is None:
            topic.compact()
    assert Owner(topic).found == wanted


def test_a_topic_that_ends_before_what_its_records_speak_of_is_refused() -> None:
    topic = MemoryTopic()
    owner = Owner(topic)
    for number in range(5):
        owner.cycle({b"a": state([], b"%d" % number), b"b": state([rows(number, PART_BYTES)])})
    topic.lines, topic.end = [], 0  # deleted, and made anew
    owner.cycle({b"a": state([])})  # without b, which has not changed
    with pytest.raises(TopicMismatch, match=r"got .*/0, which ends at \d+: it was cut, or made anew\. Delete it"):
        topic.writer_to().read(0)
