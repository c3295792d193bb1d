"""Each thing that happens is counted once, and delays are never below zero."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

import pytest

from irregulars.kafka.topics import RANK_TOPICS, RESULTS, WORKER_TOPICS
from irregulars.messages.judgements import JudgedIteration, Verdict
from irregulars.streams.health.counters import INPUTS, Counters
from irregulars.streams.stages.job_topics import EVIDENCE
from irregulars.streams.stages.job_work import JobWork
from irregulars.streams.stages.partition_state import Tracked
from irregulars.streams.worker.running import make_app
from irregulars.streams.worker_settings import WorkerSettings
from tests.streams.evidence_rows import came, evidence_of


def judged(number: int, end_s: float, *, is_irregular: bool | None = False) -> JudgedIteration:
    start_ns = int((end_s - 2.0) * 1e9)
    return JudgedIteration("j", 0, number, start_ns, 2 * 10**9, math.nan, "train", is_irregular, 4)


def verdict(event: str, last: int) -> Verdict:
    return Verdict("v", 1, "open", "j", "slow_nic", (3, last + 1), 1.2, 1.0, None, (), "", event=event)


def values(counters: Counters, name: str) -> dict[tuple[str, ...], float]:
    """Series of a metric that are not 0, by their labels."""
    families = counters.registry.collect()
    samples = [one for family in families for one in family.samples if one.name == f"irregulars_worker_{name}"]
    return {tuple(one.labels.values()): one.value for one in samples if one.value}


def test_messages_and_rows_are_counted_by_topic() -> None:
    counters = Counters()
    counters.took("commops", 1500)
    counters.took("commops", 20)
    counters.took_evidence("evidence", [came(0), evidence_of(0, {0: 10, 1: 10})])
    assert values(counters, "batches_total") == {("commops",): 2, ("evidence",): 1}
    assert values(counters, "rows_total") == {("commops",): 1520, ("evidence",): 2}
    assert counters.operator_messages == 2


def test_late_rows_are_those_that_evidence_tells_of() -> None:
    counters = Counters()
    rows = evidence_of(0, {0: 10, 1: 10})
    rows.columns["late_rows"][:] = (0, 7)
    counters.took_evidence("evidence", [rows])
    assert values(counters, "late_rows_total") == {(): 7}


def test_a_judgement_is_as_late_as_its_iteration_has_ended() -> None:
    counters = Counters()
    counters.judged(
        [judged(1, 100.0), judged(2, 107.0, is_irregular=True), judged(3, 120.0, is_irregular=None)], 110.0
    )
    assert values(counters, "judged_iterations_total") == {(): 3}
    assert values(counters, "irregular_iterations_total") == {(): 1}
    assert values(counters, "judgement_delay_seconds_bucket")["5.0",] == 2  # those of 0 and 3 s
    assert values(counters, "judgement_delay_seconds_sum") == {(): 10.0 + 3.0}  # a host's clock may run ahead of ours


def test_a_verdict_is_as_late_as_the_iteration_that_opened_it_has_ended() -> None:
    counters = Counters()
    iterations = [judged(4, 100.0), judged(5, 104.0)]
    counters.told(verdict("opened", 5), iterations, 110.0)
    counters.told(verdict("continued", 5), iterations, 110.0)
    counters.told(verdict("opened", 9), iterations, 110.0)  # of a hang: its iteration has no end
    assert values(counters, "verdicts_total") == {("slow_nic", "opened"): 2, ("slow_nic", "continued"): 1}
    assert values(counters, "verdict_delay_seconds_sum") == {(): 6.0}


def test_a_sink_is_busy_until_it_answers() -> None:
    counters = Counters()
    counters.sink_busy_since_s = 5.0
    assert values(counters, "sink_busy") == {(): 1}
    counters.sink_busy_since_s = None
    assert values(counters, "sink_busy") == {}


@dataclass
class Monitor:
    is_ended: bool = False


def test_an_end_is_told_once_for_each_attempt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "irregulars.worker")
    monitor, work = Monitor(), JobWork()
    tracked = Tracked(b"llama", monitor)
    for is_ended in (False, True, True, False, True, True):
        monitor.is_ended = is_ended
        work.note_end(tracked)  # type: ignore[arg-type]  # all that it asks a monitor is whether it has ended
    assert caplog.messages == ["event=job_ended job='llama'"] * 2


def test_a_job_that_had_ended_before_a_restart_is_not_told_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "irregulars.worker")
    JobWork(was_ended=True).note_end(Tracked(b"llama", Monitor(is_ended=True)))  # type: ignore[arg-type]
    assert caplog.messages == []


def test_a_worker_reads_what_producers_send_and_evidence_and_nothing_that_it_says() -> None:
    app = make_app(WorkerSettings("127.0.0.1:1"))
    settings = app.settings
    read = {name for agent in app.agents.values() for name in agent.channel.topics}
    app.services.outbox.close(0.1)
    app.services.sink.close()
    assert read == {settings.topics.name(topic) for topic in (*RANK_TOPICS, EVIDENCE)}
    assert set(INPUTS) & set(RESULTS) == {EVIDENCE}
    assert set(INPUTS) | set(RESULTS) | {"rank_snapshots", "job_snapshots"} == set(WORKER_TOPICS)
