"""Topics that were deleted and made anew, or cut: positions of before say nothing of what stands there now.

Whoever went on at an old position would pass over all that comes until the log is as long as it was, and without a
word: a job would be judged by the ranks whose partitions happened to be short. So a partition of such a topic is
read from its beginning, and no monitor takes a message for seen because of its offset.

A topic made anew is known by its id, which a snapshot keeps. Where a broker tells no ids, and where a log was cut (an
unclean election of a leader), a position behind the end of the log says so, if what was read last is not there any
more: some brokers say that a log ends where it does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

from irregulars.streams.snapshots.records import Offsets, PositionRecord
from irregulars.streams.stages.partition_state import PartitionState, Tracked

EVIDENCE: Final = "evidence"
END_S: Final = 5.0
"""How long a partition must end before what was read of it, s, to count as cut."""

_END_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Logs:
    """The topics as they are now.

    Parameters
    ----------
    ids
        By topic (named without prefix), as far as the broker tells them.
    ends
        Offsets of the next messages of what was assigned: by partition, then topic.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[int, Offsets] = field(default_factory=dict)


def changed_ids(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Return the topics that had another id before.

    >>> changed_ids({"jobs": "a", "commops": "b"}, {"jobs": "a", "commops": "c", "evidence": "d"})
    {'commops'}
    """
    return {topic for topic, known in now.items() if before.get(topic, known) != known}


def ended_before(positions: Mapping[str, int], ends: Mapping[str, int]) -> set[str]:
    """Return the topics whose log ends before the position up to which it was read.

    >>> ended_before({"jobs": 4, "commops": 9}, {"jobs": 4, "commops": 2})
    {'commops'}
    """
    return {topic for topic, end in ends.items() if positions.get(topic, 0) > end}


def reached_offsets(positions: Mapping[str, int], tracked: Iterable[Tracked[Any]]) -> Offsets:
    """Return how far topics were read, by a partition's position and by what its monitors have seen."""
    reached = dict(positions)
    for one in tracked:
        for topic, seen in one.seen.items():
            reached[topic] = max(seen + 1, reached.get(topic, 0))
    return reached


def without_topics(stored: PositionRecord, topics: Set[str]) -> PositionRecord:
    """Return what a partition's record still says once these topics are other ones."""
    positions = {topic: at for topic, at in stored.positions.items() if topic not in topics}
    record = replace(stored, positions=positions)
    if EVIDENCE in topics:  # all that it says of places in evidence
        record = replace(record, told=replace(record.told, before=0))
    if record.ends is not None:
        ends = {topic: dict.fromkeys(own, 0) if topic in topics else own for topic, own in record.ends.items()}
        record = replace(record, ends=ends)
    return record


def forget_seen(tracked: Iterable[Tracked[Any]], topics: Set[str]) -> None:
    """Let monitors take no message of these topics for seen; a snapshot is due then."""
    for one in tracked:
        if not topics.isdisjoint(one.seen):
            one.seen = {topic: at for topic, at in one.seen.items() if topic not in topics}
            one.is_dirty = True


class TopicsNow:
    """What a hop's topics are, held against what its snapshots say of them; of one assignment.

    Parameters
    ----------
    logs
        As they were found.
    rests_on
        Topics of which the hop keeps places.
    holds
        Asks whether a topic's partition has a message at an offset or behind it; it waits.

    Attributes
    ----------
    ids
        Of these topics, as far as they are told.
    made_anew
        Partitions of which places were forgotten, by topic.
    """

    def __init__(self, logs: Logs, rests_on: Set[str], holds: Callable[[str, int, int], bool]) -> None:
        self.ids: Final = {topic: known for topic, known in logs.ids.items() if topic in rests_on}
        self.made_anew: Final[dict[str, set[int]]] = {}
        self._ends: Final = logs.ends
        self._holds: Final = holds
        self._patient_until_s: Final = time.monotonic() + END_S

    def is_other(self, topic: str, record: PositionRecord) -> bool:
        """Whether a record was written when the topic was another one."""
        return topic in changed_ids(record.topic_ids, self.ids)

    def gone(self, partition: int, record: PositionRecord, tracked: Iterable[Tracked[Any]]) -> set[str]:
        """Return the topics of which a partition's places do not hold any more. May wait: call it in a thread."""
        anew = changed_ids(record.topic_ids, self.ids)
        reached = reached_offsets(record.positions, tracked)
        found = anew | self._cut(partition, {topic: at for topic, at in reached.items() if topic not in anew})
        self.note(found, partition)
        return found

    def note(self, topics: Set[str], partition: int) -> None:
        """Note that places of a partition were forgotten."""
        for topic in topics:
            self.made_anew.setdefault(topic, set()).add(partition)

    def _cut(self, partition: int, reached: Offsets) -> set[str]:
        """Return the topics that end before what was read; a new leader may need a moment to know its end."""
        found = ended_before(reached, self._ends.get(partition, {}))
        while found := {topic for topic in found if not self._holds(topic, partition, reached[topic] - 1)}:
            if time.monotonic() > self._patient_until_s:
                break
            time.sleep(_END_AGAIN_S)
        return found


class LogEnds:
    """Notices, while a worker runs, that a partition ends before the position up to which it was read.

    A new leader may say for a moment that the log ends earlier: it must last for some looks.

    Examples
    --------
    >>> state = PartitionState(0, 1, 1, {"commops": 9})
    >>> ends = LogEnds(looks=2)
    >>> ends.look([state], {0: {"commops": 2}}), ends.look([state], {0: {"commops": 3}})
    (set(), {('commops', 0, 8)})
    """

    def __init__(self, looks: int = 5) -> None:
        self._looks: Final = looks
        self._seen: dict[tuple[str, int, int], int] = {}

    def look(self, states: Iterable[PartitionState[Any]], ends: Mapping[int, Offsets]) -> set[tuple[str, int, int]]:
        """Return where that is so since some looks: topic, partition, offset of what was read last."""
        found = {
            (topic, state.partition, read_to[topic] - 1)
            for state in states
            for read_to in (state.read_to(),)
            for topic in ended_before(read_to, ends.get(state.partition, {}))
        }
        self._seen = {place: self._seen.get(place, 0) + 1 for place in found}
        return {place for place, looks in self._seen.items() if looks >= self._looks}

    def forget(self) -> None:
        """Begin anew, with other partitions."""
        self._seen = {}
