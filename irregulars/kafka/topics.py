"""Names, keys, partitions and settings of the Kafka topics."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS
SENDING: Final[Mapping[str, str | int | bool]] = {
    "partitioner": "murmur2_random",
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 1,
}
"""Every producer sets this. The partitioner: librdkafka's default differs from that of the Java client.
One request at a time: with more, the broker may refuse a partition's first request for a moment (its leader is still
being made) and take the second; librdkafka then takes the first for stored, and acknowledges what nobody has."""

MAX_MESSAGE_BYTES: Final = 1_000_000
"""Kafka's default limit, less the room that headers take; larger batches are split."""

HEADER_BYTES: Final = 48_576  # that room: Kafka's default limit, 1,048,576, less `MAX_MESSAGE_BYTES`
SNAPSHOT_TOPICS: Final = ("rank_snapshots", "job_snapshots")

CLEANING: Final[Mapping[str, str]] = {
    "segment.bytes": str(32 << 20),
    "segment.ms": str(HOUR_MS // 6),
    "max.compaction.lag.ms": str(HOUR_MS // 2),
    "min.cleanable.dirty.ratio": "0.3",
    "delete.retention.ms": str(HOUR_MS),
}
"""How the broker cleans the topics of snapshots. It compacts closed files of the log alone, and closes one by default
after 1 GiB or 7 days, when 100,000 snapshots have been written. Here: 32 MiB or 10 minutes; cleaned when three tenths
may be stale, and after half an hour anyway; tombstones stay for an hour, which no restart takes. All this bounds
the disk; how much a restart reads does not depend on it (`streams.snapshots.snapshot_writer`)."""

MAX_KEY_BYTES: Final = 4096  # of job and rank: each message carries them


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic."""

    name: str  # name without the prefix
    key: str  # that of its messages, for pages; ``job/rank`` where the rank is in no group
    # The roles that may write and read it, and those that must see that it is there (`kafka.access_roles`)
    writers: str
    readers: str
    watchers: str = ""
    retention_ms: int = 7 * DAY_MS
    # Keep the newest message of each key for ever, instead of all messages for `retention_ms`
    is_compacted: bool = False
    # The topics of the first hop: equal numbers of partitions, so that all that one rank sends meets in one worker
    is_parted_by_rank: bool = False
    # Few messages: one partition keeps their order, and one member of a group has them all
    is_small: bool = False
    # For those who tell people: a worker works without it (it reads ``feedback`` and ``thresholds`` where they exist)
    is_for_people: bool = False
    # Age at which Kafka closes a file of the log, since only closed ones are deleted; `None`: its default, 7 days
    segment_ms: int | None = None


_BY_GROUP, _BY_VERDICT = "`job/@group` or `job/rank`", "the verdict's id"
_OF_RANKS: Final[Mapping[str, Any]] = {"writers": "producer agent", "readers": "worker", "is_parted_by_rank": True}
_COMPACTED: Final[Mapping[str, Any]] = {"writers": "worker", "readers": "worker", "is_compacted": True}
_FEW: Final[Mapping[str, Any]] = {"is_small": True, "is_for_people": True}

TOPICS: Final[Mapping[str, Topic]] = {
    topic.name: topic
    for topic in (
        Topic("jobs", "`job/rank`", is_compacted=True, **_OF_RANKS),
        Topic("commops", _BY_GROUP, retention_ms=2 * DAY_MS, **_OF_RANKS),
        Topic("bandwidth", _BY_GROUP, retention_ms=2 * DAY_MS, **_OF_RANKS),
        Topic("iterations", _BY_GROUP, **_OF_RANKS),
        Topic("gpu_health", _BY_GROUP, "agent", "worker", retention_ms=2 * DAY_MS, is_parted_by_rank=True),
        Topic("events", _BY_GROUP, retention_ms=30 * DAY_MS, **_OF_RANKS),
        Topic("heartbeats", _BY_GROUP, retention_ms=DAY_MS, **_OF_RANKS),
        Topic("rank_snapshots", _BY_GROUP, is_parted_by_rank=True, **_COMPACTED),
        Topic("evidence", "`job`", "worker", "worker"),
        Topic("progress", "a partition's number", "worker", "worker", retention_ms=HOUR_MS, is_small=True,
              segment_ms=HOUR_MS),
        Topic("job_snapshots", "`job`", **_COMPACTED),
        Topic("verdicts", _BY_VERDICT, "worker", "worker reader operator", retention_ms=365 * DAY_MS, is_small=True),
        Topic("alerts", _BY_VERDICT, "worker", "worker reader notify operator console agent",
              retention_ms=365 * DAY_MS, is_small=True),
        Topic("notices", "`verdict/channel`", "notify", "notify operator", is_compacted=True, **_FEW),
        Topic("mutes", "the mute's id", "operator", "notify operator", is_compacted=True, **_FEW),
        Topic("actions", _BY_VERDICT, "notify", "reader actor", retention_ms=30 * DAY_MS, **_FEW),
        Topic("feedback", "`verdict/who`", "operator", "worker notify operator", is_compacted=True, **_FEW),
        Topic("thresholds", "the change's id", "operator", "worker operator", is_compacted=True, **_FEW),
        Topic("deadletter", "as it was", "worker notify", "operator console", "worker notify",
              retention_ms=30 * DAY_MS, is_small=True),
    )
}  # fmt: skip
"""Every topic: a new one is a line here, with the roles that may write and read it."""

WORKER_TOPICS: Final = tuple(name for name, topic in TOPICS.items() if not topic.is_for_people)
"""Topics without which a worker can't work."""

RANK_TOPICS: Final = tuple(n for n, topic in TOPICS.items() if topic.is_parted_by_rank and topic.writers != "worker")
"""What ranks and agents send, and the first hop reads."""

RESULTS: Final = tuple(
    name for name, topic in TOPICS.items() if "worker" in topic.writers.split() and not topic.is_compacted
)
"""What workers send beside their snapshots."""

TOGETHER: Final = (tuple(n for n, topic in TOPICS.items() if topic.is_parted_by_rank), ("evidence", "job_snapshots"))
"""Topics of equal numbers of partitions: those of the first hop, and of the second."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How the topics are laid out in one installation."""

    prefix: str = "irregulars."  # begins each name, so that installations can share a broker
    partitions: int = 8  # of each topic of the first hop, and of ``evidence`` and the snapshots
    replicas: int = 1  # copies of each partition; 1 is for demos and tests

    def name(self, topic: str) -> str:
        """Full name of a topic, for example ``irregulars.commops``."""
        return self.prefix + TOPICS[topic].name


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, as every producer of ours chooses it.

    >>> partition_of(b"llama-7b/@node-3/0", 8)
    3
    """
    # The Java client makes the hash positive by cutting its sign off, not by its absolute value.
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(key: bytes) -> int:
    """Return MurmurHash2 of a key, with the Java client's seed: librdkafka has it, and no call that gives it."""
    mixing, most = 0x5BD1E995, 0xFFFFFFFF
    whole = len(key) & ~3
    found = 0x9747B28C ^ len(key)
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        word = word * mixing & most
        found = found * mixing & most ^ (word ^ word >> 24) * mixing & most
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * mixing & most
    found = (found ^ found >> 13) * mixing & most
    return found ^ found >> 15


def rank_key(job: str, rank: int) -> bytes:
    """Key of all that one rank sends.

    >>> rank_key("llama-7b", 12)
    b'llama-7b/12'
    """
    return f"{job}/{rank}".encode()


def group_key(job: str, group: str) -> bytes:
    """Key of all that the ranks of one group send (`messages.bundles`).

    >>> group_key("llama-7b", "node-3")
    b'llama-7b/@node-3'
    """
    return f"{job}/@{group}".encode()
