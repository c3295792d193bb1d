"""What the second hop's stage keeps of its monitors, without a broker: messages wait in the producer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from irregulars.kafka.outbox import Outbox
from irregulars.messages.announcements import code_of_start
from irregulars.messages.evidence import Membership, encode_evidence
from irregulars.messages.judgements import Judgements, Verdict, decode_verdict
from irregulars.messages.threshold_changes import ThresholdChange
from irregulars.settings import JudgeSettings
from irregulars.state_codec import decode_state, encode_state
from irregulars.streams.health.watchdog import WorkGivenUp
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.rank_hop.group_monitor import GroupMonitor
from irregulars.streams.snapshots.published_verdicts import PublishedVerdicts, Told
from irregulars.streams.stages.job_stage import JobStage
from irregulars.streams.stages.job_work import JobWork
from irregulars.streams.stages.partition_state import PartitionState, Tracked
from irregulars.streams.stages.rank_stage import RankStage
from irregulars.streams.stages.stage import Services
from irregulars.streams.stages.word_log import ReadWords
from tests.streams.evidence_rows import came, evidence_of, went
from tests.streams.stages.test_stage import NOWHERE, Clocks, record, services_of


@pytest.fixture
def services() -> Iterator[Services]:
    services = services_of(Outbox(NOWHERE, {}))
    yield services
    services.reading.close()
    services.sink.close()
    services.outbox.close()


async def tick(services: Services, monitor: JobMonitor, held: list[Tracked[JobMonitor]] | None = None) -> bool:
    """Let the wall clock speak to a monitor whose snapshot is stored; return whether it is stored again."""
    stage = JobStage(services, lambda job: monitor, lambda state: monitor, lambda verdict: None, Clocks())
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
    monitor = JobMonitor("j", JudgeSettings(silence_s=600.0))
    monitor.add([came(0), came(1), evidence_of(0, {0: 10})])
    monitor.tick(time.time() - 700)
    assert asyncio.run(tick(services, monitor))
    assert monitor.state().pending == ()
    assert not asyncio.run(tick(services, monitor)), "nothing is new"


def test_a_snapshot_while_a_verdict_is_sent_holds_it(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its ends would be behind the verdict, its state before it, and a restart would send it again."""
    monitor = JobMonitor("j", JudgeSettings(silence_s=600.0))
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

    known: ReadWords[ThresholdChange] = ReadWords()


def test_monitors_of_both_hops_go_by_the_changes_that_were_read(services: Services) -> None:
    log, monitor = FollowedLog(), JobMonitor("j", JudgeSettings(delta=1.1))
    stage = JobStage(services, lambda job: monitor, lambda state: monitor, lambda verdict: None, Clocks(), log)  # type: ignore[arg-type]
    state: PartitionState[JobMonitor] = PartitionState(0, 1, 1, {})
    tracked = Tracked(b"j", monitor)
    ranks = RankStage(services, lambda *_: pytest.fail("not asked for"), lambda _: pytest.fail("not asked for"), log)  # type: ignore[arg-type]
    first_hop = GroupMonitor("j", JudgeSettings(silence_s=600.0))

    async def silences() -> tuple[float, float]:
        await stage._judged(state, tracked, None)
        ranks._follow_silence(first_hop)
        return monitor._current.silence_s, first_hop.settings.silence_s

    assert asyncio.run(silences()) == (600.0, 600.0)
    others = ThresholdChange("t", {"silence_s": 9.0}, "ann", "noise", 0, job="other")
    log.known = ReadWords(2, (others, ThresholdChange("t", {"silence_s": 70.0}, "ann", "noise", 0)))
    assert asyncio.run(silences()) == (70.0, 70.0)
    log.known = ReadWords(3, (*log.known.words, ThresholdChange("t", {"silence_s": None}, "ann", "noise", 0)))
    assert asyncio.run(silences()) == (600.0, 600.0)
    stage.close()


def test_a_start_that_is_not_judged_is_logged_once(services: Services, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong clock on most of its hosts lets a start begin before the one that it followed."""
    monitor = JobMonitor("j", JudgeSettings())
    for start, begin_ns in (("a", 1_000), ("b", 900)):
        rows = evidence_of(0, {0: 10})
        columns = {"attempt": np.array([code_of_start(1, start)]), "start_ns": np.array([begin_ns])}
        member = replace(came(0), start=start, attempt=1)
        monitor.add([member, replace(rows, columns={**rows.columns, **columns})])
    work, tracked = JobWork(), Tracked(b"j", monitor)
    for _ in range(2):
        work.note_overtaken(tracked)
    (line,) = [one for one in caplog.messages if one.startswith("event=starts_not_judged")]
    assert "job='j' starts=1" in line


def test_iterations_that_are_given_up_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    work, tracked = JobWork(), Tracked(b"j", JobMonitor("j", JudgeSettings()))
    counted = []
    for given_up in (0, 3, 3, 5):
        tracked.monitor.given_up = given_up
        counted.append(work.note_given_up(tracked))
    tracked.monitor = JobMonitor("j", JudgeSettings())  # it began anew
    assert [*counted, work.note_given_up(tracked)] == [0, 3, 0, 2, 0]
    assert len([one for one in caplog.messages if one.startswith("event=iterations_given_up job='j'")]) == 1


def test_a_job_that_is_run_again_once_its_state_is_gone_goes_on_in_its_numbers(services: Services) -> None:
    """Else its verdicts would have the ids of those of its run before, which closed long ago."""
    made: list[JobMonitor] = []

    def make(job: str) -> JobMonitor:
        made.append(JobMonitor(job, JudgeSettings()))
        return made[-1]

    stage = JobStage(services, make, lambda _: pytest.fail("nothing is stored"), lambda verdict: None, Clocks())
    state: PartitionState[JobMonitor] = PartitionState(0, 1, 1, {})
    stage.states, stage._published[state], stage._evidence_ends[state] = {0: state}, PublishedVerdicts(Told()), 0

    async def run(start: str, offset: int) -> None:
        own = [replace(came(0, 1, start=start), start=start), Membership("j", 1, 0, reason="finished", start=start)]
        for at, value in enumerate(encode_evidence(own, "j")):
            await stage.process(state, "evidence", record("evidence", offset + at, b"j", value))
        await asyncio.gather(*(work.task for work in stage._works.values() if work.task is not None))

    async def run_each(*starts: str) -> None:
        for number, start in enumerate(starts):
            await run(start, 10 * number)
            del state.tracked[b"j"]  # long after its end
            told = decode_state(encode_state(stage._published[state].told(), 1), Told, 1)
            stage._published[state] = PublishedVerdicts(told)  # a worker started anew in between

    asyncio.run(run_each("a", "b", "b", "c"))
    assert [monitor.is_ended for monitor in made] == [True] * 4
    assert [monitor.state().attempt for monitor in made] == [1, 2, 2, 3]
    stage.close()


def test_verdicts_not_found_again_are_closed_at_the_end(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began anew in the middle of an incident: nothing else would ever have ended that."""
    monitor, sent = JobMonitor("j", JudgeSettings()), list[tuple[str, bytes]]()
    monitor.add([came(0, 1), went(0)])
    stage = JobStage(services, lambda job: monitor, lambda _: monitor, lambda verdict: b"alert", Clocks())
    state: PartitionState[JobMonitor] = PartitionState(0, 1, 1, {})
    state.tracked[b"j"] = Tracked(b"j", monitor)
    lost = Verdict("j:1:5:0", 3, "open", "j", "imbalance", (5, 9), 1.2, 1.0, None, (), "", event="continued")
    stage.states, stage._published[state] = {0: state}, PublishedVerdicts(Told())
    stage._published[state].note("verdicts", lost)
    stage._evidence_ends[state] = 2
    told = [("verdicts", replace(lost, revision=2)), ("verdicts", lost), ("alerts", lost)]
    monkeypatch.setattr(stage._topics, "told_of", lambda *_: told)

    async def send(topic: str, key: bytes, value: bytes) -> None:
        sent.append((topic, value))

    async def ticks() -> list[int]:
        found = []
        for offset in (0, 1, 1):  # its end may be followed by another start, as long as evidence is read again
            state.take("evidence", offset)
            await stage.tick()
            await asyncio.gather(*(work.task for work in stage._works.values() if work.task is not None))
            found.append(len(sent))
        return found

    monkeypatch.setattr(services.outbox, "send", send)
    assert asyncio.run(ticks()) == [0, 2, 2]
    assert monitor.is_ended
    assert sent[1] == ("irregulars.alerts", b"alert")
    ended = replace(lost, revision=4, state="closed", event="closed", close_reason="finished")
    assert (sent[0][0], decode_verdict(sent[0][1])) == ("irregulars.verdicts", ended)
    stage.close()


def test_a_job_that_learns_no_ranks_keeps_its_numbers(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = JudgeSettings()
    monitor = JobMonitor("j", settings)
    monitor.add([replace(came(0, 1, start=start), start=start) for start in ("a", "b")])
    stage = JobStage(services, lambda job: JobMonitor(job, settings), lambda _: monitor, lambda _: None, Clocks())
    state: PartitionState[JobMonitor] = PartitionState(0, 1, 1, {})
    tracked = state.tracked[b"j"] = Tracked(b"j", monitor)
    stage.states, stage._published[state] = {0: state}, PublishedVerdicts(Told())

    async def done(*_: object) -> None:
        return

    def raises(*_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(stage._topics, "announced", lambda *_: [])
    monkeypatch.setattr(stage._topics, "told_of", lambda *_: [])
    monkeypatch.setattr(services.outbox, "barrier", done)
    monkeypatch.setattr(stage, "store_begun_over", done)
    monkeypatch.setattr(JobMonitor, "add", raises)
    asyncio.run(stage._begin_over(state, tracked, WorkGivenUp("it took too long"), None))
    assert tracked.monitor is not monitor
    assert tracked.monitor.newest_start == (code_of_start(1, "b"), 2)
    stage.close()
