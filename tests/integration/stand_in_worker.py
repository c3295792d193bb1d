"""A worker process whose JobMonitor says a verdict for each evidence row: what is lost or twice shows at once.

Run as ``python -m tests.integration.stand_in_worker JSON`` with settings of the worker as JSON. Among them may stand
``faults``, what is to go wrong: ``raises_at`` (iteration at which the monitor raises), ``is_fatal`` (alerts can't be
made), ``has_hanging_sink``, ``unread`` (a topic whose partition 0 Faust forgets to read, once, or ``for_good``),
``stops_flow`` (Faust asks for nothing more after some messages), ``loses`` (a topic of which one message is fetched
and not handed over), ``hangs_in_commits``; and ``limits`` (of the work of monitors), ``max_queued`` (messages of a
job). Jobs whose names begin with a word of `POISONS` poison the second hop with iterations 3, 13, …, and with
``rank-`` before it the first.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from irregulars.errors import IrregularsError
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.bundles import Bundle
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.judgements import Judgements, Verdict, encode_verdict
from irregulars.messages.records import Batch
from irregulars.streams.health.watchdog import Limits
from irregulars.streams.job_hop.job_starts import StartsState
from irregulars.streams.rank_hop.group_monitor import GroupMonitor, GroupMonitorState
from irregulars.streams.rank_hop.rank_monitor import Refused
from irregulars.streams.snapshots.records import EncodedState, decode_monitor
from irregulars.streams.worker_settings import WorkerSettings

POISON_AT = 3  # iteration, and each tenth after it


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


def loop() -> None:
    while True:
        pass


def allocate() -> None:
    kept = []
    while True:
        kept.append(b"1" * (1 << 20))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


POISONS: dict[str, Callable[[], None]] = {
    "loops": loop, "blocks": lambda: time.sleep(1e6), "allocates": allocate, "dies": die,
}  # fmt: skip


def swallow(job: str, iterations: Sequence[int]) -> None:
    """Do not come back from some iterations of a job that is poison."""
    if any(one % 10 == POISON_AT for one in iterations) and (poison := POISONS.get(job.partition("-")[0])):
        poison()


class PoisonedRanks(GroupMonitor):
    """Monitors of ranks that do not come back from a poison."""

    def add(self, rows: Batch | Bundle, offset: int) -> list[Refused]:
        for batch in [rows] if isinstance(rows, Batch) else rows.batches():
            if self.job.startswith("rank-"):
                swallow(self.job.removeprefix("rank-"), batch.columns["iteration"].tolist())
        return super().add(rows, offset)


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
                swallow(self.job, row.columns["iteration"].tolist())
                if self.raises_at in row.columns["iteration"].tolist():
                    raise OverflowError("Python int too large to convert to C long")
                for values in zip(*(row.columns[name].tolist() for name in names), strict=True):
                    if values[:3] not in self.known:
                        self.known.add(values[:3])
                        self.new.append(values)

    def follow(self, changes: Sequence[Any]) -> None:
        pass

    def tick(self, now_s: float, until_s: float) -> None:
        pass

    starts = StartsState((), ())

    def go_on_after(self, starts: StartsState) -> None:
        pass

    contradiction = None
    overtaken = 0
    given_up = 0

    @property
    def size(self) -> int:
        return 0

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
    from irregulars.streams.faust_driver.transport import Consumer

    resume = Consumer.resume_partitions
    left_out = 0

    def without(self: Consumer, places: Any) -> None:
        nonlocal left_out
        left_out += 1
        is_left_out = is_for_good or left_out == 1
        resume(self, {place for place in places if not (is_left_out and place[0] == topic and place[1] == 0)})

    Consumer.resume_partitions = without  # type: ignore[method-assign]  # Faust's fault, made to happen


def stop_flow() -> None:
    """Let Faust's consumer stop its flow after the third block, and never resume it by itself."""
    from irregulars.streams.faust_driver.transport import Consumer

    to_message = Consumer._to_message
    blocks = 0

    def stopping(self: Consumer, place: Any, record: Any) -> Any:
        nonlocal blocks
        blocks += 1
        if blocks == 3:
            self.stop_flow()
        return to_message(self, place, record)

    Consumer._to_message = stopping  # type: ignore[method-assign]  # Faust's fault, made to happen


def lose(topic: str) -> None:
    """Let the fetch lose a message of a topic once, in the middle."""
    from irregulars.streams.faust_driver.block_fetcher import BlockFetcher

    take, is_lost = BlockFetcher.take, False

    def losing(self: BlockFetcher, places: Any) -> Any:
        nonlocal is_lost
        found = take(self, places)
        for place, records in found.items():
            if place[0] == topic and len(records) > 3 and not is_lost:
                is_lost = True
                del records[1]
        return found

    BlockFetcher.take = losing  # type: ignore[method-assign]  # a message that is passed over, made to happen


def hang_in_commits() -> None:
    """Let no commit of the group's member come to an end."""
    from irregulars.streams.faust_driver import group_member

    def hang(consumer: Any, offsets: Any) -> None:
        threading.Event().wait()

    group_member._store = hang  # a broker's fault, made to happen


def main(text: str) -> int:
    from irregulars.streams.worker.monitors import Monitors, make_monitors
    from irregulars.streams.worker.running import run_worker

    values = json.loads(text)
    faults = values.pop("faults", {})
    EveryRowAccused.raises_at = faults.get("raises_at", -1)
    if "unread" in faults:
        forget_to_read(faults["unread"], is_for_good=faults.get("for_good", False))
    if "max_queued" in faults:
        from irregulars.streams.stages import job_stage

        job_stage._MAX_QUEUED = faults["max_queued"]  # type: ignore[misc]  # 256 messages of a job take long to make
    if faults.get("stops_flow"):
        stop_flow()
    if "loses" in faults:
        lose(faults["loses"])
    if faults.get("hangs_in_commits"):
        hang_in_commits()
    settings = WorkerSettings(**{**values, "topics": TopicSettings(**values["topics"])})
    real, own = make_monitors(settings), settings.judge
    monitors: Monitors = replace(
        real,
        make_job=EveryRowAccused,
        restore_job=EveryRowAccused.restore,
        make_rank=lambda job, partition: PoisonedRanks(job, own, partition=partition),
        restore_rank=lambda value: PoisonedRanks.from_state(decode_monitor(value, GroupMonitorState), own),
        limits=Limits(**faults.get("limits", {})),
        alert_of=cannot_alert if faults.get("is_fatal") else alert_of,
    )
    try:
        return run_worker(settings, HangingSink() if faults.get("has_hanging_sink") else None, monitors)
    except IrregularsError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
