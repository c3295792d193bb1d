"""Messages on the topics: how far workers are, which jobs run, dead letters, notices and mutes."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from irregulars.errors import RecordError, ServiceError, ServiceUnavailable
from irregulars.infra.doctor.broker import CLOCK_S, reason_of
from irregulars.infra.doctor.facts import GroupFacts, JobFacts, Letter, Progress, StreamFacts, TopicFacts
from irregulars.infra.doctor.findings import span
from irregulars.infra.doctor.topics import RECENT_S, Deadline, offsets_at
from irregulars.infra.doctor.workers import ALIVE_S
from irregulars.infra.runs.dead_letters import DeadLetter
from irregulars.kafka.broker import client_config, is_refusal, service_error
from irregulars.kafka.log_reader import fetched_end
from irregulars.kafka.login_password import new_consumer
from irregulars.kafka.scattered_reading import PASSING
from irregulars.kafka.topics import RANK_TOPICS
from irregulars.messages.announcements import (
    Announcement,
    Heartbeat,
    contradiction_of,
    decode_announcement,
    decode_heartbeat,
)
from irregulars.printing import counted
from irregulars.sinks.notices.mutes import decode_mute
from irregulars.sinks.notices.policy import decode_delivery

_BATCH: Final = 1000
_POLL_S: Final = 0.1
_MOST_KIB: Final = 65_536  # bound of librdkafka's read-ahead: large messages must not fill our memory
_PIECE_BYTES: Final = 1 << 18
Place = tuple[str, int]


class Tails:
    """Reads stretches of partitions. Nothing is committed, and no group is joined."""

    def __init__(self, bootstrap: str, security: Mapping[str, Any]) -> None:
        self._bootstrap: Final = bootstrap
        self._security: Final = security
        self._config: Final = client_config(bootstrap, security) | {
            "group.id": "irregulars-read-back",  # librdkafka asks for one
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "queued.max.messages.kbytes": _MOST_KIB,
            "fetch.message.max.bytes": _PIECE_BYTES,
        }

    def read(
        self, stretches: Mapping[Place, tuple[int, int]], deadline: Deadline, *, are_tails: bool = False
    ) -> Iterator[Message]:
        """Yield the messages of each stretch, from its first offset to before its last, as far as they exist.

        `are_tails`: each up to the end of its log, which the broker may have told too early. Raises
        `ServiceUnavailable` if not all came in time; `ServiceRefused` if we may not read one of the topics.
        """
        ends = {place: end for place, (begin, end) in stretches.items() if begin < end}
        if not ends:
            return
        untold = set(ends) if are_tails else set()
        with closing(new_consumer(self._config)) as consumer:
            consumer.assign([TopicPartition(*place, stretches[place][0]) for place in ends])
            while ends:
                if deadline.is_over:
                    raise ServiceUnavailable(f"Kafka at {self._bootstrap} must send all in time; got less")
                for message in consumer.consume(_BATCH, _POLL_S):
                    error = message.error()
                    place = str(message.topic()), message.partition() or 0
                    if error is None:
                        offset = message.offset() or 0
                        if place in untold:
                            untold.remove(place)
                            ends[place] = max(ends[place], fetched_end(consumer, TopicPartition(*place)))
                        # librdkafka reads ahead: messages behind the stretch are dropped.
                        if offset < ends.get(place, 0):
                            yield message
                        if offset >= ends.get(place, 0) - 1:
                            ends.pop(place, None)
                    elif error.code() == KafkaError._PARTITION_EOF:  # compaction may have removed the last offsets
                        ends.pop(place, None)
                    elif is_refusal(error, self._security) or error.code() not in PASSING:
                        # Any other error passes: librdkafka tries again, and the deadline bounds that.
                        raise service_error(error, self._bootstrap, security=self._security)


HEARD_S: Final = 3600.0  # jobs without a message for longer are left out

# Newest messages of a topic that are read: some seconds for the largest jobs
MOST: Final[Mapping[str, int]] = {
    "progress": 20_000, "jobs": 100_000, "heartbeats": 50_000, "evidence": 400, "deadletter": 500, "notices": 5_000,
    "mutes": 5_000,
}  # fmt: skip

_MOST_WAITING: Final = 32
_TRYING_S: Final = 120.0
_DAY_S: Final = 86_400.0
Topics = Mapping[str, TopicFacts]
_Record = TypeVar("_Record")


def read_to(at: int, end: int | None, is_alive: bool) -> int:
    """Return how far a partition was read, given a worker's position and the end that the broker reports.

    A worker that lives follows the topic that is there: a position behind the end means that all is read, and the
    broker reports an old end (Tansu's lags by a batch). Behind a worker that is gone such a position is of a topic of
    this name that was there before, and nothing of the new one is read.

    >>> read_to(133, 140, True), read_to(140, 133, True), read_to(140, 133, False), read_to(140, None, False)
    (133, 133, 0, 140)
    """
    return at if end is None or at <= end else end if is_alive else 0


class StreamReading:
    """Reads one part after the other; a part that can't be read is recorded, and the others are read nevertheless."""

    def __init__(self, admin: AdminClient, tails: Tails, topics: Topics, now_s: float, deadline: Deadline) -> None:
        self._admin, self._tails, self._topics = admin, tails, topics
        self._now_s, self._deadline = now_s, deadline
        self._unread: dict[str, str] = {}
        self._cut: dict[str, frozenset[int]] = {}  # by topic, partitions that hold more than was read

    def read(self, workers: GroupFacts, on_step: Callable[[str], None]) -> StreamFacts:
        """Return the facts that all messages together give."""
        on_step("asking how far the workers are")
        progress = self._progress(workers)
        told_s = time.time()  # reading takes seconds: a message that came meanwhile is not of the future
        waiting_s = self._waiting(progress, workers)
        on_step("reading what jobs said")
        jobs, since_s, clocks = self._jobs()
        on_step("reading dead letters, notices and mutes")
        read = [(_time_s(message), DeadLetter.of(message)) for message in self._newest("deadletter")]
        letters = tuple(Letter(time_s, one.reason, one.topic, one.headers.get("channel")) for time_s, one in read)
        troubled = self._troubled()
        newest = {message.key(): message for message in self._newest("mutes")}
        now_ns = int(self._now_s * 1e9)
        mutes = tuple(one.what() for _, one in _decoded(newest.values(), decode_mute) if one.is_active(now_ns))
        newest_s = max((one.time_s for one in progress.values()), default=0.0)
        if newest_s > told_s + CLOCK_S:
            clocks = {**clocks, "the workers": newest_s - told_s}
        return StreamFacts(
            self._unread, progress, waiting_s, jobs, since_s, self._cut.get("evidence", frozenset()), clocks, letters,
            mutes, troubled,
        )  # fmt: skip

    # --- workers ----------------------------------------------------------------------------------------------------

    def _progress(self, workers: GroupFacts) -> dict[int, Progress]:
        found: dict[int, Progress] = {}
        for message in self._newest("progress"):
            try:
                said = json.loads(message.value() or b"")
                positions = {str(topic): int(at) for topic, at in said["positions"].items()}
                release = said.get("release")
                one = Progress(_time_s(message), positions, release if isinstance(release, str) else None)
                # In the order of the log: the newest of each partition stays.
                found[int(said["partition"])] = one
            except (ValueError, TypeError, KeyError, AttributeError):  # no worker wrote it
                continue
        if not found:  # the group's commits stay long after the last worker ended
            names = {self._topics[topic].name: topic for topic in RANK_TOPICS if topic in self._topics}
            read: defaultdict[int, dict[str, int]] = defaultdict(dict)
            for (name, partition), at in workers.committed.items():
                if name in names:
                    read[partition][names[name]] = at
            found = {partition: Progress(0.0, positions) for partition, positions in read.items()}
        for number, one in found.items():
            ends = {topic: self._topics[topic].ends.get(number) for topic in one.positions if topic in self._topics}
            is_alive = self._is_alive(one)
            positions = {topic: read_to(at, ends.get(topic), is_alive) for topic, at in one.positions.items()}
            found[number] = replace(one, positions=positions)
        return found

    def _is_alive(self, one: Progress | None) -> bool:
        return one is not None and one.time_s > self._now_s - ALIVE_S

    def _waiting(self, progress: Mapping[int, Progress], workers: GroupFacts) -> dict[tuple[str, int], float]:
        names = {self._topics[topic].name: topic for topic in (*RANK_TOPICS, "evidence") if topic in self._topics}
        unread: dict[Place, tuple[int, int]] = {}
        for topic in names.values():
            seen = self._topics[topic]
            for partition, end in seen.ends.items():
                at = workers.committed.get((seen.name, partition)) if topic == "evidence" else None
                if topic != "evidence" and partition in progress:
                    at = progress[partition].positions.get(topic, 0)
                at = None if at is None else read_to(at, end, self._is_alive(progress.get(partition)))
                if at is not None and at < end and self._may_read(topic):
                    unread[seen.name, partition] = max(at, seen.begins.get(partition, 0)), end
        furthest = furthest_behind(unread, _MOST_WAITING)
        read = self._guarded("waiting", {place: (unread[place][0], unread[place][0] + 1) for place in furthest})
        return {(names[str(one.topic())], one.partition() or 0): _time_s(one) for one in read}

    # --- jobs -------------------------------------------------------------------------------------------------------

    def _jobs(self) -> tuple[tuple[JobFacts, ...], float, Mapping[str, float]]:
        announced = [Announced(_time_s(message), one)
                     for message, one in _decoded(self._newest("jobs"), decode_announcement)]  # fmt: skip
        since_s = self._now_s - HEARD_S
        beats = [Beat(message.partition() or 0, _time_s(message), one)
                 for message, one in _decoded(self._newest("heartbeats", since_s), decode_heartbeat)]  # fmt: skip
        heard_s = time.time()
        # Older ones were probably cut off: no more is claimed than for the time that those cover.
        if len(beats) >= MOST["heartbeats"] // 2:
            since_s = max(since_s, min(beat.time_s for beat in beats))
        closed_s: dict[str, float] = {}
        for message in self._newest("evidence", self._now_s - RECENT_S):
            if not (message.value() or b"{").startswith(b"{"):  # else it reports ranks that came or went
                job = (message.key() or b"").decode(errors="replace")
                closed_s[job] = max(closed_s.get(job, 0.0), _time_s(message))
        hosts = {(one.announcement.job, one.announcement.rank): one.announcement.host
                 for one in announced if one.announcement.host}  # fmt: skip
        jobs = jobs_of(announced, beats, closed_s, since_s)
        clocks = host_clocks(beats, hosts, heard_s)
        return jobs, since_s, clocks

    def _troubled(self) -> dict[str, str]:
        said = _decoded(self._newest("notices"), decode_delivery)
        newest = {message.key() or b"": told for message, told in said}
        found: dict[str, str] = {}
        for channel in sorted({told.channel for told in newest.values()}):
            own = [told for told in newest.values() if told.channel == channel]
            ages_s = [self._now_s - told.told_ns / 1e9 for told in own if told.state == "trying"]
            given_up = [told for told in own if told.state in ("doubtful", "refused")
                        and told.told_ns / 1e9 > self._now_s - _DAY_S]  # fmt: skip
            if any(age_s > _TRYING_S for age_s in ages_s):
                found[channel] = f"has not answered for {span(max(ages_s))} ({counted(len(ages_s), 'notice')})"
            elif given_up:
                found[channel] = f"{counted(len(given_up), 'notice')} given up or refused within a day"
        return found

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
        since: Mapping[int, int] = {}
        if since_s is not None:
            places = [(seen.name, number) for number in seen.ends]
            offsets = offsets_at(self._admin, places, since_s, self._deadline)
            since = {number: offsets.get((seen.name, number), end) for number, end in seen.ends.items()}
        stretches, self._cut[topic] = newest_stretches(seen, MOST[topic], since)
        tails = {(seen.name, number): stretch for number, stretch in stretches.items()}
        found = self._guarded(topic, tails, are_tails=True)
        return sorted(found, key=lambda one: (one.partition() or 0, one.offset() or 0))

    def _may_read(self, topic: str) -> bool:
        allowed = self._topics[topic].operations
        return allowed is None or "read" in allowed

    def _guarded(
        self, topic: str, stretches: Mapping[Place, tuple[int, int]], *, are_tails: bool = False
    ) -> list[Message]:
        found: list[Message] = []
        try:
            for message in self._tails.read(stretches, self._deadline, are_tails=are_tails):
                # One by one, so that messages before an error are kept.
                found.append(message)
        except (ServiceError, KafkaException) as error:
            self._unread[topic] = reason_of(error)
        return found


def furthest_behind(unread: Mapping[Place, tuple[int, int]], most: int) -> list[Place]:
    """Return the partitions of which most messages are unread; `unread`: from which offset to before which one."""
    return sorted(unread, key=lambda place: unread[place][0] - unread[place][1])[:most]


def newest_stretches(
    topic: TopicFacts, most: int, since: Mapping[int, int] | None = None
) -> tuple[dict[int, tuple[int, int]], frozenset[int]]:
    """Return the offsets of each partition's newest messages, and the partitions that hold more than those.

    `most`: of all partitions together. `since`: the first offset that is asked for, by partition.
    """
    # Each partition gets its part: a busy one must not crowd out the others.
    share = max(most // max(len(topic.ends), 1), 1)
    since = since or {}
    wanted = {number: max(topic.begins.get(number, 0), since.get(number, 0)) for number in topic.ends}
    stretches = {number: (max(end - share, wanted[number]), end) for number, end in topic.ends.items()}
    return stretches, frozenset(number for number, (begin, _) in stretches.items() if begin > wanted[number])


def _decoded(
    messages: Iterable[Message], decode: Callable[[bytes | None], _Record]
) -> Iterator[tuple[Message, _Record]]:
    for message in messages:
        # A key that was deleted from a compacted topic.
        if message.value() is None:
            continue
        try:
            yield message, decode(message.value())
        except RecordError:  # a worker buries it, and then it is found there
            continue


def _time_s(message: Any) -> float:
    # librdkafka gives -1 for a message without a time.
    return max(message.timestamp()[1], 0) / 1000


_Start = tuple[int, str]  # attempt number, and id of the start; empty: it has none
_BESIDE_S: Final = 5.0


class Beat(NamedTuple):
    """A heartbeat of the log: its partition, the time of its message (s since 1970), and its contents."""

    partition: int
    time_s: float
    heartbeat: Heartbeat


class Announced(NamedTuple):
    """An announcement, with the time of its message."""

    time_s: float
    announcement: Announcement


@dataclass(slots=True)
class _Gathered:
    announced: dict[int, Announced] = field(default_factory=dict)  # newest of each rank
    first: dict[tuple[int, int | None], Announced] = field(default_factory=dict)  # of each place: rank, since when
    beats: dict[int, Beat] = field(default_factory=dict)

    @property
    def announced_s(self) -> float:
        """When the newest of its ranks announced itself, s since 1970."""
        return max((one.time_s for one in self.announced.values()), default=0.0)

    def contradiction(self, rank: int) -> str | None:
        """In which respect the newest announcement of a rank contradicts the first one of the same place."""
        newest = self.announced[rank].announcement
        return contradiction_of(self.first[rank, newest.since_ns].announcement, newest)

    def hosts_since(self, since_s: float) -> set[str]:
        """Return the hosts of ranks that were heard to run more than `_BESIDE_S` after a time."""
        running = (rank for rank, beat in self.beats.items() if beat.heartbeat.state != "ended"
                   and beat.time_s > since_s + _BESIDE_S and rank in self.announced)  # fmt: skip
        return {host for rank in running if (host := self.announced[rank].announcement.host) is not None}


def jobs_of(
    announced: Iterable[Announced], beats: Iterable[Beat], evidence_s: Mapping[str, float], since_s: float
) -> tuple[JobFacts, ...]:
    """Return the newest starts of the jobs that were heard or announced since a time; the last heard first.

    `evidence_s`: when its newest iteration closed, s since 1970, by job.
    """
    found: defaultdict[str, defaultdict[_Start, _Gathered]] = defaultdict(lambda: defaultdict(_Gathered))
    for one in sorted(announced, key=lambda one: one.time_s):
        said = one.announcement
        gathered = found[said.job][said.attempt, said.start or ""]
        gathered.announced[said.rank] = one
        gathered.first.setdefault((said.rank, said.since_ns), one)
    for beat in beats:
        own = found[beat.heartbeat.job][beat.heartbeat.attempt, beat.heartbeat.start or ""].beats
        if beat.heartbeat.rank not in own or own[beat.heartbeat.rank].time_s <= beat.time_s:
            own[beat.heartbeat.rank] = beat
    jobs = [_job(name, starts, evidence_s.get(name)) for name, starts in found.items()]
    recent = [job for job in jobs if max((*job.heard_s.values(), job.announced_s)) >= since_s]
    return tuple(sorted(recent, key=lambda job: -max((*job.heard_s.values(), job.announced_s))))


def _job(name: str, starts: Mapping[_Start, _Gathered], evidence_s: float | None) -> JobFacts:
    # By time first: a job may be started anew under the attempt number of an earlier start.
    newest = max(starts, key=lambda start: (starts[start].announced_s, start))
    own, (attempt, _) = starts[newest], newest
    said = {rank: one.announcement for rank, one in own.announced.items() if one.announcement.is_logged}
    lost: defaultdict[str, int] = defaultdict(int)
    without_marks = {rank for rank, one in said.items() if "iterations" not in one.sources}
    for rank, beat in own.beats.items():
        for source, progress in beat.heartbeat.sources.items():
            lost[source] += progress.lost_rows
            if source == "iterations" and progress.rows == 0 and rank in said:  # announced, and none came
                without_marks.add(rank)
    return JobFacts(
        job=name,
        attempt=attempt,
        logged_ranks=max((one.logged_ranks for one in said.values()), default=0),
        announced=frozenset(said),
        announced_s=own.announced_s,
        heard_s={rank: beat.time_s for rank, beat in own.beats.items()},
        ended=frozenset(rank for rank, beat in own.beats.items() if beat.heartbeat.state == "ended"),
        lost_rows=dict(lost),
        clocks=frozenset(one.clock for one in said.values()),
        hosts={rank: one.host for rank, one in said.items() if one.host is not None},
        unsampled=frozenset(rank for rank, one in said.items() if "bandwidth" not in one.sources),
        without_marks=frozenset(without_marks),
        evidence_s=evidence_s,
        contradicts=next(filter(None, map(own.contradiction, own.announced)), None),
        beside=frozenset(
            host for start, other in starts.items() if start != newest for host in other.hosts_since(own.announced_s)
        ),
    )


def host_clocks(beats: Sequence[Beat], hosts: Mapping[tuple[str, int], str], now_s: float) -> dict[str, float]:
    """Return by host how far its clock is off, s, at least; 0 where nothing shows.

    A message bears its sender's time, and the log its order. A clock is behind by as much as each of its host's
    messages is older than one that came before it; it is ahead of ours by as much as its newest one lies in the
    future, and its messages count as that much older. `beats`: of each partition in the order of the log; `hosts`: By
    job and rank.

    >>> beat = lambda rank, time_s: Beat(0, time_s, Heartbeat("j", 0, rank))
    >>> log = [beat(0, 10.0), beat(1, 3.0), beat(0, 11.0), beat(1, 5.0)]
    >>> host_clocks(log, {("j", 0): "a", ("j", 1): "b"}, 11.0)
    {'a': 0.0, 'b': -6.0}
    """
    newest: dict[int, float] = {}
    behind: dict[str, float] = {}
    ahead: dict[str | None, float] = {}
    by_host = [(hosts.get((one.heartbeat.job, one.heartbeat.rank)), one) for one in beats]
    for host, one in by_host:
        ahead[host] = max(ahead.get(host, 0.0), one.time_s - now_s)
    for host, (partition, time_s, _) in by_host:
        time_s -= ahead[host]
        before_s = newest.get(partition, time_s)
        newest[partition] = max(before_s, time_s)
        if host is not None:
            behind[host] = min(behind.get(host, float("inf")), max(before_s - time_s, 0.0))
    return {host: ahead[host] or 0.0 - behind[host] for host in behind}
