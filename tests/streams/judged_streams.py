"""Drives both monitors as the worker would, and says what came out; and does to a trace what must change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from irregulars.detectors.judging.result_log import concatenate_columns
from irregulars.messages.announcements import Announcement, Communicator, Heartbeat, SourceProgress
from irregulars.messages.evidence import Evidence, Membership, decode_evidence, encode_evidence
from irregulars.messages.judgements import JudgedIteration, Judgements, Verdict
from irregulars.messages.records import RECV, SEND, UNKNOWN, Batch, decode_batch, encode_batch
from irregulars.producers.trace.directory import Trace, trace_batches
from irregulars.settings import JudgeSettings
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.local_pipeline import LocalPipeline
from irregulars.streams.rank_hop.rank_monitor import RankMonitor
from tests.stored_states import stored

RECORDINGS = Path(__file__).parent.parent / "recordings"

Message = Announcement | Batch | Heartbeat


@dataclass
class Outcome:
    """All that the job's monitor said, in the order in which it said it."""

    parts: list[Judgements] = field(default_factory=list)
    rank_monitors: Mapping[int, RankMonitor] = field(default_factory=dict)

    @property
    def revisions(self) -> list[Verdict]:
        return [verdict for part in self.parts for verdict in part.verdicts]

    @property
    def iterations(self) -> list[JudgedIteration]:
        return [one for part in self.parts for one in part.iterations]

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Newest revision of each."""
        return {verdict.verdict_id: verdict for verdict in self.revisions}

    @property
    def announced(self) -> set[tuple[int, int]]:
        return {(one.attempt, one.rank) for part in self.parts for one in part.announcements}

    def columns(self, name: str) -> dict[str, list[Any]]:
        """``rank_iterations``, ``operators`` or ``patterns``; NaN as None, so that columns compare."""
        joined = concatenate_columns([getattr(part, name) for part in self.parts if getattr(part, name)])
        return {
            key: [None if value != value else value for value in column.tolist()] for key, column in joined.items()
        }


class MonitoredJob(LocalPipeline):
    """Judges after each message, and keeps all that was decided.

    `is_on_wire`: whether batches and evidence are encoded and decoded on their way.
    `restore_at`: steps after which every monitor is replaced by what its snapshot restores.
    """

    def __init__(
        self, job: str, settings: JudgeSettings | None = None, *, is_on_wire: bool = False,
        restore_at: Iterable[int] = (), repeat_evidence: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(job, settings)
        self.outcome = Outcome(rank_monitors=self.ranks)
        self.is_on_wire = is_on_wire
        self.restore_at = frozenset(restore_at)
        self.repeat_evidence = repeat_evidence
        self._steps = 0

    def feed(self, messages: Iterable[Message]) -> Outcome:
        refused_rows = self.refused_rows
        for message in messages:
            self.take(message)
        assert self.refused_rows == refused_rows
        return self.outcome

    def take(self, message: Message) -> None:
        if self.is_on_wire and isinstance(message, Batch):
            message = decode_batch(encode_batch(message), message.header.schema)
        super().take(message)
        self.deliver(self.reduce([message.header.rank if isinstance(message, Batch) else message.rank]))
        self._steps += 1
        if self._steps in self.restore_at:
            self.restore()

    def deliver(self, rows: Sequence[Evidence | Membership]) -> None:
        if self.is_on_wire:
            rows = [row for value in encode_evidence(rows, self.job) for row in decode_evidence(value)]
        if self.repeat_evidence:
            self.monitor.add(rows)
        self.advance(rows)

    def advance(self, rows: Sequence[Evidence | Membership] = ()) -> None:
        self.outcome.parts.append(self.judge(rows))

    def tick(self, now_s: float) -> None:
        for rank, monitor in self.ranks.items():
            monitor.tick(now_s)
            self.deliver(self.reduce([rank]))
        self.monitor.tick(now_s)
        self.advance()

    def restore(self) -> None:
        for rank, monitor in self.ranks.items():
            self.ranks[rank] = RankMonitor.from_state(stored(monitor.state()), self.settings)
        self.monitor = JobMonitor.from_state(stored(self.monitor.state()), self.settings)


def around_the_fault(trace: Trace) -> Trace:
    """Iterations 30 to 99 of a recording: its fault is in 60 to 79, and later ones are judged like those before."""
    first, past = 30, 100
    spans_ns = {rank: _start_ns(batch, first, past) for rank, batch in trace.iterations.items()}
    return replace(
        trace,
        commops={rank: _part(batch, "iteration", first, past) for rank, batch in trace.commops.items()},
        iterations={rank: _part(batch, "iteration", first, past) for rank, batch in trace.iterations.items()},
        bandwidth={rank: _part(batch, "time_ns", *spans_ns[rank]) for rank, batch in trace.bandwidth.items()},
    )


def _part(batch: Batch, column: str, first: int, past: int) -> Batch:
    is_inside = (batch.columns[column] >= first) & (batch.columns[column] < past)
    return replace(batch, columns={name: values[is_inside] for name, values in batch.columns.items()})


def _start_ns(iterations: Batch, *numbers: int) -> list[int]:
    columns = iterations.columns
    return [int(columns["start_ns"][columns["iteration"] == number][0]) for number in numbers]


def in_order(trace: Trace, max_rows: int = 1500, max_span_s: float = 1.0) -> list[Message]:
    """Announcements, batches in order of time, and last words."""
    return [*trace.announcements, *trace_batches(trace, max_rows, max_span_s), *last_words(trace)]


def last_words(trace: Trace, reason: str = "finished") -> list[Heartbeat]:
    return [
        Heartbeat(trace.job, trace.attempt, a.rank, progress(trace, a.rank), "ended", reason)
        for a in trace.announcements
    ]


def progress(trace: Trace, rank: int) -> dict[str, SourceProgress]:
    schemas = [schema for schema in ("commops", "iterations", "bandwidth") if rank in trace.batches(schema)]
    batches = {schema: trace.batches(schema)[rank] for schema in schemas}
    return {schema: SourceProgress(len(batch), batch.header.watermark_ns) for schema, batch in batches.items()}


def judge(messages: Iterable[Message], job: str, **options: Any) -> Outcome:
    return MonitoredJob(job, **options).feed(messages)


def judge_trace(trace: Trace, settings: JudgeSettings | None = None, **options: Any) -> Outcome:
    return MonitoredJob(trace.job, settings, **options).feed(in_order(trace))


# --- what must change nothing ---------------------------------------------------------------------------------------


def interleaved(messages: Sequence[Message], random: Random, *, keeps_jobs_first: bool = False) -> list[Message]:
    """Any order in which what one rank sent to one topic keeps its order."""
    queues: dict[tuple[str, int], list[Message]] = {}
    for message in messages:
        queues.setdefault(_queue(message), []).append(message)
    first = [queues.pop(key) for key in list(queues) if keeps_jobs_first and key[0] == "jobs"]
    turns = [key for key, queue in queues.items() for _ in queue]
    random.shuffle(turns)
    rest = {key: iter(queue) for key, queue in queues.items()}
    return [message for queue in first for message in queue] + [next(rest[key]) for key in turns]


def _queue(message: Message) -> tuple[str, int]:
    if isinstance(message, Batch):
        return message.header.schema, message.header.rank
    return ("jobs" if isinstance(message, Announcement) else "heartbeats"), message.rank


def with_rows_mixed(batch: Batch, random: np.random.Generator, copies: int = 0) -> Batch:
    """The rows of one batch in any order, some of them twice."""
    rows = np.concatenate([np.arange(len(batch)), random.integers(0, len(batch), copies if len(batch) else 0)])
    random.shuffle(rows)
    return replace(batch, columns={name: column[rows] for name, column in batch.columns.items()})


def shifted(trace: Trace, shift_ns: int) -> Trace:
    """All clocks by so much ahead."""

    def shift(batch: Batch) -> Batch:
        columns = dict(batch.columns)
        for name in {"start_ns", "time_ns"} & columns.keys():
            columns[name] = np.where(columns[name] == UNKNOWN, UNKNOWN, columns[name] + shift_ns)
        watermark_ns = batch.header.watermark_ns
        later = None if watermark_ns is None else watermark_ns + shift_ns
        return Batch(replace(batch.header, watermark_ns=later), columns)

    return _mapped(trace, shift)


def renamed(trace: Trace, names: Mapping[int, int]) -> Trace:
    """The same job whose ranks have other numbers."""

    def rename(batch: Batch) -> Batch:
        columns = dict(batch.columns)
        if "peer" in columns:
            is_p2p = np.isin(columns["operator"], (SEND, RECV))
            peers = [names.get(peer, peer) for peer in columns["peer"].tolist()]
            columns["peer"] = np.where(is_p2p, np.array(peers, dtype=np.int64), columns["peer"])
        return Batch(replace(batch.header, rank=names[batch.header.rank]), columns)

    def announce(announcement: Announcement) -> Announcement:
        groups = tuple(
            Communicator(c.id, c.kind, tuple(names[rank] for rank in c.ranks)) for c in announcement.communicators
        )
        return replace(announcement, rank=names[announcement.rank], communicators=groups)

    announcements = sorted(map(announce, trace.announcements), key=lambda a: a.rank)
    return replace(_mapped(trace, rename), announcements=tuple(announcements))


def with_renamed_ranks(verdict: Verdict, names: Mapping[int, int]) -> Verdict:
    """The verdict that is due when ranks have other numbers, without its text and reasons, which hold numbers too."""
    suspects = []
    for suspect in verdict.suspects:
        ranks = tuple(names[rank] for rank in suspect.ranks)
        ranks = ranks if suspect.device == "link" else tuple(sorted(ranks))
        peer = None if suspect.peer is None else names[suspect.peer]
        suspects.append(replace(suspect, rank=ranks[0], ranks=ranks, peer=peer))
    return replace(verdict, suspects=tuple(suspects), evidence="", explanation=None)


def _mapped(trace: Trace, change: Any) -> Trace:
    changed = {}
    for schema in ("commops", "bandwidth", "iterations"):
        batches = [change(batch) for batch in trace.batches(schema).values()]
        changed[schema] = {batch.header.rank: batch for batch in sorted(batches, key=lambda b: b.header.rank)}
    return replace(trace, **changed)


def found(outcome: Outcome) -> tuple[Any, ...]:
    """All that a stream said and that no way of delivery may change."""
    rows = [outcome.columns(name) for name in ("rank_iterations", "operators", "patterns")]
    return outcome.revisions, outcome.iterations, *rows
