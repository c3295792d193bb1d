"""What the messages on the topics say: how far workers are, which jobs run, what was refused, who is muted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException, Message
from confluent_kafka.admin import AdminClient

from irregulars.errors import RecordError, ServiceError
from irregulars.infra.doctor.checks.broker import CLOCK_S
from irregulars.infra.doctor.checks.facts import GroupFacts, JobFacts, Letter, Progress, StreamFacts, TopicFacts
from irregulars.infra.doctor.checks.job_facts import Announced, Beat, host_clocks, jobs_of
from irregulars.infra.doctor.checks.topics import RECENT_S
from irregulars.infra.doctor.checks.words import count, span
from irregulars.infra.doctor.checks.workers import FIRST_HOP
from irregulars.infra.doctor.reading.deadline import Deadline
from irregulars.infra.doctor.reading.tails import Place, Tails, reason_of
from irregulars.infra.doctor.reading.topics import offsets_at
from irregulars.infra.runs.dead_letters import DeadLetter
from irregulars.messages.announcements import decode_announcement, decode_heartbeat
from irregulars.sinks.notices.mutes import decode_mute
from irregulars.sinks.notices.told import Told, decode_told

HEARD_S: Final = 3600.0
"""Jobs that were heard within so long are looked at."""

MOST: Final[Mapping[str, int]] = {
    "progress": 20_000, "jobs": 100_000, "heartbeats": 50_000, "evidence": 400, "deadletter": 500, "notices": 5_000,
    "mutes": 5_000,
}  # fmt: skip
"""Newest messages of a topic that are read: some seconds for the largest jobs."""

_MOST_WAITING: Final = 32
_TRYING_S: Final = 120.0
_DAY_S: Final = 86_400.0
Topics = Mapping[str, TopicFacts]
_Record = TypeVar("_Record")


class StreamReading:
    """Reads the parts one after the other; what can't be read is noted, and the others are read nevertheless.

    Parameters
    ----------
    admin, tails
        To ask and to read with.
    topics
        What is known of the topics.
    now_s
        Our time, s since 1970.
    """

    def __init__(self, admin: AdminClient, tails: Tails, topics: Topics, now_s: float, deadline: Deadline) -> None:
        self._admin, self._tails, self._topics = admin, tails, topics
        self._now_s, self._deadline = now_s, deadline
        self._unread: dict[str, str] = {}

    def read(self, workers: GroupFacts, on_step: Callable[[str], None]) -> StreamFacts:
        """Return all that the messages say."""
        on_step("asking how far the workers are")
        progress = self._progress(workers)
        waiting_s = self._waiting(progress, workers)
        on_step("reading what jobs said")
        jobs, since_s, clocks, is_whole = self._jobs()
        on_step("reading dead letters, notices and mutes")
        letters = tuple(self._letters())
        troubled, mutes = self._troubled(), tuple(self._mutes())
        newest_s = max((one.time_s for one in progress.values()), default=0.0)
        if newest_s > self._now_s + CLOCK_S:
            clocks = {**clocks, "the workers": newest_s - self._now_s}
        return StreamFacts(
            self._unread, progress, waiting_s, jobs, since_s, is_whole, clocks, letters, mutes, troubled
        )

    # --- workers ----------------------------------------------------------------------------------------------------

    def _progress(self, workers: GroupFacts) -> dict[int, Progress]:
        found: dict[int, Progress] = {}
        for message in self._newest("progress"):
            try:
                said = json.loads(message.value() or b"")
                positions = {str(topic): int(at) for topic, at in said["positions"].items()}
                release = said.get("release")
                one = Progress(_time_s(message), positions, release if isinstance(release, str) else None)
                found[int(said["partition"])] = one
            except (ValueError, TypeError, KeyError, AttributeError):  # no worker wrote it
                continue
        found = found or self._from_commits(workers)
        return {number: replace(one, positions=self._in_log(number, one.positions)) for number, one in found.items()}

    def _in_log(self, partition: int, positions: Mapping[str, int]) -> dict[str, int]:
        """Leave out positions behind the end: they are of the topic of this name that was there before."""
        ends = {topic: self._topics[topic].ends.get(partition) for topic in positions if topic in self._topics}
        return {topic: at for topic, at in positions.items() if at <= (ends.get(topic) or at)}

    def _from_commits(self, workers: GroupFacts) -> dict[int, Progress]:
        """What the group committed tells how far snapshots were, long after the last worker ended."""
        names = {self._topics[topic].name: topic for topic in FIRST_HOP if topic in self._topics}
        found: dict[int, dict[str, int]] = {}
        for (name, partition), at in workers.committed.items():
            if name in names:
                found.setdefault(partition, {})[names[name]] = at
        return {partition: Progress(0.0, positions) for partition, positions in found.items()}

    def _waiting(self, progress: Mapping[int, Progress], workers: GroupFacts) -> dict[tuple[str, int], float]:
        names = {self._topics[topic].name: topic for topic in (*FIRST_HOP, "evidence") if topic in self._topics}
        begins = {}
        for topic in names.values():
            seen = self._topics[topic]
            for partition, end in seen.ends.items():
                at = workers.committed.get((seen.name, partition)) if topic == "evidence" else None
                if topic != "evidence" and partition in progress:
                    at = progress[partition].positions.get(topic, 0)
                if at is not None and at > end:  # of the topic of this name that was there before
                    at = 0
                if at is not None and at < end and self._may_read(topic):
                    begins[seen.name, partition] = max(at, seen.begins.get(partition, 0))
        first = dict(sorted(begins.items(), key=lambda one: one[1])[:_MOST_WAITING])
        read = self._guarded("waiting", {place: (at, at + 1) for place, at in first.items()})
        return {(names[str(one.topic())], one.partition() or 0): _time_s(one) for one in read}

    # --- jobs -------------------------------------------------------------------------------------------------------

    def _jobs(self) -> tuple[tuple[JobFacts, ...], float, Mapping[str, float], bool]:
        announced = [Announced(_time_s(message), one)
                     for message, one in _decoded(self._newest("jobs"), decode_announcement)]  # fmt: skip
        since_s = self._now_s - HEARD_S
        beats = [Beat(message.partition() or 0, _time_s(message), one)
                 for message, one in _decoded(self._newest("heartbeats", since_s), decode_heartbeat)]  # fmt: skip
        if len(beats) >= MOST["heartbeats"] // 2:
            since_s = max(since_s, min(beat.time_s for beat in beats))
        evidence = list(self._newest("evidence", self._now_s - RECENT_S))
        closed_s: dict[str, float] = {}
        for message in evidence:
            if not (message.value() or b"{").startswith(b"{"):  # else it tells of ranks that came or went
                job = (message.key() or b"").decode(errors="replace")
                closed_s[job] = max(closed_s.get(job, 0.0), _time_s(message))
        hosts = {(one.announcement.job, one.announcement.rank): one.announcement.host
                 for one in announced if one.announcement.host}  # fmt: skip
        jobs = jobs_of(announced, beats, closed_s, since_s)
        clocks = host_clocks(beats, hosts, self._now_s)
        return jobs, since_s, clocks, len(evidence) < MOST["evidence"] // 2

    # --- what was refused, and who is told --------------------------------------------------------------------------

    def _letters(self) -> Iterator[Letter]:
        for message in self._newest("deadletter"):
            letter = DeadLetter.of(message)
            yield Letter(_time_s(message), letter.reason, letter.topic, letter.headers.get("channel"))

    def _troubled(self) -> dict[str, str]:
        newest: dict[bytes, Told] = {}
        for message, told in _decoded(self._newest("notices"), decode_told):
            newest[message.key() or b""] = told
        found: dict[str, str] = {}
        for channel in sorted({told.channel for told in newest.values()}):
            own = [told for told in newest.values() if told.channel == channel]
            ages_s = [self._now_s - told.told_ns / 1e9 for told in own if told.state == "trying"]
            given_up = [told for told in own if told.state in ("doubtful", "refused")
                        and told.told_ns / 1e9 > self._now_s - _DAY_S]  # fmt: skip
            if any(age_s > _TRYING_S for age_s in ages_s):
                found[channel] = f"has not answered for {span(max(ages_s))} ({count(len(ages_s), 'notice')})"
            elif given_up:
                found[channel] = f"{count(len(given_up), 'notice')} given up or refused within a day"
        return found

    def _mutes(self) -> Iterator[str]:
        newest = {message.key(): message for message in self._newest("mutes")}
        for _, mute in _decoded(newest.values(), decode_mute):
            if mute.is_active(int(self._now_s * 1e9)):
                yield mute.what()

    # --- reading ----------------------------------------------------------------------------------------------------

    def _newest(self, topic: str, since_s: float | None = None) -> list[Message]:
        """Return the newest messages of a topic, partition by partition in the order of the log."""
        seen = self._topics.get(topic)
        if seen is None or seen.error is not None:
            self._unread[topic] = "the topic is missing, or we may not see it"
            return []
        if not self._may_read(topic):
            self._unread[topic] = f"we may not read {seen.name}"
            return []
        share = max(MOST[topic] // max(len(seen.ends), 1), 1)
        begins = {number: max(end - share, seen.begins.get(number, 0)) for number, end in seen.ends.items()}
        if since_s is not None:
            places = [(seen.name, number) for number in seen.ends]
            since = offsets_at(self._admin, places, since_s, self._deadline)
            begins = {
                number: max(at, since.get((seen.name, number), seen.ends[number])) for number, at in begins.items()
            }
        stretches = {(seen.name, number): (begins[number], end) for number, end in seen.ends.items()}
        found = self._guarded(topic, stretches)
        return sorted(found, key=lambda one: (one.partition() or 0, one.offset() or 0))

    def _may_read(self, topic: str) -> bool:
        allowed = self._topics[topic].operations
        return allowed is None or "read" in allowed

    def _guarded(self, topic: str, stretches: Mapping[Place, tuple[int, int]]) -> list[Message]:
        found: list[Message] = []
        try:
            for message in self._tails.read(stretches, self._deadline):
                found.append(message)
        except (ServiceError, KafkaException) as error:
            self._unread[topic] = reason_of(error)
        return found


def _decoded(
    messages: Iterable[Message], decode: Callable[[bytes | None], _Record]
) -> Iterator[tuple[Message, _Record]]:
    for message in messages:
        if message.value() is None:
            continue
        try:
            yield message, decode(message.value())
        except RecordError:  # a worker buries it, and then it is found there
            continue


def _time_s(message: Any) -> float:
    return max(message.timestamp()[1], 0) / 1000
