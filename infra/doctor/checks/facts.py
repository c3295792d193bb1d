"""What was read, before anything follows from it. None everywhere: it could not be read, and is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file that a setting names and that nobody else should read; `mode` is None where it can't be looked at."""

    setting: str
    path: str
    mode: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What was read of this machine and its settings.

    Parameters
    ----------
    settings_file
        The file in force; None: there is none.
    refused
        Settings that nobody knows, one text each.
    secrets
        Files that hold secrets, the settings file where it holds one.
    has_worker
        Whether what a worker needs is installed.
    free_bytes
        On the disk of ``data_dir``.
    """

    release: str
    settings_file: str | None = None
    refused: tuple[str, ...] = ()
    secrets: tuple[SecretFile, ...] = ()
    has_worker: bool = True
    data_directory: str = ""
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """What ``/metrics``, ``/healthz`` and ``/readyz`` of a worker on this machine say.

    Parameters
    ----------
    unstored_s, unstored_ratio
        For how long a row has waited for the database, and how full the memory for such rows is; None: not told.
    notes
        Which jobs take long to judge, or are not judged.
    """

    url: str
    release: str
    group: str
    why_dead: str | None = None
    why_not_ready: str | None = None
    unstored_s: float | None = None
    unstored_ratio: float | None = None
    notes: str | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps us out of a broker or the database: a case of `checks.what_to_do`, and what was seen."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The brokers as a whole.

    Parameters
    ----------
    error
        Why none could be used.
    doubt
        What should have kept us out, and did not.
    brokers
        How many there are.
    release
        What its interface says of its release: ``4.1 or newer``.
    certificate_ends_s, own_certificate_ends_s
        Until when the broker's and our own certificate are valid, s since 1970; None: there is none, or it could not
        be read.
    broker_clock_s
        Broker's clock less ours, s, at least; None: no topic has its times from the broker.
    """

    bootstrap: str
    error: Obstacle | None = None
    doubt: str | None = None
    brokers: int = 0
    answered_in_s: float = 0.0
    release: str | None = None
    is_tls: bool = False
    has_login: bool = False
    certificate_ends_s: float | None = None
    own_certificate_ends_s: float | None = None
    broker_clock_s: float | None = None


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic.

    Parameters
    ----------
    error
        ``missing``, ``refused`` or another reason why it could not be looked at.
    config
        Its configuration; None: we may not read that.
    operations
        What we may do with it; None: the broker does not say.
    begins, ends, since
        By partition: its first offset; that of the next message; the first one that is not older than
        `checks.topics.RECENT_S`.
    newest_s
        Time of its newest message, s since 1970; None: there is none, or nobody says.
    """

    name: str
    error: str | None = None
    partitions: int = 0
    replicas: int = 0
    leaderless: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    config: Mapping[str, str] | None = None
    operations: frozenset[str] | None = None
    begins: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    since: Mapping[int, int] = field(default_factory=dict)
    newest_s: float | None = None

    @property
    def messages(self) -> int:
        """How many offsets it holds: of a topic that is not compacted, its messages."""
        return sum(self.ends.values()) - sum(self.begins.get(number, 0) for number in self.ends)

    @property
    def recent(self) -> int:
        """How many offsets of them are recent."""
        return sum(end - self.since.get(number, end) for number, end in self.ends.items())


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group; `error` says why it could not be looked at.

    Parameters
    ----------
    members
        Client and host of each. The demo's broker names none of a group that is at work: then `is_stable` counts.
    is_settling, is_stable
        Whether it shares out its partitions now, or has done so.
    committed
        Offset of the next message by topic (full name) and partition.
    """

    name: str
    error: str | None = None
    members: tuple[str, ...] = ()
    is_settling: bool = False
    is_stable: bool = False
    operations: frozenset[str] | None = None
    committed: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the first hop has read one partition, as a worker said on the topic ``progress``."""

    time_s: float
    positions: Mapping[str, int]
    release: str | None = None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The newest attempt of a job.

    Parameters
    ----------
    announced
        Ranks that have announced themselves and log.
    logged_ranks
        How many ranks log.
    announced_s
        When the newest of them did, s since 1970.
    heard_s
        By rank: its newest heartbeat.
    ended
        Ranks that said that they have ended.
    lost_rows
        By source, of all ranks.
    evidence_s
        When its newest iteration closed; None: none within what was read.
    unsampled
        Ranks that send no samples of their NIC.
    contradicts
        In which respect announcements of one rank differ; None: they do not.
    beside
        Hosts of another start of this name that is heard since this one was announced.
    """

    job: str
    attempt: int
    logged_ranks: int
    announced: frozenset[int] = frozenset()
    announced_s: float = 0.0
    heard_s: Mapping[int, float] = field(default_factory=dict)
    ended: frozenset[int] = frozenset()
    lost_rows: Mapping[str, int] = field(default_factory=dict)
    clocks: frozenset[str] = frozenset()
    hosts: Mapping[int, str] = field(default_factory=dict)
    unsampled: frozenset[int] = frozenset()
    without_marks: frozenset[int] = frozenset()
    evidence_s: float | None = None
    contradicts: str | None = None
    beside: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter: when it was buried, why, and from where."""

    time_s: float
    reason: str
    topic: str
    channel: str | None = None


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What was read from the topics.

    Parameters
    ----------
    unread
        Why a topic could not be read, by its name without prefix.
    progress
        By partition.
    waiting_s
        By topic (without prefix) and partition: the time of the first message that was not read yet.
    jobs
        Those that were heard or announced since `heard_since_s`.
    heard_since_s
        Time of the oldest heartbeat that was read.
    is_evidence_whole
        Whether all evidence since then was looked at.
    host_clocks_s
        By host: how far its clock is off, s, at least; above 0: ahead.
    letters
        The newest dead letters.
    mutes
        Those that hold now, as texts.
    troubled
        Channels of `notify` whose newest try is unanswered or was given up, with a text each.
    """

    unread: Mapping[str, str] = field(default_factory=dict)
    progress: Mapping[int, Progress] = field(default_factory=dict)
    waiting_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    jobs: tuple[JobFacts, ...] = ()
    heard_since_s: float = 0.0
    is_evidence_whole: bool = True
    host_clocks_s: Mapping[str, float] = field(default_factory=dict)
    letters: tuple[Letter, ...] = ()
    mutes: tuple[str, ...] = ()
    troubled: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """All that was read from Kafka at `now_s`.

    Parameters
    ----------
    topics
        By their names without prefix.
    workers, notify
        Their consumer groups.
    others
        Further groups that the role in question needs.
    """

    now_s: float
    broker: BrokerFacts
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    workers: GroupFacts | None = None
    notify: GroupFacts | None = None
    others: tuple[GroupFacts, ...] = ()
    stream: StreamFacts = field(default_factory=StreamFacts)
    page: WorkerPage | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk of the database."""

    name: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """All that was read from ClickHouse.

    Parameters
    ----------
    error
        Why it could not be used.
    reader_error
        Why the user who only reads can't be used; None: they can, or there is none apart.
    round_trip_s, clock_s
        Of a question for the time; database's clock less ours, at best known to half the round trip.
    missing_tables, missing_migrations, edited_migrations
        Of this release.
    rights
        Whether the user may, by operation; None: the server does not say.
    keeps_days
        By table: days that it keeps its rows, of those for which the settings say otherwise: what it does, what is
        set.
    parts
        Most parts of one partition, and its table.
    replicas
        By table of a replicated engine: seconds behind; None: it is read-only.
    stored_s
        When the newest row of iterations was stored, s since 1970.
    unread
        Why something could not be read, by what it is.
    """

    address: str
    user: str
    error: Obstacle | None = None
    reader: str | None = None
    reader_error: str | None = None
    version: str | None = None
    round_trip_s: float = 0.0
    clock_s: float | None = None
    missing_tables: tuple[str, ...] = ()
    missing_migrations: tuple[str, ...] = ()
    edited_migrations: tuple[str, ...] = ()
    rights: Mapping[str, bool] | None = None
    keeps_days: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    disks: Sequence[Disk] | None = None
    parts: tuple[str, int] | None = None
    replicas: Mapping[str, float | None] = field(default_factory=dict)
    stored_s: float | None = None
    unread: Mapping[str, str] = field(default_factory=dict)
