"""Settings of one worker process, read once and passed down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from irregulars.kafka.topics import TopicSettings
from irregulars.settings import JudgeSettings


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """All settings that a worker gets at its start."""

    bootstrap: str  # Kafka's ``host:port``, or several with commas
    topics: TopicSettings = field(default_factory=TopicSettings)  # prefix and partitions
    # librdkafka's settings of protocol and credentials: ``security.protocol``, ``sasl.mechanism``, ``sasl.username``,
    # ``sasl.password``, ``ssl.ca.location``. Never logged.
    security: Mapping[str, Any] = field(default_factory=dict, repr=False)
    group: str = "irregulars"  # consumer group; workers of one group share the partitions
    snapshot_s: float = 5.0  # seconds between snapshots of the monitors; a restarted worker reads again from the last
    # Seconds without a heartbeat after which the broker gives a worker's partitions to others. Short, since nothing
    # of these partitions is judged meanwhile; a worker that was only slow, and loses them, costs one rebalance and no
    # verdict. Brokers allow no less than 6 unless their ``group.min.session.timeout.ms`` says so.
    session_s: float = 6.0
    data_directory: str = "irregulars-data"  # where Faust keeps its files; small
    # web_host, web_port: Where Faust's own pages listen; port 0: nowhere
    web_host: str = "127.0.0.1"
    web_port: int = 0
    # ``host:port`` of the pages ``/metrics``, ``/healthz`` and ``/readyz``; port 0: any free one; ``off``: nowhere
    metrics_listen: str = "off"
    judge: JudgeSettings = field(default_factory=JudgeSettings)  # of the monitors
    alert_least_severity: str = "ticket"  # verdicts that are less urgent are stored and give no alert
    evidence_linger_s: float = 0.1  # how long rows of ranks of one partition wait for one another, to travel together
    # parked_bytes, parked_s: How much, and how long, a partition keeps messages of ranks that were not announced
    parked_bytes: int = 64 << 20
    parked_s: float = 60.0
    # How many MiB of the operators that came last are kept, so that looking into an irregular iteration need not ask
    # the broker for them
    recent_mib: int = 64
    unstored_mib: int = 256  # how many MiB of rows may wait for the database until judging waits too
    broker_timeout_s: float = 30.0  # how long the broker has to answer a question, and to send messages read again
    broker_away_s: float = 300.0  # how long the broker may be away, at the start and later; then the worker ends
    stop_s: float = 5.0  # how long stopping may take; then the process ends with status 1
    # How long a rank may be silent, without even a heartbeat, before its monitor is forgotten
    forget_s: float = 86_400.0
    # Idle time after which a partition that has messages, and of which none comes, is sought anew; after twice as
    # long the worker ends (`streams.health.reading_watch`)
    stall_s: float = 20.0
    log_level: str = "info"  # of our own lines: ``debug info warn error crit``. Those of Faust begin at a warning.
