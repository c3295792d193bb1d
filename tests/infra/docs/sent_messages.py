"""The messages of a small job as they would stand on Kafka's topics: the pages show some of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from irregulars.kafka.topics import rank_key
from irregulars.messages.announcements import Heartbeat, SourceProgress, encode_announcement, encode_heartbeat
from irregulars.messages.evidence import decode_evidence, encode_evidence
from irregulars.messages.judgements import encode_verdict
from irregulars.messages.records import SCHEMAS, encode_batch
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import simulate_trace
from irregulars.producers.trace.directory import Trace, read_trace, trace_batches
from irregulars.producers.trace.iterations import number_iterations
from irregulars.settings import JudgeSettings
from irregulars.sinks.alerts import alert_of
from irregulars.streams.local_pipeline import LocalPipeline


class Message(NamedTuple):
    """One message of a topic."""

    key: bytes
    value: bytes


SHOWN: Final = SimulatorSettings(
    job="walk", dp=2, pp=2, tp=1, gpus_per_host=2, micro_batches=2, iterations=40,
    faults=(parse_fault("slow_rank:rank=1,from=25,factor=1.6"),),
)  # fmt: skip
"""Four ranks, of which one turns slow."""


def simulated(settings: SimulatorSettings) -> Trace:
    """Simulate a job and read its trace."""
    with TemporaryDirectory() as directory:
        simulate_trace(directory, settings)
        return number_iterations(read_trace(Path(directory))).trace


def sent_messages(trace: Trace) -> dict[str, list[Message]]:
    """Return the messages of each topic; evidence is sent, and judged, whenever a message completes some."""
    topics: dict[str, list[Message]] = {}
    pipeline = LocalPipeline(trace.job, JudgeSettings(fills_columns=False))
    job = trace.job.encode()

    def send(topic: str, key: bytes, values: Iterable[bytes]) -> None:
        topics.setdefault(topic, []).extend(Message(key, value) for value in values)

    def advance() -> None:
        values = list(encode_evidence(pipeline.reduce(), trace.job))
        send("evidence", job, values)
        for verdict in pipeline.judge([row for value in values for row in decode_evidence(value)]).verdicts:
            key, alert = verdict.verdict_id.encode(), alert_of(verdict)
            send("verdicts", key, [encode_verdict(verdict)])
            send("alerts", key, [] if alert is None else [alert])

    for announcement in trace.announcements:
        pipeline.take(announcement)
        send("jobs", rank_key(trace.job, announcement.rank), [encode_announcement(announcement)])
        advance()
    for batch in trace_batches(trace):
        pipeline.take(batch)
        send(batch.header.schema, rank_key(trace.job, batch.header.rank), [encode_batch(batch)])
        advance()
    for rank in pipeline.ranks:
        sources = {schema: trace.batches(schema)[rank] for schema in SCHEMAS if rank in trace.batches(schema)}
        progress = {name: SourceProgress(len(one), one.header.watermark_ns) for name, one in sources.items()}
        heartbeat = Heartbeat(trace.job, trace.attempt, rank, progress, "ended", "finished")
        pipeline.take(heartbeat)
        send("heartbeats", rank_key(trace.job, rank), [encode_heartbeat(heartbeat)])
        advance()
    return topics
