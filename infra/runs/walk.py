"""A recorded job on its way through the real parts, in memory: everything that `irregulars walk` shows.

Kafka's place is taken by `MemoryBus`, which keeps messages as bytes. All else is what a worker runs: batches are
encoded, decoded and reduced by a RankMonitor for each rank, and one JobMonitor judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.irregular.window import IterationWindow
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.reading.spans import Span
from irregulars.errors import RecordError
from irregulars.kafka.topics import rank_key
from irregulars.messages.announcements import (
    Announcement,
    Heartbeat,
    SourceProgress,
    decode_announcement,
    decode_heartbeat,
    encode_announcement,
    encode_heartbeat,
)
from irregulars.messages.evidence import Evidence, Membership, decode_evidence, encode_evidence
from irregulars.messages.judgements import JudgedIteration, Judgements, Verdict, encode_verdict
from irregulars.messages.records import SCHEMAS, Batch, decode_batch, encode_batch
from irregulars.producers.simulator.job.faults import parse_fault
from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.logs.source import simulate_trace
from irregulars.producers.trace.directory import Trace, read_trace, trace_batches
from irregulars.producers.trace.iterations import number_iterations
from irregulars.sinks.alerts import alert_of
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.monitor_settings import MonitorSettings
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.rank_hop.rank_monitor import RankMonitor

_ALONE: Final = 8
"""Ranks up to which evidence travels one by one; that of a larger job travels together, as a worker sends it."""

_FAULT: Final = "slow_rank:rank=1,from=25,factor=1.6"


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it would stand on Kafka; ``offset`` counts the messages of its topic from 0."""

    topic: str
    key: bytes
    offset: int
    value: bytes


class MemoryBus:
    """Topics of one partition each.

    >>> bus = MemoryBus()
    >>> bus.send("commops", b"demo/0", b"...").offset, bus.send("commops", b"demo/1", b"...").offset
    (0, 1)
    """

    def __init__(self) -> None:
        self.topics: Final[dict[str, list[Message]]] = {}

    def send(self, topic: str, key: bytes, value: bytes) -> Message:
        """Append a message to its topic."""
        messages = self.topics.setdefault(topic, [])
        messages.append(Message(topic, key, len(messages), value))
        return messages[-1]


@dataclass(frozen=True, slots=True)
class Look:
    """What the judge knew of one iteration when it judged it.

    Parameters
    ----------
    mean_ns, limit_ns
        Of the window before the iteration: its mean, and the time above which the iteration is irregular; NaN while
        there are too few iterations.
    read
        The spans of operators that were read back since the iteration before was judged.
    """

    observation: Observation
    mean_ns: float
    limit_ns: float
    topology: Topology
    read: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class WalkedJob:
    """All that happened to one job.

    Parameters
    ----------
    bus
        Every message of every topic.
    batches
        Each batch of operators with the message that carried it.
    closings
        What each rank's monitor closed, with the message after which it did.
    evidence
        Each evidence message with the piece that it carried.
    looks
        For each judged iteration what the judge knew of it.
    judgements
        What the job's monitor gave, in order.
    """

    trace: Trace
    bus: MemoryBus
    batches: list[tuple[Batch, Message]] = field(default_factory=list)
    closings: list[tuple[Closing, Message]] = field(default_factory=list)
    evidence: list[tuple[Evidence, Message]] = field(default_factory=list)
    looks: dict[int, Look] = field(default_factory=dict)
    judgements: list[Judgements] = field(default_factory=list)

    @property
    def iterations(self) -> dict[int, JudgedIteration]:
        """Judged iterations by number."""
        return {one.iteration: one for part in self.judgements for one in part.iterations}

    @property
    def revisions(self) -> list[Verdict]:
        """All revisions of all verdicts, in the order in which they were published."""
        return [verdict for part in self.judgements for verdict in part.verdicts]


def simulated_job() -> Trace:
    """Simulate a job of four ranks, of which one turns slow; the same in each run."""
    settings = SimulatorSettings(
        job="walk", dp=2, pp=2, tp=1, gpus_per_host=2, micro_batches=2, iterations=40, faults=(parse_fault(_FAULT),)
    )
    with TemporaryDirectory(prefix="irregulars-walk-") as directory:
        simulate_trace(directory, settings)
        return read_numbered(Path(directory))


def read_numbered(directory: Path) -> Trace:
    """Read a trace directory; iterations that nothing marks are inferred."""
    return number_iterations(read_trace(directory)).trace


def walk(
    trace: Trace, settings: MonitorSettings | None = None, on_part: Callable[[int, int], None] = lambda *_: None
) -> WalkedJob:
    """Send a recorded job through both hops, message by message, and keep all that happens.

    Parameters
    ----------
    trace
        A recorded job whose iterations are known (`producers.trace.iterations.number_iterations`).
    settings
        As the worker's.
    on_part
        Told how many batches are through, and of how many.
    """
    return _Run(trace, settings or MonitorSettings(), on_part).run()


class _Run:
    """Both hops of one job, and the bus between them."""

    def __init__(self, trace: Trace, settings: MonitorSettings, on_part: Callable[[int, int], None]) -> None:
        # Detectors and single operators would only add to what our own judgement says.
        settings = replace(settings, watch=self._watch, operator_detectors=(), rank_detectors=(), fills_columns=False)
        self._job = WalkedJob(trace, MemoryBus())
        self._ranks = {a.rank: RankMonitor(trace.job, a.rank, settings) for a in trace.announcements}
        self._judge = JobMonitor(trace.job, settings)
        self._read: list[Span] = []  # since the last iteration was judged
        self._closed: list[Closing | Membership] = []  # not sent on yet
        self._together = len(self._ranks) if len(self._ranks) > _ALONE else 1
        self._on_part = on_part

    def run(self) -> WalkedJob:
        trace = self._job.trace
        for announcement in trace.announcements:
            self._announce(announcement)
        batches = list(trace_batches(trace))
        for number, batch in enumerate(batches, 1):
            self._publish(batch)
            self._on_part(number, len(batches))
        for announcement in trace.announcements:
            self._end(announcement.rank)
        self._forward()
        return self._job

    # --- the first hop ----------------------------------------------------------------------------------------------

    def _announce(self, announcement: Announcement) -> None:
        message = self._send("jobs", announcement.rank, encode_announcement(announcement))
        self._ranks[announcement.rank].announce(decode_announcement(message.value))
        self._drain(announcement.rank, message)

    def _publish(self, batch: Batch) -> None:
        schema, rank = batch.header.schema, batch.header.rank
        message = self._send(schema, rank, encode_batch(batch))
        if schema == "commops":
            self._job.batches.append((batch, message))
        with suppress(RecordError):  # as the worker puts aside what can't be true
            self._ranks[rank].add(decode_batch(message.value, schema), message.offset if schema == "commops" else -1)
        self._drain(rank, message)

    def _end(self, rank: int) -> None:
        trace = self._job.trace
        sources = {schema: trace.batches(schema)[rank] for schema in SCHEMAS if rank in trace.batches(schema)}
        progress = {name: SourceProgress(len(batch), batch.header.watermark_ns) for name, batch in sources.items()}
        heartbeat = Heartbeat(trace.job, trace.attempt, rank, progress, "ended", "finished")
        message = self._send("heartbeats", rank, encode_heartbeat(heartbeat))
        self._ranks[rank].beat(decode_heartbeat(message.value))
        self._drain(rank, message)

    def _send(self, topic: str, rank: int, value: bytes) -> Message:
        return self._job.bus.send(topic, rank_key(self._job.trace.job, rank), value)

    def _drain(self, rank: int, cause: Message) -> None:
        """Reduce what a message let a rank's monitor close, and send it on as evidence."""
        closed = self._ranks[rank].take_closed()
        self._job.closings.extend((one, cause) for one in closed if isinstance(one, Closing))
        self._closed += closed
        if len(self._closed) >= self._together:
            self._forward()

    # --- the second hop ---------------------------------------------------------------------------------------------

    def _forward(self) -> None:
        job = self._job.trace.job
        rows, self._closed = reduce_closings(job, self._closed), []
        for value in encode_evidence(rows, job):
            message = self._job.bus.send("evidence", job.encode(), value)
            decoded = decode_evidence(message.value)
            self._job.evidence.extend((one, message) for one in decoded if isinstance(one, Evidence))
            self._judge.add(decoded)
        if rows:
            judgements = self._judge.advance(self._read_back)
            self._job.judgements.append(judgements)
            self._tell(judgements.verdicts)

    def _read_back(self, spans: Sequence[Span]) -> list[Batch]:
        self._read += spans
        log = self._job.bus.topics["commops"]
        return [decode_batch(log[offset].value, "commops") for span in spans for offset in span.offsets]

    def _watch(self, observation: Observation, window: IterationWindow, topology: Topology) -> None:
        read, self._read = tuple(self._read), []
        self._job.looks[observation.iteration] = Look(observation, window.mean_ns, window.limit_ns, topology, read)

    def _tell(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            key = verdict.verdict_id.encode()
            self._job.bus.send("verdicts", key, encode_verdict(verdict))
            alert = alert_of(verdict)
            if alert is not None:
                self._job.bus.send("alerts", key, alert)
