"""Bytes that move after the first hop: evidence, and operators that are read back, against the full log.

    python -m tests.benchmarks.bench_bytes

A simulated job of 2,048 ranks with about 1,000 operators per rank and iteration, a fifth of whose iterations is
irregular, goes through both hops in messages as the agent would publish them. The log is kept in memory, and what is
read back is counted by message. Prints one JSON object. Bytes are those of message values as they are published; both
shares are also given for values compressed with zstd, as they travel. With ``--nic-samples-ms`` the NICs are sampled
too, and evidence holds their behaviour patterns. Not a test: nothing here fails.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from irregulars.detectors.judging.reading.spans import Span
from irregulars.messages.announcements import Heartbeat
from irregulars.messages.evidence import Membership, decode_evidence, encode_evidence
from irregulars.messages.records import Batch, encode_batch
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order
from irregulars.producers.simulator.job.faults import parse_fault
from irregulars.producers.simulator.job.presets import with_preset
from irregulars.producers.simulator.job.settings import RECORDED_START_NS, SimulatorSettings
from irregulars.producers.simulator.logs.simulation import Simulation
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.monitor_settings import MonitorSettings
from irregulars.streams.rank_hop.evidence_reduction import Closing, reduce_closings
from irregulars.streams.rank_hop.rank_monitor import RankMonitor

_CHUNK_ROWS = 5_000_000  # made at once
_KEPT_ROWS = 100_000_000  # of the log: older messages are never asked for
_ROUND = 64  # monitors that are drained together, as a worker does
_SAMPLED = 199  # one message in so many is encoded, to know how many bytes a row takes


@dataclass
class Bytes:
    """Bytes of values, plain and compressed."""

    plain: int = 0
    packed: int = 0

    def add(self, value: bytes, times: float = 1.0) -> None:
        """Count a value."""
        self.plain += round(len(value) * times)
        self.packed += round(len(pa.compress(value, codec="zstd", asbytes=True)) * times)


@dataclass
class Log:
    """Messages of ``commops``, and what was read of them."""

    batches: list[Batch | None] = field(default_factory=list)
    oldest: int = 0
    kept_rows: int = 0
    rows: int = 0
    rows_read: int = 0
    messages_read: int = 0
    sampled_rows: int = 0
    sampled: Bytes = field(default_factory=Bytes)

    def append(self, batch: Batch) -> int:
        """Keep a message; return its offset."""
        self.batches.append(batch)
        self.rows += len(batch)
        self.kept_rows += len(batch)
        while self.kept_rows > _KEPT_ROWS:
            self.kept_rows -= len(self.batches[self.oldest] or ())
            self.batches[self.oldest] = None
            self.oldest += 1
        if len(self.batches) % _SAMPLED == 1:
            self.sampled.add(encode_batch(batch))
            self.sampled_rows += len(batch)
        return len(self.batches) - 1

    def read_back(self, spans: Sequence[Span]) -> list[Batch]:
        """Return and count the messages of some spans."""
        asked = [self.batches[offset] for span in spans for offset in span.offsets]
        found = [batch for batch in asked if batch is not None]
        if len(found) < len(asked):
            raise RuntimeError(f"messages must be among the {_KEPT_ROWS} newest rows; got older ones asked for")
        self.rows_read += sum(map(len, found))
        self.messages_read += len(found)
        return found


def messages(job: Simulation) -> Iterator[list[Batch]]:
    """Yield what all ranks publish, some iterations at a time."""
    for part in job.parts(max_span_s=math.inf, max_rows=_CHUNK_ROWS):
        samples_first = sorted(part.batches, key=lambda batch: batch.header.schema != "bandwidth")
        yield [batch for whole in samples_first for batch in cut_in_order(whole, BATCH_ROWS, BATCH_SPAN_S)]


def measure(settings: SimulatorSettings) -> dict[str, Any]:
    """Run the job through both hops."""
    simulation, own = Simulation(settings, RECORDED_START_NS), MonitorSettings()
    log, evidence, job = Log(), Bytes(), JobMonitor(settings.job, own)
    monitors: dict[int, RankMonitor] = {}
    verdicts: dict[str, Any] = {}
    for announcement in simulation.announcements():
        monitors[announcement.rank] = RankMonitor(announcement.job, announcement.rank, own)
        monitors[announcement.rank].announce(announcement)

    def deliver() -> None:
        everybody = list(monitors.values())
        for first in range(0, len(everybody), _ROUND):
            closed: list[Closing | Membership] = []
            for monitor in everybody[first : first + _ROUND]:
                closed += monitor.take_closed()
            for value in encode_evidence(reduce_closings(job.job, closed), job.job):
                if value[:1] != b"{":  # a job announces itself once
                    evidence.add(value)
                job.add(decode_evidence(value))
        judged = job.advance(log.read_back)
        verdicts.update({one.verdict_id: one for one in judged.verdicts})
        iterations.extend(judged.iterations)

    iterations: list[Any] = []
    for found in messages(simulation):
        for batch in found:
            offset = log.append(batch) if batch.header.schema == "commops" else -1
            monitors[batch.header.rank].add(batch, offset)
        deliver()
        print(f"{len(iterations)} iterations judged", file=sys.stderr, flush=True)
    for monitor in monitors.values():
        monitor.beat(Heartbeat(job.job, settings.attempt, monitor.rank, {}, "ended", "finished"))
    deliver()
    return _report(settings, log, evidence, iterations, list(verdicts.values()), job)


def _report(
    settings: SimulatorSettings,
    log: Log,
    evidence: Bytes,
    iterations: Sequence[Any],
    verdicts: Sequence[Any],
    job: JobMonitor,
) -> dict[str, Any]:
    ranks, count = settings.world_size, len(iterations)
    scale = log.rows / log.sampled_rows
    full = {"plain": log.sampled.plain * scale, "zstd": log.sampled.packed * scale}
    moved = {"plain": evidence.plain, "zstd": evidence.packed}
    read_share = log.rows_read / log.rows
    return {
        "ranks": ranks,
        "iterations": count,
        "operators_per_rank_and_iteration": round(log.rows / ranks / count, 1),
        "irregular_share": round(sum(bool(one.is_irregular) for one in iterations) / len(iterations), 3),
        "log_bytes_per_operator": {name: round(value / log.rows, 2) for name, value in full.items()},
        "evidence_bytes_per_rank_and_iteration": {n: round(v / ranks / count, 1) for n, v in moved.items()},
        "evidence_share": {name: round(moved[name] / full[name], 5) for name in full},
        "read_back_share": round(read_share, 5),
        "messages_read": log.messages_read,
        "moved_share": {name: round(moved[name] / full[name] + read_share, 5) for name in full},
        "read_share_in_operators": round(job.traffic.read_share, 5),
        "verdicts": [[v.kind, list(v.iterations), [list(s.ranks) for s in v.suspects[:1]]] for v in verdicts],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dp", type=int, default=32)
    parser.add_argument("--pp", type=int, default=8)
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--tp-operators", type=int, default=29)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first irregular iteration; default: two fifths")
    parser.add_argument("--strength", default="factor=2")
    parser.add_argument("--fault", default="slow_rank:rank=77", help="without times and strength")
    parser.add_argument("--nic-samples-ms", type=float, default=0.0, help="between samples of the NICs; 0: none")
    given = parser.parse_args(arguments)
    settings = SimulatorSettings(
        dp=given.dp, pp=given.pp, tp=given.tp, micro_batches=given.micro_batches, tp_operators=given.tp_operators,
        iterations=given.iterations,
    )  # fmt: skip
    first = given.first or given.iterations * 2 // 5
    times = f"from={first},to={first + given.iterations // 5},{given.strength}"
    settings = replace(
        with_preset(settings, "suite"),
        faults=(parse_fault(f"{given.fault},{times}"),),
        bandwidth_period_ms=given.nic_samples_ms,
    )
    print(json.dumps(measure(settings), indent=1))


if __name__ == "__main__":
    main()
