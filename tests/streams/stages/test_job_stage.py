"""What the second hop's stage keeps of its monitors, without a broker: messages wait in the producer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.outbox import Outbox
from irregulars.messages.judgements import Judgements
from irregulars.messages.threshold_changes import ThresholdChange
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.monitor_settings import MonitorSettings
from irregulars.streams.progress.word_log import ReadWords
from irregulars.streams.snapshots.published_verdicts import PublishedVerdicts, Told
from irregulars.streams.snapshots.records import PositionRecord
from irregulars.streams.stages.job_stage import JobStage
from irregulars.streams.stages.job_work import JobWork
from irregulars.streams.stages.partition_state import Offsets, PartitionState, Tracked
from irregulars.streams.stages.sink_writer import SinkWriter
from irregulars.streams.stages.stage import Services
from irregulars.streams.worker_settings import WorkerSettings
from tests.streams.evidence_rows import came, evidence_of
from tests.streams.stages.continuities import no_messages_between

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def services() -> Iterator[Services]:
    settings = WorkerSettings(NOWHERE)
    outbox = Outbox(NOWHERE, {})
    dead_letters = DeadLetters(outbox, settings.topics)
    sink = SinkWriter(None, dead_letters)
    yield Services(settings, outbox, dead_letters, sink, lambda _: None, pytest.fail, no_messages_between())
    sink.close()
    outbox.close()


class AllIsRead:
    """Clocks of a worker that never lags."""

    def now_s(self) -> float:
        return time.time()

    def job_until_s(self, partition: int, positions: Offsets) -> float:
        return time.time()


async def tick(services: Services, monitor: JobMonitor, held: list[Tracked[JobMonitor]] | None = None) -> bool:
    """Let the wall clock speak to a monitor whose snapshot is stored; return whether it is stored again."""
    stage = JobStage(services, lambda job: monitor, lambda state: monitor, lambda verdict: None, AllIsRead())
    state: PartitionState[JobMonitor] = PartitionState(0, 1, 1, {})
    tracked = state.tracked[b"j"] = Tracked(b"j", monitor)
    if held is not None:
        held.append(tracked)
    stage.states, stage._published[state] = {0: state}, PublishedVerdicts(Told())
    await stage.tick()
    await asyncio.gather(*(work.task for work in stage._works.values() if work.task is not None))
    is_changed = state.is_changed
    stage.close()
    return is_changed


def test_what_the_wall_clock_made_a_monitor_say_is_stored(services: Services) -> None:
    """Else it is said again after a restart, if another job of the partition moved its record on meanwhile."""
    monitor = JobMonitor("j", MonitorSettings(silence_s=600.0))
    monitor.add([came(0), came(1), evidence_of(0, {0: 10})])
    monitor.tick(time.time() - 700)
    assert asyncio.run(tick(services, monitor))
    assert monitor.state().pending == ()
    assert not asyncio.run(tick(services, monitor)), "nothing is new"


def test_a_snapshot_that_begins_while_a_verdict_is_sent_holds_what_said_it(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its ends would be behind the verdict, its state before it, and a restart would send it again."""
    monitor = JobMonitor("j", MonitorSettings(silence_s=600.0))
    monitor.add([came(0), came(1), evidence_of(0, {0: 10})])
    monitor.tick(time.time() - 700)
    found = []

    async def write(judgements: Judgements) -> None:
        found.extend(tracked.is_dirty for tracked in held)

    held: list[Tracked[JobMonitor]] = []
    monkeypatch.setattr(services.sink, "write", write)
    asyncio.run(tick(services, monitor, held))
    assert found == [True]


class FollowedLog:
    """The topic ``thresholds``, as far as it was read."""

    is_readable = True
    known: ReadWords[ThresholdChange] = ReadWords()


def test_changes_of_a_topic_that_was_made_anew_are_taken_back(services: Services) -> None:
    log, monitor = FollowedLog(), JobMonitor("j", MonitorSettings(delta=1.1))
    stage = JobStage(services, lambda job: monitor, lambda state: monitor, lambda verdict: None, AllIsRead(),
                     log)  # type: ignore[arg-type]  # fmt: skip
    state: PartitionState[JobMonitor] = PartitionState(0, 1, 1, {})
    tracked = Tracked(b"j", monitor)

    async def judge() -> float:
        await stage.people_say.plan(state, 0)
        stage.people_say.begin(state)
        await stage._judged(state, tracked, None)
        return monitor._current.delta

    async def both() -> tuple[float, float]:
        log.known = log.known.more(1, [(0, ThresholdChange("t", {"delta": 1.4}, "ann", "noise", 0))])
        await stage.people_say.restore(state, PositionRecord(), 0)
        changed = await judge()
        log.known = ReadWords()
        return changed, await judge()

    assert asyncio.run(both()) == (1.4, 1.1)
    stage.close()


def test_a_detector_that_does_not_take_words_is_told_of_once(
    services: Services, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "its teach raised RuntimeError: no"
    monkeypatch.setattr(JobMonitor, "untaught_detectors", {"moody": reason})
    monitor, work = JobMonitor("j", MonitorSettings()), JobWork()
    for _ in range(2):
        work.note_untaught(Tracked(b"j", monitor))
    (told,) = (line.getMessage() for line in caplog.records)
    assert told.startswith(f"event=detector_untaught detector=moody job='j' reason={reason!r}")
    asyncio.run(tick(services, monitor))
    assert len(caplog.records) == 2, "by the stage"
