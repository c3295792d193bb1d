"""Who is really silent is given up, and a hang is told, by clocks that follow what was read."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from irregulars.infra.runs.analysis import analyze
from irregulars.infra.wiring import agent_settings, monitor_settings
from irregulars.kafka.topics import SENDING, rank_key
from irregulars.messages.records import encode_batch
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import simulate_trace
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.source import TraceSource
from tests.integration.pipelines import Pipeline
from tests.integration.worker_runs import Bus, Job, wait_until

pytestmark = pytest.mark.integration

GRACE_S, SILENCE_S = 3.0, 6.0
"""Of the settings of these names; everything else is as users have it."""

UNDECODABLE = 40
TOGETHER, ALONE = 10, 20
"""Iterations of all ranks, and those that the last rank does not deliver."""


def run_with_a_silent_rank(bus: Bus) -> Job:
    job = Job(bus, "silent", ranks=4)
    job.announce()
    job.run(TOGETHER)
    for iteration in range(TOGETHER, TOGETHER + ALONE):
        for rank in range(3):
            bus.send("commops", rank_key(job.name, rank), encode_batch(job.batch(rank, iteration)))
    bus.flush()
    return job


def require_given_up(pipeline: Pipeline) -> None:
    """All iterations but the newest, which no later one has closed yet, are judged, the last ones by three ranks."""
    wait_until(lambda: pipeline.stored_iterations() >= TOGETHER + ALONE - 1, "iterations without the silent rank")
    by_ranks = "SELECT countIf(ranks_reported = 4), countIf(ranks_reported = 3) FROM iterations FINAL"
    assert pipeline.client.query(by_ranks).result_rows[0][0] in (TOGETHER - 1, TOGETHER)


def test_a_rank_that_is_silent_is_given_up(pipeline: Pipeline) -> None:
    """And a transaction's marker at a partition's end holds up no clock."""
    pipeline.start_worker(grace_s=GRACE_S, silence_s=SILENCE_S)
    with_transactions(pipeline.bus, run_with_a_silent_rank)
    require_given_up(pipeline)


def with_transactions(bus: Bus, send: Callable[[Bus], object]) -> None:
    """Let all that is sent be one transaction: it puts a marker behind the last message of each partition."""
    config = {"bootstrap.servers": bus.bootstrap, **SENDING, "transactional.id": uuid4().hex}
    bus.producer = Producer(config)
    bus.producer.init_transactions(60)
    bus.producer.begin_transaction()
    send(bus)
    bus.producer.commit_transaction(60)


def test_messages_that_were_deleted_unread_hold_up_no_clock(pipeline: Pipeline) -> None:
    bus = pipeline.bus
    worker = pipeline.start_worker(grace_s=GRACE_S, silence_s=SILENCE_S, session_s=60.0)
    send_undecodable(bus)
    wait_until(lambda: len(bus.read("deadletter")) == UNDECODABLE, "a worker that reads")
    with worker.suspended():
        for _ in range(2):  # the first ones answer the fetch that is on its way
            send_undecodable(bus)
            time.sleep(1.0)
        bus.delete_all("bandwidth")
    run_with_a_silent_rank(bus)
    require_given_up(pipeline)
    assert "event=gap topic=bandwidth" in worker.output()


def send_undecodable(bus: Bus) -> None:
    """Send some to each partition of a topic."""
    for number in range(UNDECODABLE):
        bus.send("bandwidth", b"%d" % number, b"whatever")
    bus.flush()


class NeverOver(TraceSource):
    """A job that hangs: its processes and their agent are there, and nothing comes."""

    @property
    def is_exhausted(self) -> bool:
        return False


def test_a_hang_is_told(pipeline: Pipeline) -> None:
    trace = hanging(pipeline)
    (wanted,) = [one for one in analyze(trace, monitor_settings(pipeline.settings)).verdicts if one.kind == "hang"]
    pipeline.start_worker(grace_s=GRACE_S, silence_s=SILENCE_S)
    agent = Agent(NeverOver(trace, 0.0), agent_settings(pipeline.settings))
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(agent.run)
        try:
            wait_until(lambda: any(one.kind == "hang" for one in pipeline.revisions("alerts")), "the hang")
            time.sleep(2 * SILENCE_S)  # it is told once, however long it lasts
        finally:
            agent.stop()
        assert run.result(60).reason == "stopped"
    (told,) = [one for one in pipeline.revisions() if one.kind == "hang"]
    assert (told.verdict_id, told.suspects, told.state) == (wanted.verdict_id, wanted.suspects, "open")
    assert len([one for one in pipeline.revisions("alerts") if one.kind == "hang"]) == 1


def hanging(pipeline: Pipeline) -> Trace:
    directory = pipeline.folder / "hanging"
    hang = parse_fault("hang:rank=1,from=50")
    simulate_trace(directory, SimulatorSettings(job="hanging", dp=2, pp=2, tp=1, iterations=60, faults=(hang,)))
    return read_trace(directory)
