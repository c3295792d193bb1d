"""Facts read from Kafka, before anything follows from them. None: could not be read, and is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a broker or the database does not let us in: a code of `findings.TO_DO`, and a sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The brokers as a whole."""

    bootstrap: str
    error: Obstacle | None = None  # why none could be used
    brokers: int = 0
    answered_in_s: float = 0.0
    is_tls: bool = False
    has_login: bool = False
    certificate_ends_s: float | None = None  # s since 1970, as all times here
    own_certificate_ends_s: float | None = None
    broker_clock_s: float | None = None  # least lead of the broker's clock over ours; None: no topic is stamped by it


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic; `begins`, `ends` and `since` hold offsets by partition."""

    name: str
    error: str | None = None  # "missing", "refused" or another reason why it could not be looked at
    partitions: int = 0
    replicas: int = 0
    leaderless: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()  # partitions with a copy that is not in sync
    config: Mapping[str, str] | None = None
    operations: frozenset[str] | None = None  # allowed to us
    begins: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)  # offset of the next message
    since: Mapping[int, int] = field(default_factory=dict)  # first offset not older than `topics.RECENT_S`
    newest_s: float | None = None

    @property
    def messages(self) -> int:
        """Number of offsets; of a topic that is not compacted, of messages."""
        return sum(self.ends.values()) - sum(self.begins.get(number, 0) for number in self.ends)

    @property
    def recent(self) -> int:
        """Number of recent offsets."""
        return sum(end - self.since.get(number, end) for number, end in self.ends.items())


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group; `error` is why it could not be looked at."""

    name: str
    error: str | None = None
    members: tuple[str, ...] = ()  # the demo's broker names none of a working group: then `is_stable` counts
    is_settling: bool = False  # shares out its partitions now
    is_stable: bool = False
    operations: frozenset[str] | None = None
    committed: Mapping[tuple[str, int], int] = field(default_factory=dict)  # by topic (full name) and partition


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the first hop has read one partition, as a worker published on the topic ``progress``."""

    time_s: float
    positions: Mapping[str, int]
    release: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """``/metrics``, ``/healthz`` and ``/readyz`` of a worker on this machine."""

    url: str
    release: str
    group: str
    why_dead: str | None = None
    why_not_ready: str | None = None
    unstored_s: float | None = None  # how long the oldest row has waited for the database
    unstored_ratio: float | None = None  # how full the memory for such rows is
    notes: str | None = None  # jobs that take long to judge, or are not judged


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The newest attempt of a job."""

    job: str
    attempt: int
    logged_ranks: int
    announced: frozenset[int] = frozenset()  # ranks that log
    announced_s: float = 0.0  # newest announcement
    heard_s: Mapping[int, float] = field(default_factory=dict)  # newest heartbeat by rank
    ended: frozenset[int] = frozenset()
    lost_rows: Mapping[str, int] = field(default_factory=dict)  # by source
    clocks: frozenset[str] = frozenset()
    hosts: Mapping[int, str] = field(default_factory=dict)
    unsampled: frozenset[int] = frozenset()  # ranks without samples of their NIC
    without_marks: frozenset[int] = frozenset()
    evidence_s: float | None = None  # when its newest iteration closed
    contradicts: str | None = None  # field in which announcements of one rank differ
    beside: frozenset[str] = frozenset()  # hosts of another start under this name that still runs


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: when it was published, why, and from which topic or channel."""

    time_s: float
    reason: str
    topic: str
    channel: str | None = None


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Facts from the messages on the topics. Topics go by their names without prefix."""

    unread: Mapping[str, str] = field(default_factory=dict)  # why a topic could not be read
    progress: Mapping[int, Progress] = field(default_factory=dict)  # by partition
    waiting_s: Mapping[tuple[str, int], float] = field(default_factory=dict)  # time of the first unread message
    jobs: tuple[JobFacts, ...] = ()
    heard_since_s: float = 0.0  # oldest heartbeat that was read
    cut_evidence: frozenset[int] = frozenset()  # partitions of which only the newest evidence was read
    host_clocks_s: Mapping[str, float] = field(default_factory=dict)  # least offset by host; above 0: ahead
    letters: tuple[Letter, ...] = ()
    mutes: tuple[str, ...] = ()
    troubled: Mapping[str, str] = field(default_factory=dict)  # channels of notify that do not answer, and how


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """Everything read from Kafka at `now_s`."""

    now_s: float
    broker: BrokerFacts
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)  # by their names without prefix
    workers: GroupFacts | None = None
    notify: GroupFacts | None = None
    others: tuple[GroupFacts, ...] = ()  # further groups of the role in question
    stream: StreamFacts = field(default_factory=StreamFacts)
    page: WorkerPage | None = None
