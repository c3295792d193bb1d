"""Who takes part in a job that begins anew, by the topic of announcements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from irregulars.kafka.topics import TopicSettings
from irregulars.messages.announcements import Announcement, encode_announcement
from irregulars.messages.evidence import Membership
from irregulars.streams.stages.job_topics import JobTopics

OLD = Announcement("j", 1, 0, 2, 2, (), host="old", start="a")
NEW = replace(OLD, host="new", since_ns=50)


@dataclass(frozen=True)
class Message:
    """An announcement on the topic, as a consumer gives it."""

    announcement: Announcement
    sent_ms: int

    def key(self) -> bytes:
        return f"{self.announcement.job}/{self.announcement.rank}".encode()

    def value(self) -> bytes:
        return encode_announcement(self.announcement)

    def timestamp(self) -> tuple[int, int]:
        return 1, self.sent_ms


@dataclass(frozen=True)
class Reader:
    by_partition: Mapping[int, Sequence[Message]]

    def partitions(self, topic: str) -> list[int]:
        return list(self.by_partition)

    def messages(self, topic: str, partition: int) -> Iterator[Message]:
        return iter(self.by_partition[partition])


def announced(*partitions: Sequence[Message], rows: Sequence[Membership] = ()) -> list[Announcement]:
    reader = Reader(dict(enumerate(partitions)))
    found = JobTopics(reader, TopicSettings()).announced("j", rows)  # type: ignore[arg-type]  # all that it uses
    return [one.announcement for one in found if isinstance(one, Membership) and one.announcement is not None]


@pytest.mark.parametrize("is_new_first", [True, False])
def test_both_places_of_a_rank_that_moved_to_another_host_are_known(is_new_first: bool) -> None:
    """All that a host sends together lies in one partition: the place that a rank left, in that of its old host."""
    places = [[Message(OLD, 10)], [Message(NEW, 20)]]
    assert announced(*(places[::-1] if is_new_first else places)) == [OLD, NEW]


@pytest.mark.parametrize("is_new_first", [True, False])
def test_of_two_announcements_of_one_place_the_newest_holds(is_new_first: bool) -> None:
    """A job without ids of its starts that came back on other hosts: the old ones would contradict the new ones."""
    again = replace(OLD, host="new")
    starts = [[Message(OLD, 10)], [Message(again, 20)]]
    assert announced(*(starts[::-1] if is_new_first else starts)) == [again]


@pytest.mark.parametrize("is_new_first", [True, False])
def test_a_start_is_known_by_its_ranks_that_a_later_start_has_on_other_hosts(is_new_first: bool) -> None:
    later = replace(OLD, host="new", start="b")
    starts = [[Message(OLD, 10)], [Message(later, 20)]]
    starts = starts[::-1] if is_new_first else starts
    assert announced(*starts) == [later]
    assert announced(*starts, rows=[Membership("j", 1, 0, start="a")]) == [OLD]


def test_of_one_partition_the_newest_of_a_rank_holds_and_of_no_other_job() -> None:
    other = Message(replace(OLD, job="j/k"), 5)
    later = replace(OLD, attempt=2, start="b")
    assert announced([Message(OLD, 10), other, Message(later, 20)], []) == [later]
