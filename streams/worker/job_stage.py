"""The second hop: evidence goes through JobMonitors and leaves as verdicts, alerts and rows for the database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from aiokafka.partitioner import murmur2

from irregulars.errors import RecordError
from irregulars.streams.kafka.log_reader import LogReader, Span
from irregulars.streams.messages.evidence import Evidence, Membership, decode_evidence
from irregulars.streams.messages.judgements import Judgements, Verdict, decode_verdict, encode_verdict
from irregulars.streams.messages.records import Batch
from irregulars.streams.worker.partition_state import PartitionState, Tracked
from irregulars.streams.worker.snapshot_log import Ends, StoredPartition
from irregulars.streams.worker.stage import Event, Services, Snapshottable, Stage

LOG: Final = logging.getLogger("irregulars.worker")
EVIDENCE: Final = "evidence"
RESULTS: Final = ("verdicts", "alerts")
_MAX_QUEUED: Final = 256
"""Evidence messages that wait for a job's monitor before the stage stops reading."""

Rows = Sequence[Evidence | Membership]
Sent = set[tuple[str, str, int]]
"""Result topic, verdict id, revision."""


class JobMonitorLike(Snapshottable, Protocol):
    """`streams.job_hop.job_monitor.JobMonitor`, as this stage uses it."""

    def add(self, rows: Rows) -> None:
        """See JobMonitor."""

    def tick(self, now_s: float) -> None:
        """See JobMonitor."""

    def advance(self, read_back: Callable[[Sequence[Any]], Sequence[Batch]]) -> Judgements:
        """See JobMonitor."""


@dataclass(eq=False)
class _Work:
    """What waits for one job's monitor."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    inbox: deque[tuple[int, Rows]] = field(default_factory=deque)
    queued: int = -1  # newest offset that was put into the inbox
    is_due: bool = False
    task: asyncio.Task[None] | None = None


class JobStage(Stage[JobMonitorLike]):
    """Decode, queue for the job's monitor, judge in a thread, publish each revision once.

    Parameters
    ----------
    make, restore
        Make a new monitor of a job, and one from a state.
    alert_of
        Encoded alert of a verdict's revision; `None` where the policy keeps quiet.
    """

    hop = "job"
    snapshot_topic = "job_snapshots"

    def __init__(
        self,
        services: Services,
        make: Callable[[str], JobMonitorLike],
        restore: Callable[[Any], JobMonitorLike],
        alert_of: Callable[[Verdict], bytes | None],
    ) -> None:
        super().__init__(services)
        self._make: Final = make
        self._restore: Final = restore
        self._alert_of: Final = alert_of
        settings = services.settings
        self._spans: Final = LogReader(settings.bootstrap, settings.security, settings.broker_timeout_s)
        self._judges: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-judge")
        self._works: WeakKeyDictionary[Tracked[JobMonitorLike], _Work] = WeakKeyDictionary()
        self._sent: WeakKeyDictionary[PartitionState[JobMonitorLike], Sent] = WeakKeyDictionary()
        self._ends: WeakKeyDictionary[PartitionState[JobMonitorLike], Ends] = WeakKeyDictionary()

    def restore_monitor(self, state: Any) -> JobMonitorLike:
        """Build a monitor from its stored state."""
        return self._restore(state)

    async def prepare(self, state: PartitionState[JobMonitorLike], stored: StoredPartition) -> None:
        """Learn which revisions were sent after the states were stored: they must not be sent again."""
        loop = asyncio.get_running_loop()
        ends, sent = await loop.run_in_executor(self._restorer, self._read_results, state.partition, stored.ends)
        self._ends[state], self._sent[state] = ends, sent
        if sent:
            LOG.info("event=sent_before partition=%d revisions=%d", state.partition, len(sent))

    async def process(self, state: PartitionState[JobMonitorLike], topic: str, event: Event) -> None:
        """Queue one evidence message for its job's monitor, or bury it."""
        message = event.message
        tracked = state.tracked.get(message.key)
        if tracked is not None and message.offset <= max(tracked.seen.get(topic, -1), self._work(tracked).queued):
            state.take(topic, message.offset, event)
            return
        try:
            rows = _decode(message.key, message.value)
        except RecordError as error:
            await self.bury(state, topic, event, str(error))
            return
        if tracked is None:
            tracked = state.tracked[message.key] = Tracked(message.key, self._make(message.key.decode()))
        state.take(topic, message.offset, event)
        self._queue(state, tracked, message.offset, rows)
        await self._wait_for_room(state, tracked)

    async def settle(self, state: PartitionState[JobMonitorLike]) -> None:
        """Do nothing: a monitor's results are published before its lock is given back."""

    async def capture(self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike]) -> bytes:
        """Encode a monitor's state between two judgements, in the thread: a large job's takes long."""
        loop = asyncio.get_running_loop()
        async with self._work(tracked).lock:
            return await loop.run_in_executor(self._judges, self.encode, state, tracked)

    def ends(self, state: PartitionState[JobMonitorLike]) -> Ends | None:
        """Return where revisions that are in no stored state yet stand, or will stand, at the earliest."""
        ends = self._ends[state]
        for topic, by_partition in ends.items():
            if self._sent[state]:  # the monitors have yet to come to revisions that stand there already
                break
            name = self.services.settings.topics.name(topic)
            for partition, end in by_partition.items():
                by_partition[partition] = max(end, self.services.outbox.end_offset(name, partition) or 0)
        return {topic: dict(by_partition) for topic, by_partition in ends.items()}

    async def tick(self, now_s: float) -> None:
        """Let the wall clock speak to all monitors."""
        for state in list(self.states.values()):
            for tracked in list(state.tracked.values()):
                self._work(tracked).is_due = True
                self._start(state, tracked)

    def close(self) -> None:
        """Let go of threads and connections."""
        super().close()
        self._judges.shutdown(wait=True, cancel_futures=True)
        self._spans.close()

    # --- judging ----------------------------------------------------------------------------------------------------

    def _work(self, tracked: Tracked[JobMonitorLike]) -> _Work:
        return self._works.setdefault(tracked, _Work())

    def _queue(
        self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike], offset: int, rows: Rows
    ) -> None:
        work = self._work(tracked)
        work.inbox.append((offset, rows))
        work.queued = offset
        state.begin(EVIDENCE, offset)
        self._start(state, tracked)

    async def _wait_for_room(self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike]) -> None:
        # No event to wait for: the partition may be revoked as well.
        while len(self._work(tracked).inbox) >= _MAX_QUEUED and self.holds(state):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def _start(self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike]) -> None:
        work = self._work(tracked)
        if work.task is None or work.task.done():
            work.task = asyncio.ensure_future(self._judge_all(state, tracked, work))
            work.task.add_done_callback(self._report)

    def _report(self, task: asyncio.Task[None]) -> None:
        """Nobody awaits these tasks: whatever goes wrong in one must stop the worker."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.services.fail(error)

    async def _judge_all(
        self, state: PartitionState[JobMonitorLike], tracked: Tracked[JobMonitorLike], work: _Work
    ) -> None:
        loop = asyncio.get_running_loop()
        async with work.lock:
            while (work.inbox or work.is_due) and self.holds(state):
                queued, work.inbox, work.is_due = work.inbox, deque(), False
                rows = [rows for _, rows in queued]
                judgements = await loop.run_in_executor(self._judges, self._judge, tracked.monitor, rows)
                if not self.holds(state):
                    return
                await self._publish(state, judgements)
                if _has_rows(judgements):  # the wall clock alone may have made it speak
                    tracked.is_dirty = True
                for offset, _ in queued:
                    tracked.saw(EVIDENCE, offset)
                    state.finish(EVIDENCE, offset)

    def _judge(self, monitor: JobMonitorLike, messages: Sequence[Rows]) -> Judgements:
        for rows in messages:
            monitor.add(rows)
        monitor.tick(time.time())
        return monitor.advance(self._read_back)

    def _read_back(self, spans: Sequence[Span]) -> Sequence[Batch]:
        found = self._spans.read_commops(self.services.settings.topics.name("commops"), spans)
        if found.missing:
            LOG.warning("event=read_back_incomplete missing=%d read=%d", len(found.missing), len(found.batches))
        return found.batches

    # --- publishing -------------------------------------------------------------------------------------------------

    async def _publish(self, state: PartitionState[JobMonitorLike], judgements: Judgements) -> None:
        for verdict in judgements.verdicts:
            await self._send_once(state, "verdicts", verdict, encode_verdict(verdict))
            alert = self._alert_of(verdict)
            if alert is not None:
                await self._send_once(state, "alerts", verdict, alert)
        if _has_rows(judgements):
            await self.services.sink.write(judgements)

    async def _send_once(
        self, state: PartitionState[JobMonitorLike], topic: str, verdict: Verdict, value: bytes
    ) -> None:
        revision = (topic, verdict.verdict_id, verdict.revision)
        if revision in self._sent[state]:
            self._sent[state].discard(revision)
            return
        name = self.services.settings.topics.name(topic)
        await self.services.outbox.send(name, verdict.verdict_id.encode(), value)

    def _read_results(self, own: int, ends: Ends | None) -> tuple[Ends, Sent]:
        """Read what stands after `ends` of jobs of the partition `own`.

        Without `ends` nothing was ever judged in this partition, and nothing can stand there.
        """
        partitions = len(self.reader.partitions(self.services.settings.topics.name(EVIDENCE)))
        sent: Sent = set()
        found: Ends = {}
        for topic in RESULTS:
            name = self.services.settings.topics.name(topic)
            found[topic] = {}
            for partition in self.reader.partitions(name):
                begin = (ends or {}).get(topic, {}).get(partition)
                if begin is None:
                    begin = self.reader.end_offset(name, partition)
                found[topic][partition] = begin
                verdicts = self._verdicts(topic, name, partition, begin)
                sent |= {(topic, v.verdict_id, v.revision) for v in verdicts if _place(v.job, partitions) == own}
        return found, sent

    def _verdicts(self, topic: str, name: str, partition: int, begin: int) -> Iterator[Verdict]:
        for message in self.reader.read_tail(name, partition, begin):
            try:
                yield decode_verdict(message.value(), topic)
            except RecordError:  # not ours
                continue


def _place(job: str, partitions: int) -> int:
    """Return the partition of ``evidence`` where a job's rows are: what every producer's partitioner computes."""
    return int((murmur2(job.encode()) & 0x7FFFFFFF) % partitions)


def _decode(key: bytes | None, value: bytes | None) -> Rows:
    rows = decode_evidence(value)
    for row in rows:
        if key != row.job.encode():
            raise RecordError(f"key must be {row.job.encode()!r}, the job inside; got {key!r}")
    return rows


def _has_rows(judgements: Judgements) -> bool:
    return bool(
        judgements.announcements
        or judgements.iterations
        or judgements.verdicts
        or any(map(len, judgements.rank_iterations.values()))
        or any(map(len, judgements.operators.values()))
        or any(map(len, judgements.patterns.values()))
    )
