"""Topics that stay away, were made anew or cut end a worker; a broker that does not answer does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from irregulars.errors import ServiceRefused, ServiceUnavailable, TopicMismatch
from irregulars.kafka.log_reader import LogReader, ReadingThread
from irregulars.kafka.topics import TopicSettings
from irregulars.streams.snapshots.records import Offsets
from irregulars.streams.stages.partition_state import PartitionState
from irregulars.streams.worker import topic_watch
from irregulars.streams.worker.topic_watch import LogGaps, TopicWatch
from irregulars.streams.worker_settings import WorkerSettings


def watch_of(**settings: float) -> TopicWatch:
    own = WorkerSettings("broker:9092", **settings)  # type: ignore[arg-type]
    return TopicWatch(own, ReadingThread(LogReader(own.bootstrap, {}), "looking"))


def looks(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int, away_s: float = 1e-9) -> None:
    def ask(*_: object) -> None:
        raise error

    monkeypatch.setattr(topic_watch, "check_topics", ask)
    watch = watch_of(broker_away_s=away_s)
    for _ in range(times):
        asyncio.run(watch.look_for_missing())


@pytest.mark.parametrize("kind", [ServiceUnavailable, ServiceRefused])
def test_a_broker_away_or_a_refusal_ends_no_worker(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    looks(monkeypatch, kind("no"), 5)


def test_topics_that_stay_away_are_fatal(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TopicMismatch):
        looks(monkeypatch, TopicMismatch("none named irregulars.evidence"), 3)
    assert [one.levelname for one in caplog.records if "event=topics_missing" in one.getMessage()] == ["ERROR"]


def test_topics_may_be_away_for_as_long_as_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, TopicMismatch("none"), 5, away_s=300.0)


def test_a_look_keeps_no_worker_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(topic_watch, "check_topics", lambda *arguments: asked.append(arguments))
    asyncio.run(watch_of(broker_timeout_s=30.0).look_for_missing())
    (_, _, _, timeout_s, _) = asked[0]
    assert timeout_s == 5.0, "its thread ends no sooner, and the process waits for it"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[TopicWatch]:
    """Topics of which ``evidence`` holds messages up to offset 9, wherever it is said to end."""
    monkeypatch.setattr(topic_watch, "_END_S", 0.0)
    watch = watch_of()
    reader = watch._reading.reader
    monkeypatch.setattr(reader, "holds", lambda topic, _, offset: topic.endswith("evidence") and offset <= 9)
    yield watch
    watch._reading.close()


def require_same(watch: TopicWatch, ids: dict[str, str], read_to: Offsets = {}, ends: Offsets = {}) -> None:  # noqa: B006
    watch._asked.read = lambda: ids  # type: ignore[method-assign]
    asyncio.run(watch.require_same([(3, read_to)], {3: ends}))


def test_a_topic_with_another_id_is_named_and_one_that_is_away_is_not(watch: TopicWatch) -> None:
    require_same(watch, {"jobs": "a"})
    require_same(watch, {"evidence": "e"})
    require_same(watch, {"evidence": "e", "jobs": "a"})
    with pytest.raises(
        TopicMismatch, match=r"got irregulars\.jobs, deleted and made anew\. .* irregulars\.job_snapshots"
    ):
        require_same(watch, {"evidence": "e", "jobs": "b"})


@pytest.mark.parametrize(("topic", "is_cut"), [("evidence", False), ("commops", True)])
def test_a_log_that_ends_before_what_was_read_is_cut_or_gone(watch: TopicWatch, topic: str, is_cut: bool) -> None:
    require_same(watch, {}, {topic: 10}, {topic: 10, "jobs": 0})
    with (
        pytest.raises(TopicMismatch, match=rf"got irregulars\.{topic}/3, which ends at 4, before 10")
        if is_cut
        else nullcontext()
    ):
        require_same(watch, {}, {topic: 10}, {topic: 4})


END = {0: {"commops": 9}}


class Log:
    """A log whose first message behind an offset is at `found`."""

    def __init__(self, found: int) -> None:
        self.found, self.asked, self.is_away = found, 0, False

    def next_offset(self, topic: str, partition: int, begin: int) -> int:
        self.asked += 1
        if self.is_away:
            raise ServiceUnavailable("no broker")
        return max(begin, self.found)

    def close(self) -> None:
        pass


@pytest.fixture
def state() -> Iterator[PartitionState[object]]:
    return PartitionState(0, 1, 1, {"commops": 7})


def look(gaps: LogGaps, state: PartitionState[object], times: int) -> int:
    for _ in range(times):
        asyncio.run(gaps.move_on([state], END))
    return state.read_to()["commops"]


def gaps_of(log: Log) -> LogGaps:
    return LogGaps(ReadingThread(log, "gaps"), TopicSettings())  # type: ignore[arg-type]  # all that is used of one


def test_a_marker_at_the_end_is_passed(state: PartitionState[object]) -> None:
    log = Log(found=9)
    gaps = gaps_of(log)
    assert look(gaps, state, 2) == 7, "a message may be on its way"
    assert log.asked == 0
    assert look(gaps, state, 1) == 9
    assert state.position() == {"commops": 9}
    assert look(gaps, state, 5) == 9
    assert log.asked == 1


def test_a_message_that_was_not_read_yet_is_waited_for(state: PartitionState[object]) -> None:
    gaps = gaps_of(Log(found=7))
    assert look(gaps, state, 20) == 7


def test_reading_that_goes_on_asks_nothing(state: PartitionState[object]) -> None:
    log = Log(found=9)
    gaps = gaps_of(log)
    for offset in range(7, 9):
        look(gaps, state, 2)
        state.take("commops", offset)
    assert log.asked == 0


def test_without_a_broker_the_clock_stands(state: PartitionState[object]) -> None:
    log = Log(found=9)
    gaps, log.is_away = gaps_of(log), True
    assert look(gaps, state, 3) == 7
    log.is_away = False
    assert look(gaps, state, 3) == 9
