"""By which words of people a partition's evidence is judged, after restarts too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from irregulars.errors import ServiceUnavailable
from irregulars.kafka.dead_letters import InputMessage
from irregulars.messages.opinions import Opinion
from irregulars.messages.threshold_changes import ThresholdChange
from irregulars.streams.progress.live_words import PeopleSay
from irregulars.streams.progress.word_log import ReadWords, UnusableWord
from irregulars.streams.snapshots.records import PositionRecord
from irregulars.streams.stages.partition_state import PartitionState


class ReadSoFar:
    """The topic, as far as it was read."""

    def __init__(self, *changes: ThresholdChange | Opinion | UnusableWord, is_readable: bool = True) -> None:
        self.is_readable = is_readable
        self.known: ReadWords[Any] = ReadWords()
        self.add(*changes)

    def add(self, *changes: ThresholdChange | Opinion | UnusableWord) -> None:
        begin = self.known.revision
        words = [(at, one) for at, one in enumerate(changes, begin) if not isinstance(one, UnusableWord)]
        unusable = [one for one in changes if isinstance(one, UnusableWord)]
        self.known = self.known.more(begin + len(changes), words, unusable)


class KeptLetters:
    """Dead letters, in place of a broker."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    async def bury(self, message: InputMessage, reason: str) -> None:
        self.reasons.append(reason)


def change(delta: float, job: str | None = None) -> ThresholdChange:
    return ThresholdChange(f"t-{delta}", {"delta": delta}, "ann", "noise", 0, job)


def live(log: Any, letters: KeptLetters | None = None, opinions: Any = None) -> PeopleSay:
    return PeopleSay(log, opinions, letters or KeptLetters())  # type: ignore[arg-type]


def restored(found: PeopleSay, stored: PositionRecord, end: int, partition: int = 1) -> PartitionState[Any]:
    state: PartitionState[Any] = PartitionState(partition, 1, 1, {})
    asyncio.run(found.restore(state, stored, end))
    return state


def stored(found: PeopleSay, state: PartitionState[Any]) -> PositionRecord:
    return PositionRecord(
        1, {}, {}, thresholds=found.thresholds.to_store(state), opinions=found.opinions.to_store(state)
    )


def deltas(found: PeopleSay, state: PartitionState[Any], offsets: Sequence[int], job: str = "j") -> list[Any]:
    return [[one.values["delta"] for one in found.thresholds.heard(state, job, at).words] for at in offsets]


def test_where_nothing_was_judged_all_goes_by_what_holds() -> None:
    found = live(ReadSoFar(change(1.2)))
    state = restored(found, PositionRecord(), end=500)
    assert deltas(found, state, [0, 499, 500]) == [[1.2]] * 3


def test_what_may_have_been_judged_before_a_restart_goes_by_what_held_then() -> None:
    found = live(ReadSoFar(change(1.2)))
    state = restored(found, PositionRecord(1, {}, {}), end=500)
    assert deltas(found, state, [0, 499, 500]) == [[], [], [1.2]]


def test_a_change_holds_once_it_is_stored_and_a_restart_finds_it_where_it_was() -> None:
    log = ReadSoFar()
    found = live(log)
    state = restored(found, PositionRecord(1, {}, {}), end=100)
    assert not found.has_news(state)
    log.add(change(1.2), change(1.3, "other"))
    assert found.has_news(state)
    asyncio.run(found.plan(state, 120))
    assert deltas(found, state, [119, 120]) == [[], []], "it is not stored yet"
    record = stored(found, state)
    found.begin(state)
    assert deltas(found, state, [119, 120]) == [[], [1.2]]
    assert deltas(found, state, [120], "other") == [[1.2, 1.3]]
    log.add(change(1.4))
    again = live(log)
    next_owner = restored(again, record, end=180)
    assert deltas(again, next_owner, [119, 120, 179, 180]) == [[], [1.2], [1.2], [1.2, 1.4]]


def test_a_worker_that_can_t_read_what_holds_judges_nothing() -> None:
    log = ReadSoFar(change(1.2))
    found = live(log)
    record = stored(found, restored(found, PositionRecord(), end=0))
    log.is_readable = False
    with pytest.raises(ServiceUnavailable, match="must be readable, since words up to offset 1 hold in partition 1"):
        restored(live(log), record, end=10)


def test_without_the_topic_settings_alone_count() -> None:
    for log in (None, ReadSoFar(is_readable=False)):
        found = live(log)
        state = restored(found, PositionRecord(1, {}, {}), end=10)
        assert not found.has_news(state)
        assert deltas(found, state, [0, 10]) == [[], []]


def test_what_can_t_be_used_is_buried_once_and_by_one_partition_alone() -> None:
    unusable, letters = UnusableWord("thresholds", 0, 1, 0.0, b"t", b"?", "broken"), KeptLetters()
    log = ReadSoFar(change(1.2), unusable)
    found = live(log, letters)
    records = [stored(found, restored(found, PositionRecord(), 0, partition)) for partition in (0, 1)]
    assert letters.reasons == ["broken"]
    again = live(log, letters)
    for partition, record in enumerate(records):
        restored(again, record, 0, partition)
    assert letters.reasons == ["broken"]


def opinion(verdict_id: str, job: str = "j") -> Opinion:
    return Opinion(verdict_id, job, "slow_rank", (0, 5), False, "ann", 0)


def heard(found: PeopleSay, state: PartitionState[Any], offsets: Sequence[int], job: str = "j") -> list[Any]:
    """Revision and words by which evidence at some offsets is judged."""
    told = [found.opinions.heard(state, job, at) for at in offsets]
    return [(one.revision, [word.verdict_id for word in one.words]) for one in told]


def test_an_opinion_teaches_from_a_stored_place_on_and_each_topic_has_its_own() -> None:
    changes, opinions = ReadSoFar(), ReadSoFar()
    found = live(changes, opinions=opinions)
    state = restored(found, PositionRecord(1, {}, {}), end=100)
    opinions.add(opinion("v"), opinion("w", "other"))
    assert found.has_news(state)
    asyncio.run(found.plan(state, 120))
    assert heard(found, state, [119, 120]) == [(0, []), (0, [])], "it is not stored yet"
    record = stored(found, state)
    found.begin(state)
    changes.add(change(1.2))
    asyncio.run(found.plan(state, 150))
    found.begin(state)
    assert heard(found, state, [119, 120, 150]) == [(0, []), (2, ["v"]), (2, ["v"])]
    assert deltas(found, state, [149, 150]) == [[], [1.2]]
    opinions.add(opinion("x"))
    again = live(changes, opinions=opinions)
    next_owner = restored(again, record, end=180)
    assert heard(again, next_owner, [119, 120, 179, 180]) == [(0, []), (2, ["v"]), (2, ["v"]), (3, ["v", "x"])]
    assert again.opinions.heard(next_owner, "j", 130) is again.opinions.heard(next_owner, "j", 140)


def test_a_job_s_words_are_found_without_looking_at_those_of_others() -> None:
    class Counted(str):
        """The name of a job; counts how often it is compared."""

        __slots__ = ()
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str(self) == other

    log = ReadSoFar(*(opinion(f"v{n}", Counted(f"j{n}")) for n in range(1000)))
    log.add(change(1.5), opinion("late", "j7"))
    Counted.compared = 0
    assert [getattr(one, "verdict_id", "all") for one in log.known.of("j7", 1002)] == ["v7", "all", "late"]
    assert [getattr(one, "verdict_id", "all") for one in log.known.of("j7", 1001)] == ["v7", "all"]
    assert Counted.compared < 100
    assert [getattr(one, "verdict_id", "all") for one in log.known.between(999, 1001)] == ["v999", "all"]


def test_a_word_whose_partition_was_taken_away_when_it_began_is_told_of_by_the_next_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "irregulars.worker")
    opinions = ReadSoFar()
    found = live(ReadSoFar(), opinions=opinions)
    state = restored(found, PositionRecord(1, {}, {}), end=100)
    opinions.add(opinion("v"))
    asyncio.run(found.plan(state, 120))
    record = stored(found, state)
    assert caplog.messages == []
    restored(live(ReadSoFar(), opinions=opinions), record, end=180)
    assert caplog.messages == ["event=words_hold topic=feedback partition=1 revision=1"]


def test_of_many_words_that_begin_to_hold_at_once_the_number_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "irregulars.worker")
    opinions = ReadSoFar()
    found = live(ReadSoFar(), opinions=opinions)
    state = restored(found, PositionRecord(1, {}, {}), end=100)
    opinions.add(*(opinion(f"v{number}") for number in range(1_000)))
    asyncio.run(found.plan(state, 120))
    found.begin(state)
    assert caplog.messages == ["event=feedback partition=1 from_offset=120 revision=1000 words=1000"]


def test_where_nothing_is_taught_an_opinion_is_no_news() -> None:
    found = live(ReadSoFar())
    state = restored(found, PositionRecord(1, {}, {}), end=10)
    assert not found.has_news(state)
    assert heard(found, state, [10]) == [(0, [])]


def test_words_that_hold_and_can_t_be_read_let_nobody_judge() -> None:
    opinions = ReadSoFar(opinion("v"))
    found = live(ReadSoFar(), opinions=opinions)
    record = stored(found, restored(found, PositionRecord(), end=0))
    opinions.is_readable = False
    with pytest.raises(ServiceUnavailable, match="topic feedback must be readable"):
        restored(live(ReadSoFar(), opinions=opinions), record, end=10)


def test_what_is_new_of_a_topic_is_all_of_it_where_it_was_made_anew() -> None:
    log = ReadSoFar(opinion("v"), opinion("w"))
    assert [one.verdict_id for one in log.known.since(1)] == ["w"]
    assert log.known.since(2) == []
    assert [one.verdict_id for one in log.known.since(9)] == ["v", "w"]
