"""What both stages do with their partitions and monitors; the broker takes all that they send."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import pytest

from irregulars.errors import RecordError
from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.log_reader import LogReader, ReadingThread
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.topics import RANK_TOPICS, group_key, rank_key
from irregulars.messages.announcements import Announcement, Communicator, encode_announcement
from irregulars.messages.bundles import bundle_of, decode_batches, encode_bundle
from irregulars.messages.evidence import encode_evidence
from irregulars.messages.judgements import Judgements
from irregulars.messages.records import encode_batch
from irregulars.streams.faust_driver.block_fetcher import Record
from irregulars.streams.health.monitor_faults import MOST_FAULTS, GivenUp
from irregulars.streams.snapshots.published_verdicts import PublishedVerdicts, Told
from irregulars.streams.snapshots.records import MonitorRecord, PositionRecord, decode_record
from irregulars.streams.snapshots.stored_partition import StoredPartition
from irregulars.streams.stages.job_stage import JobStage
from irregulars.streams.stages.partition_state import Continuity, Offsets, PartitionState
from irregulars.streams.stages.rank_stage import RankStage
from irregulars.streams.stages.sink_writer import SinkWriter
from irregulars.streams.stages.stage import Services, Stage
from irregulars.streams.stages.stream_time import StreamTime
from irregulars.streams.worker.monitors import make_monitors
from irregulars.streams.worker_settings import WorkerSettings
from tests.streams.evidence_rows import came
from tests.streams.lockstep_job import operator_batch
from tests.waiting import DEADLINE_S, until

NOWHERE = "127.0.0.1:1"


class TakesAll(Outbox):
    """An outbox whose broker has acknowledged all that it was sent."""

    def __init__(self) -> None:
        super().__init__(NOWHERE, {})
        self.sent: list[tuple[str, bytes | None, bytes | None]] = []

    async def send(self, topic: str, key: bytes | None, value: bytes | None, **_: Any) -> None:
        self.sent.append((topic, key, value))

    async def barrier(self) -> None:
        await asyncio.sleep(0)

    def keys(self, topic: str) -> list[bytes | None]:
        return [key for name, key, _ in self.sent if name.endswith(topic)]


class Clocks:
    """Of a worker that never lags."""

    def now_s(self) -> float:
        return time.time()

    def job_until_s(self, partition: int, positions: Offsets) -> float:
        return time.time()


@pytest.fixture
def outbox() -> Iterator[TakesAll]:
    outbox = TakesAll()
    yield outbox
    outbox.close(0.1)


async def far_away(topic: str, partition: int, at: int) -> int:
    return 1 << 60  # nothing stands between the messages of a test, which have any offsets


async def stays(topic: str, partition: int, offset: int) -> None:
    raise AssertionError(f"{topic}/{partition} must be read on; it was sent back to {offset}")


def services_of(outbox: Outbox, **settings: Any) -> Services:
    own = WorkerSettings(NOWHERE, **settings)
    dead_letters = DeadLetters(outbox, own.topics)
    writer = SinkWriter(None, dead_letters)
    reading = ReadingThread(LogReader(NOWHERE, {}), "reading")
    return Services(own, outbox, reading, dead_letters, writer, print, pytest.fail, Continuity(far_away, stays))


def close(stage: Stage[Any]) -> None:
    stage.services.reading.close()
    if isinstance(stage, JobStage):
        stage.close()


class SlowJob:
    """A monitor that takes its time for a round, and may raise."""

    is_ended = False
    contradiction = None
    overtaken = 0
    given_up = 0
    size = 0
    add_raises: Exception | None = None
    advance_raises: Exception | None = None

    def __init__(self, may_return: Callable[[], bool] = lambda: True) -> None:
        self.added = 0
        self.may_return = may_return

    def add(self, rows: Sequence[Any]) -> None:
        self.added += 1
        if self.add_raises is not None:
            raise self.add_raises

    def follow(self, changes: Sequence[Any]) -> None:
        pass

    def tick(self, now_s: float, until_s: float) -> None:
        pass

    def advance(self, read_back: Callable[[Sequence[Any]], Sequence[Any]]) -> Judgements:
        while not self.may_return():
            time.sleep(0.001)
        if self.advance_raises is not None:
            raise self.advance_raises
        return Judgements("j")

    def state(self) -> int:
        return self.added


def job_stage(outbox: Outbox, monitor: Any, partitions: int = 1) -> JobStage:
    stage = JobStage(services_of(outbox), lambda job: monitor, lambda state: monitor, lambda verdict: None, Clocks())
    for number in range(partitions):
        state = hold(stage, number)
        stage._published[state] = PublishedVerdicts(Told(), set())
        stage._ends[state], stage._evidence_ends[state] = {}, 0
    return stage


def hold(stage: Stage[Any], partition: int = 0) -> PartitionState[Any]:
    state = stage.states[partition] = PartitionState(partition, 1, 1, {})
    stage._writers[state] = stage.log.writer(partition, StoredPartition())
    return stage.states[partition]


def record(topic: str, offset: int, key: bytes, value: bytes, partition: int = 0) -> Record:
    return Record(f"irregulars.{topic}", partition, offset, 1.0, key, value, generation_id=1)


def evidence(offset: int, partition: int = 0) -> Any:
    (value,) = encode_evidence([came(0)], "j")
    return record("evidence", offset, b"j", value, partition)


async def test_a_snapshot_is_taken_while_evidence_keeps_coming(outbox: TakesAll) -> None:
    monitor = SlowJob()
    stage = job_stage(outbox, monitor)
    is_done = False

    async def send() -> None:
        offset = 0
        while not is_done:
            await stage.take("evidence", [evidence(offset)])
            offset += 1
            await asyncio.sleep(0)

    sending = asyncio.ensure_future(send())
    # No round ends before more has come: the inbox is never empty.
    monitor.may_return = lambda: is_done or any(work.inbox for work in stage._works.values())
    await until(lambda: stage.states[0].position().get("evidence", 0) > 0)
    await asyncio.wait_for(stage.snapshot_all(), DEADLINE_S)
    is_done = True
    await sending
    assert stage.states[0].stored_position["evidence"] > 0
    close(stage)
    assert b"j" in outbox.keys("job_snapshots")


def test_reading_gives_way_to_a_judgement_and_goes_on_where_that_takes_long(outbox: TakesAll) -> None:
    async def run() -> tuple[bool, bool, float]:
        is_done = False
        stage = job_stage(outbox, SlowJob(lambda: is_done))
        await stage.give_way()  # nobody judges
        await stage.take("evidence", [evidence(0)])
        await until(lambda: stage._judges.is_busy)
        began_s = time.monotonic()
        await asyncio.wait_for(stage.give_way(), DEADLINE_S)
        waited_s, is_busy = time.monotonic() - began_s, stage._judges.is_busy
        is_done = True
        await asyncio.wait_for(stage.give_way(), DEADLINE_S)
        close(stage)
        return is_busy, stage._judges.is_busy, waited_s

    is_busy, is_busy_later, waited_s = asyncio.run(run())
    assert (is_busy, is_busy_later) == (True, False)
    assert waited_s >= 0.09


async def test_a_partition_whose_cycle_takes_long_holds_up_no_other(outbox: TakesAll) -> None:
    stage = job_stage(outbox, SlowJob(), partitions=2)
    for partition in (0, 1):
        await stage.take("evidence", [evidence(0, partition)])
    await settle(stage)
    busy = next(iter(stage.states[0].tracked.values()))
    async with stage._work(busy).lock:  # as a judgement of minutes would
        stage.start_snapshots()
        async with asyncio.timeout(DEADLINE_S):
            while not stage.states[1].stored_position:
                stage.start_snapshots()
                await asyncio.sleep(0.01)
        assert not stage.states[0].stored_position
    await asyncio.wait_for(stage.snapshot_all(), DEADLINE_S)
    assert stage.states[0].stored_position
    close(stage)


async def test_after_a_long_cycle_of_snapshots_it_rests(outbox: TakesAll, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr("irregulars.streams.stages.stage.time", SimpleNamespace(monotonic=lambda: now_s))
    stage = job_stage(outbox, SlowJob())
    await stage.take("evidence", [evidence(0)])
    await settle(stage)
    busy = next(iter(stage.states[0].tracked.values()))
    async with stage._work(busy).lock:
        stage.start_snapshots()
        await asyncio.sleep(0)  # the cycle begins
        now_s += 0.12
    await asyncio.gather(*stage._running)
    busy.is_dirty = True
    stage.start_snapshots()
    assert not stage._running, "it rests"
    now_s += 0.9
    stage.start_snapshots()
    assert stage._running
    await asyncio.gather(*stage._running)
    close(stage)


async def test_a_message_that_a_job_monitor_cannot_take_is_buried_and_counted(outbox: TakesAll) -> None:
    monitor = SlowJob()
    stage = job_stage(outbox, monitor)
    monitor.add_raises = OverflowError("too large")
    await stage.take("evidence", [evidence(0)])
    await settle(stage)
    monitor.add_raises = None
    await stage.take("evidence", [evidence(1)])
    await settle(stage)
    assert stage.states[0].position() == {"evidence": 2}
    assert (stage.faults.count, stage.services.dead_letters.count, monitor.added) == (1, 1, 2)
    close(stage)
    (value,) = encode_evidence([came(0)], "j")
    assert [value for topic, _, value in outbox.sent if topic.endswith("deadletter")] == [value]


def raises_record() -> int:
    raise RecordError("state must have 2 observations; got others")


def raises(*values: object) -> None:
    raise OverflowError("Python int too large to convert to C ssize_t")


async def test_evidence_that_breaks_its_decoder_is_buried(outbox: TakesAll, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = job_stage(outbox, SlowJob())
    monkeypatch.setattr("irregulars.streams.stages.job_stage._decode", raises)
    await stage.take("evidence", [evidence(0)])
    assert (stage.states[0].position(), stage.services.dead_letters.count) == ({"evidence": 1}, 1)
    close(stage)


@pytest.mark.parametrize("key", [b"\xff", b"", b"j"])
async def test_a_membership_of_nobody_is_buried_whatever_its_key_is(outbox: TakesAll, key: bytes) -> None:
    """Its job was compared with the key for each member: for none, the bytes of any key became a job's name."""
    stage = job_stage(outbox, SlowJob())
    value = b'{"schema":"membership","version":1,"job":"j","members":[]}'
    await stage.take("evidence", [record("evidence", 0, key, value)])
    assert (stage.states[0].position(), stage.states[0].tracked) == ({"evidence": 1}, {})
    close(stage)
    assert outbox.keys("deadletter") == [key]


async def test_a_message_that_breaks_its_decoder_is_buried(outbox: TakesAll, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = rank_stage(outbox)
    monkeypatch.setattr("irregulars.streams.stages.rank_stage.decode", raises)
    await stage.take("jobs", [announced(0)])
    assert (stage.states[0].position(), stage.services.dead_letters.count) == ({"jobs": 1}, 1)
    close(stage)


async def test_a_job_that_can_never_be_judged_is_given_up_and_not_stored(outbox: TakesAll) -> None:
    monitor = SlowJob()
    stage = job_stage(outbox, monitor)
    monitor.advance_raises = KeyError("rank")
    for offset in range(MOST_FAULTS + 2):
        await stage.take("evidence", [evidence(offset)])
        await settle(stage)
    await stage.snapshot_all()
    assert monitor.added == MOST_FAULTS, "it is asked no more"
    assert stage.services.dead_letters.count == MOST_FAULTS + 2
    assert stage.states[0].stored_position == {"evidence": MOST_FAULTS + 2}
    close(stage)
    assert b"j" not in outbox.keys("job_snapshots")


async def test_a_job_that_begins_anew_while_the_database_is_away_is_stored_once_its_rows_are(
    outbox: TakesAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old state alone yields again the rows that wait, should the worker be killed meanwhile."""
    stage, is_back, flushes = job_stage(outbox, SlowJob()), asyncio.Event(), 0

    async def flush() -> None:
        nonlocal flushes
        flushes += 1
        await is_back.wait()

    def stored() -> list[int]:
        own = [value or b"" for topic, key, value in outbox.sent if topic.endswith("job_snapshots") and key == b"j"]
        return [cast(MonitorRecord, decode_record(b"j", value)).given_up.times for value in own]

    monkeypatch.setattr(stage.services.sink, "flush", flush)
    monkeypatch.setattr(stage.services.sink._counters, "sink_busy_since_s", 1.0)
    await stage.take("evidence", [evidence(0)])
    await settle(stage)
    cycle = asyncio.ensure_future(stage.snapshot_all())
    await until(lambda: flushes > 0)
    (tracked,) = stage.states[0].tracked.values()
    tracked.given_up = GivenUp(MOST_FAULTS, 0)
    await asyncio.wait_for(stage.store_begun_over(stage.states[0], tracked), DEADLINE_S)
    assert stored() == []
    is_back.set()
    await asyncio.wait_for(cycle, DEADLINE_S)
    assert stored() == [0], "as it was where the stored position is"
    await asyncio.wait_for(stage.snapshot_all(), DEADLINE_S)
    assert stored() == [0, MOST_FAULTS]
    close(stage)


async def test_a_state_that_a_monitor_cannot_give_costs_that_monitor_and_no_worker(outbox: TakesAll) -> None:
    monitor = SlowJob()
    stage = job_stage(outbox, monitor)
    await stage.take("evidence", [evidence(0)])
    await settle(stage)
    monitor.state = lambda: raises_record()  # type: ignore[method-assign]
    await stage.snapshot_all()
    assert stage.faults.count == 1
    close(stage)


async def settle(stage: JobStage) -> None:
    tasks = [work.task for work in stage._works.values() if work.task is not None]
    await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)


def rank_stage(outbox: Outbox, **settings: Any) -> RankStage:
    services = services_of(outbox, **settings)
    monitors = make_monitors(services.settings)
    stage = RankStage(services, monitors.make_rank, monitors.restore_rank)
    hold(stage)
    return stage


def announced(rank: int, offset: int | None = None, start: str | None = None) -> Any:
    world = Communicator("world", "world", (0, 1))
    announcement = Announcement("j", 0, rank, 2, 2, (world,), clock="shared", host="node", gpu=rank, start=start)
    return record("jobs", rank if offset is None else offset, rank_key("j", rank), encode_announcement(announcement))


async def test_a_rank_that_never_came_back_is_forgotten(outbox: TakesAll) -> None:
    stage = rank_stage(outbox, forget_s=100.0)
    await stage.take("jobs", [announced(0), announced(1)])
    await stage.snapshot_all()
    stage.states[0].tracked[rank_key("j", 0)].heard_at_s -= 101.0
    stage.start_snapshots()  # nothing else has changed
    await asyncio.gather(*stage._running)
    assert set(stage.states[0].tracked) == {rank_key("j", 1)}
    close(stage)
    assert [value for _, key, value in outbox.sent if key == rank_key("j", 0)][-1] is None, "a tombstone"


GROUP = "node/0"


def grouped(rank: int, offset: int) -> Any:
    world = Communicator("world", "world", (0, 1))
    announcement = Announcement("lockstep", 1, rank, 2, 2, (world,), clock="shared", host="node", group=GROUP)
    return record("jobs", offset, rank_key("lockstep", rank), encode_announcement(announcement))


def bundle(offset: int, starts_ns: Sequence[int]) -> Any:
    batches = [
        operator_batch(
            rank, [{"iteration": offset, "start_ns": ns, "elapsed_ns": 5.0}], rows_before=offset, group=GROUP
        )
        for rank, ns in enumerate(starts_ns)
    ]
    return record("commops", offset, group_key("lockstep", GROUP), encode_bundle(bundle_of(batches)))


async def test_the_ranks_of_a_group_have_one_monitor_wherever_their_announcements_stand(outbox: TakesAll) -> None:
    stage = rank_stage(outbox)
    state = stage.states[0]
    await stage.take("commops", [bundle(0, (1000, 1000))])
    assert state.position() == {"commops": 0}, "parked until they are announced"
    await stage.take("jobs", [grouped(0, 0), grouped(1, 1)])
    assert set(state.tracked) == {group_key("lockstep", GROUP)}
    assert state.position() == {"commops": 1, "jobs": 2}
    await stage.take("commops", [bundle(1, (2000, 2000))])
    await stage.snapshot_all()
    close(stage)
    assert outbox.keys("rank_snapshots")[:1] == [group_key("lockstep", GROUP)]
    assert outbox.keys("deadletter") == []


async def test_rows_of_unknown_ranks_are_bounded_while_operators_are_far_behind(outbox: TakesAll) -> None:
    """A worker that starts has two days to read: by then rows of ranks that nothing announces filled its memory."""
    clocks = StreamTime(RANK_TOPICS, "evidence", ends_at({"jobs": 1, "commops": 1_000_000}), NoProgress())  # type: ignore[arg-type]
    stage = rank_stage(outbox, parked_bytes=1)
    await clocks.look()
    await stage.take("commops", [bundle(0, (1000, 1000))])
    await stage.tick(clocks)
    await stage.settle_all()
    assert outbox.keys("deadletter") == [], "its announcement may be the one that is not read yet"
    await stage.take("jobs", [announced(0)])
    await stage.tick(clocks)
    await stage.settle_all()
    assert outbox.keys("deadletter") == [group_key("lockstep", GROUP)]
    assert stage.states[0].position() == {"commops": 1, "jobs": 1}
    close(stage)


class NoProgress:
    async def read(self) -> dict[int, Offsets]:
        return {}

    async def write(self, partition: int, positions: Offsets) -> None: ...


def ends_at(ends: Offsets) -> Callable[[Any], Awaitable[dict[int, Offsets]]]:
    async def ask(topics: Any) -> dict[int, Offsets]:
        return {0: ends}

    return ask


async def test_of_a_bundle_only_the_part_that_cannot_be_true_is_buried(outbox: TakesAll) -> None:
    now_ns = time.time_ns()
    stage = rank_stage(outbox)
    await stage.take("jobs", [grouped(0, 0), grouped(1, 1)])
    await stage.take("commops", [bundle(0, (now_ns, now_ns)), bundle(1, (now_ns + 10, now_ns + (1 << 61)))])
    assert stage.states[0].position() == {"commops": 2, "jobs": 2}
    close(stage)
    (letter,) = [value for topic, _, value in outbox.sent if topic.endswith("deadletter")]
    assert [one.header.rank for one in decode_batches(letter, "commops")] == [1]


async def test_rows_that_waited_for_their_announcement_and_cannot_be_true_are_buried(outbox: TakesAll) -> None:
    stage, key = rank_stage(outbox), rank_key("j", 0)
    rows = [{"iteration": 0, "start_ns": time.time_ns(), "elapsed_ns": 5.0}]
    early = operator_batch(0, rows, job="j", attempt=0, start="b", watermark_ns=1 << 62)
    await stage.take("jobs", [announced(0)])
    await stage.take("commops", [record("commops", 7, key, encode_batch(early))])
    assert stage.services.dead_letters.count == 0
    await stage.take("jobs", [announced(0, offset=1, start="b")])
    close(stage)
    assert [value for name, _, value in outbox.sent if name.endswith("deadletter")] == [encode_batch(early)]


async def test_a_job_whose_key_is_that_of_another_job_s_group_is_kept_apart(outbox: TakesAll) -> None:
    stage = rank_stage(outbox)
    alike = Announcement("lockstep/@node", 1, 0, 2, 2, (Communicator("world", "world", (0, 1)),))
    assert rank_key("lockstep/@node", 0) == group_key("lockstep", GROUP)
    await stage.take("jobs", [grouped(0, 0), record("jobs", 1, rank_key(alike.job, 0), encode_announcement(alike))])
    assert stage.states[0].position() == {"jobs": 2}
    assert stage.services.dead_letters.count == 1
    close(stage)


class OnTopic:
    """A message as a consumer gives it."""

    def __init__(self, one: Record) -> None:
        self.key, self.value, self.offset = (lambda: one.key), (lambda: one.value), (lambda: one.offset)


async def test_a_group_whose_state_is_spoilt_begins_anew_with_all_its_ranks(outbox: TakesAll) -> None:
    stage = rank_stage(outbox)
    state = stage.states[0]
    told = [OnTopic(one) for one in (grouped(0, 0), grouped(1, 1), announced(0))]
    stage.reader.messages = lambda *_: iter(told)  # type: ignore[assignment,method-assign,return-value]
    key = group_key("lockstep", GROUP)
    await stage.begin_anew(state, {key}, PositionRecord(positions={"jobs": 3}))
    assert set(state.tracked) == {key}, "the other rank's state could be read"
    monitor: Any = state.tracked[key].monitor
    assert [one.rank for one in monitor.drain()] == [0, 1]
    close(stage)


async def test_announcements_of_other_jobs_are_not_kept_while_ranks_are_announced_again(outbox: TakesAll) -> None:
    """They stay on their topic for ever: those of years fit no memory."""
    stage, most, alive = rank_stage(outbox), 0, WeakSet[OnTopic]()
    state, key = stage.states[0], group_key("lockstep", GROUP)

    def messages(*_: object) -> Iterator[OnTopic]:
        nonlocal most
        for one in (*(record("jobs", at, b"other%d/0" % at, b"") for at in range(1000)), grouped(0, 1000)):
            message = OnTopic(one)
            alive.add(message)
            most = max(most, len(alive))
            yield message

    stage.reader.messages = messages  # type: ignore[assignment,method-assign]
    await stage.begin_anew(state, {key}, PositionRecord(positions={"jobs": 1001}))
    assert set(state.tracked) == {key}
    assert most < 10
    close(stage)


async def test_a_rank_monitor_that_raises_costs_its_message_and_no_other(outbox: TakesAll) -> None:
    stage = rank_stage(outbox)
    await stage.take("jobs", [announced(0), announced(1)])
    odd = stage.states[0].tracked[rank_key("j", 0)]

    def raises(announcement: Announcement) -> None:
        raise OverflowError("too large")

    odd.monitor.announce = raises  # type: ignore[method-assign]  # what no test of ours knows to do
    again = [announced(0), announced(1)]
    for number, one in enumerate(again):
        one.offset = 2 + number
    await stage.take("jobs", again)
    assert stage.states[0].position() == {"jobs": 4}
    assert (stage.faults.count, stage.services.dead_letters.count) == (1, 1)
    await stage.snapshot_all()
    close(stage)
    assert rank_key("j", 1) in outbox.keys("rank_snapshots")
