"""A worker process whose JobMonitor says a verdict for each evidence row: what is lost or twice shows at once.

Run as ``python -m tests.integration.stand_in_worker JSON`` with settings of the worker as JSON. Among them may stand
``faults``, what is to go wrong: ``raises_at`` (iteration at which the monitor raises), ``is_fatal`` (alerts can't be
made), ``has_hanging_sink``, ``unread`` (a topic whose partition 0 Faust forgets to read, once, or ``for_good``),
``hangs_in_commits``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from irregulars.errors import IrregularsError
from irregulars.streams.kafka.topics import TopicSettings
from irregulars.streams.messages.evidence import Evidence, Membership
from irregulars.streams.messages.judgements import Judgements, Verdict, encode_verdict
from irregulars.streams.messages.records import Batch
from irregulars.streams.snapshots.records import EncodedState, decode_monitor
from irregulars.streams.worker_settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class AccusedState:
    job: str
    known: frozenset[tuple[int, int, int]]


class HangingSink:
    """A database that takes a request and never answers."""

    def open(self) -> None:
        pass

    def write(self, rows: Any) -> None:
        time.sleep(3600.0)

    def flush(self) -> None:
        time.sleep(3600.0)

    def close(self) -> None:
        pass


class EveryRowAccused:
    """One verdict per rank and iteration, once in the life of a job's state; and a sum that must not change."""

    raises_at = -1

    def __init__(self, job: str) -> None:
        self.job = job
        self.known: set[tuple[int, int, int]] = set()
        self.new: list[tuple[int, int, int, int]] = []
        self.is_ended = False

    def add(self, rows: Sequence[Evidence | Membership]) -> None:
        for row in rows:
            if isinstance(row, Evidence):
                names = ("attempt", "rank", "iteration", "operators")
                if self.raises_at in row.columns["iteration"].tolist():
                    raise OverflowError("Python int too large to convert to C long")
                for values in zip(*(row.columns[name].tolist() for name in names), strict=True):
                    if values[:3] not in self.known:
                        self.known.add(values[:3])
                        self.new.append(values)

    def tick(self, now_s: float, until_s: float) -> None:
        pass

    contradiction = None

    @property
    def untaught_detectors(self) -> dict[str, str]:
        return {}

    def forget_operators(self) -> None:
        pass

    def advance(self, read_back: Callable[[Sequence[Any]], Sequence[Batch]]) -> Judgements:
        new, self.new = self.new, []
        return Judgements(self.job, verdicts=[self._verdict(*values) for values in new])

    def _verdict(self, attempt: int, rank: int, iteration: int, operators: int) -> Verdict:
        return Verdict(
            verdict_id=f"{self.job}-{attempt}-{rank}-{iteration}", revision=1, state="open", job=self.job,
            kind="imbalance", iterations=(iteration, iteration + 1), delta=1.0, lost_s=0.0, communicator=None,
            suspects=(), evidence=f"{operators} operators",
        )  # fmt: skip

    def state(self) -> AccusedState:
        return AccusedState(self.job, frozenset(self.known))

    @classmethod
    def restore(cls, value: EncodedState) -> EveryRowAccused:
        state = decode_monitor(value, AccusedState)
        monitor = cls(state.job)
        monitor.known = set(state.known)
        return monitor


def alert_of(verdict: Verdict) -> bytes:
    return encode_verdict(verdict).replace(b'"schema":"verdicts"', b'"schema":"alerts"', 1)


def cannot_alert(verdict: Verdict) -> bytes:
    raise RuntimeError("alerts can't be made")


def forget_to_read(topic: str, *, is_for_good: bool) -> None:
    """Let Faust's consumer leave out partition 0 of a topic, as it does by itself in its issue 629."""
    from irregulars.streams.faust_client.consumer import SnapshotConsumer

    resume = SnapshotConsumer.resume_partitions
    left_out = 0

    def without(self: SnapshotConsumer, places: Any) -> None:
        nonlocal left_out
        left_out += 1
        is_left_out = is_for_good or left_out == 1
        resume(self, {place for place in places if not (is_left_out and place[0] == topic and place[1] == 0)})

    SnapshotConsumer.resume_partitions = without  # type: ignore[method-assign]  # Faust's fault, made to happen


def hang_in_commits() -> None:
    """Let no commit of Faust's consumer come to an end."""
    from irregulars.streams.faust_client.connection import PatientThread

    async def hang(self: PatientThread, offsets: Any) -> bool:
        return await asyncio.Event().wait()

    PatientThread._commit = hang  # type: ignore[method-assign]  # a broker's fault, made to happen


def main(text: str) -> int:
    from irregulars.streams.worker.monitors import Monitors, make_monitors
    from irregulars.streams.worker.running import run_worker

    values = json.loads(text)
    faults = values.pop("faults", {})
    EveryRowAccused.raises_at = faults.get("raises_at", -1)
    if "unread" in faults:
        forget_to_read(faults["unread"], is_for_good=faults.get("for_good", False))
    if faults.get("hangs_in_commits"):
        hang_in_commits()
    settings = WorkerSettings(**{**values, "topics": TopicSettings(**values["topics"])})
    real = make_monitors(settings)
    monitors: Monitors = replace(
        real,
        make_job=EveryRowAccused,
        restore_job=EveryRowAccused.restore,
        alert_of=cannot_alert if faults.get("is_fatal") else alert_of,
    )
    try:
        return run_worker(settings, HangingSink() if faults.get("has_hanging_sink") else None, monitors)
    except IrregularsError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
