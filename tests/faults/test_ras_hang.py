"""A job without any hook: NCCL's RAS service alone tells that it hangs, and who keeps it waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from irregulars.messages.judgements import Verdict
from tests.integration.pipelines import Pipeline, Process, agent_file
from tests.integration.worker_runs import wait_until
from tests.producers.importers.played_server import PlayedJob, PlayedServer

pytestmark = pytest.mark.integration

GRACE_S, SILENCE_S = 2.0, 5.0
"""Of the settings of these names; everything else is as users have it."""

EVERY_S, STANDING_S, HANG_S = 0.2, 1.0, 2.0
"""Of the source's options."""

SOURCE = f"""
[[sources]]
kind = "nccl-ras"
name = "{{name}}"
job = "{{name}}"
world_size = 4
host = "127.0.0.1"
port = {{port}}
every_s = {EVERY_S}
standing_s = {STANDING_S}
hang_s = {{hang_s}}
"""


@contextmanager
def serving(*names: str) -> Iterator[dict[str, PlayedServer]]:
    """Play a job of each name."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(PlayedServer(PlayedJob())) for name in names}


def start_agent(pipeline: Pipeline, servers: Mapping[str, PlayedServer]) -> Process:
    sources = "".join(
        SOURCE.format(name=name, port=server.port, hang_s=300 if name == "finished" else HANG_S)
        for name, server in servers.items()
    )
    return pipeline.start("agent", str(agent_file(pipeline.folder, sources)))


def hangs(pipeline: Pipeline) -> list[Verdict]:
    return [one for one in pipeline.revisions("alerts") if one.kind == "hang"]


def train(job: PlayedJob, server: PlayedServer, looks: int = 6) -> None:
    """Let a job go on until it was seen a few times more."""
    seen = server.asked
    while server.asked < seen + looks:
        job.step()
        time.sleep(EVERY_S / 4)


def job_of(server: PlayedServer) -> PlayedJob:
    assert server.job is not None
    return server.job


def test_a_hang_is_told_once_and_a_pause_is_not(pipeline: Pipeline) -> None:
    with serving("bare") as servers:
        server, job = servers["bare"], job_of(servers["bare"])
        pipeline.start_worker(grace_s=GRACE_S, silence_s=SILENCE_S)
        agent = start_agent(pipeline, servers)
        wait_until(lambda: server.asked > 3, "an agent that asks")
        train(job, server)
        job.launch(job.world, but=[1])  # rank 1 writes a checkpoint, for which the others wait
        wait_until(lambda: "event=ras_stands_still" in agent.output(), "a standstill")
        time.sleep(SILENCE_S / 2)
        job.launch(job.world, but=[0, 2, 3])
        train(job, server, 8)
        assert "event=ras_moves_again" in agent.output()
        wait_until(lambda: pipeline.stored_iterations() > 10, "iterations")
        assert pipeline.revisions() == []
        job.launch(job.world, "AllGather", but=[2])
        wait_until(lambda: bool(hangs(pipeline)), "the hang")
        time.sleep(2 * SILENCE_S)  # it is told once, however long it lasts
        (told,) = hangs(pipeline)
        assert [(one.device, one.ranks, one.host) for one in told.suspects] == [("gpu", (2,), "10.0.0.2")]
        assert told.communicator == job.world
        assert told.evidence.startswith("3 ranks wait")
        assert "all_gather" in told.evidence
        assert {one.kind for one in pipeline.revisions()} == {"hang"}


def test_only_jobs_that_hang_are_told_of(pipeline: Pipeline) -> None:
    with serving("slow", "finished", "idle", "dead", "killed") as servers:
        jobs = {name: job_of(server) for name, server in servers.items()}
        pipeline.start_worker(grace_s=GRACE_S, silence_s=SILENCE_S)
        agent = start_agent(pipeline, servers)
        for name, job in jobs.items():
            train(job, servers[name], 3)
        jobs["dead"].gone = {3: False}
        jobs["dead"].launch(jobs["dead"].world, but=[3])
        jobs["killed"].launch(jobs["killed"].world, "ReduceScatter", but=[1])
        jobs["finished"].launch(jobs["finished"].world, but=[0])  # rank 0 writes the last checkpoint
        wait_until(lambda: agent.output().count("event=ras_stands_still") == 3, "three jobs that stand still")
        jobs["finished"].launch(jobs["finished"].world, but=[1, 2, 3])
        servers["finished"].job = None  # all processes have ended before anybody looked again
        slow, until_s = jobs["slow"], time.monotonic() + HANG_S
        while time.monotonic() < until_s:
            slow.launch(slow.world, but=[2])  # rank 2 comes half a second late, each time
            time.sleep(0.5)
            slow.launch(slow.world, but=[0, 1, 3])
            time.sleep(0.2)
        servers["killed"].job = None  # PyTorch's watchdog ended it
        wait_until(lambda: len(hangs(pipeline)) == 2, "the hangs")
        found = {one.job: (one.suspects[0].ranks, one.state) for one in hangs(pipeline)}
        assert found["dead"] == ((3,), "open")
        assert found["killed"][0] == (1,)
        assert {one.job for one in pipeline.revisions()} == {"dead", "killed"}
        wait_until(lambda: agent.output().count("event=ras_job_ended") == 2, "the ends")
