"""When a stage says that a job ended, and what a worker reads at all."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from irregulars.kafka.topics import WORKER_TOPICS
from irregulars.streams.health.counters import INPUTS
from irregulars.streams.health.observer import RESULTS
from irregulars.streams.stages.job_topics import EVIDENCE
from irregulars.streams.stages.job_work import JobWork
from irregulars.streams.stages.partition_state import Tracked
from irregulars.streams.stages.rank_stage import RANK_TOPICS
from irregulars.streams.worker.running import make_app
from irregulars.streams.worker_settings import WorkerSettings


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
    assert set(INPUTS) == {*RANK_TOPICS, EVIDENCE}
    assert set(INPUTS) & set(RESULTS) == {EVIDENCE}
    assert set(INPUTS) | set(RESULTS) | {"rank_snapshots", "job_snapshots"} == set(WORKER_TOPICS)
