"""What the second hop's stage keeps of its monitors, without a broker: messages wait in the producer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from streams.dead_letter import DeadLetters
from streams.job_monitor import JobMonitor
from streams.job_stage import JobStage
from streams.monitor_settings import MonitorSettings
from streams.outbox import Outbox
from streams.partition_state import PartitionState, Tracked
from streams.sink_writer import SinkWriter
from streams.stage import Services
from streams.worker_settings import WorkerSettings
from tests.streams.evidence_rows import came, evidence_of

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def services() -> Iterator[Services]:
    settings = WorkerSettings(NOWHERE)
    outbox = Outbox(NOWHERE, {})
    dead_letters = DeadLetters(outbox, settings.topics)
    sink = SinkWriter(None, dead_letters)
    yield Services(settings, outbox, dead_letters, sink, acknowledge=lambda _: None, fail=pytest.fail)
    sink.close()
    outbox.close()


async def tick(services: Services, monitor: JobMonitor) -> bool:
    """Let the wall clock speak to a monitor whose snapshot is stored; return whether it is stored again."""
    stage = JobStage(services, lambda job: monitor, lambda state: monitor, lambda verdict: None)
    state: PartitionState[JobMonitor] = PartitionState(0, 1, 1, {})
    state.tracked[b"j"] = Tracked(b"j", monitor)
    stage.states, stage._sent[state] = {0: state}, set()
    await stage.tick(time.time())
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
    assert monitor.state()["pending"] == []
    assert not asyncio.run(tick(services, monitor)), "nothing is new"
