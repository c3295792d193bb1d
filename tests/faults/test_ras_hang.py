"""A job without any hook: NCCL's RAS service alone tells that it hangs, and who keeps it waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from irregulars.streams.messages.judgements import Verdict
from tests.integration.pipelines import Pipeline, Process
from tests.integration.worker_runs import wait_until
from tests.producers.nccl_ras.played_server import PlayedJob, PlayedServer

pytestmark = pytest.mark.integration

GRACE_S, SILENCE_S = 2.0, 5.0
"""Of the settings of these names; everything else is as users have it."""

EVERY_S, STANDING_S, HANG_S = 0.2, 1.0, 4.0
"""Of the source's options."""


@pytest.fixture
def server() -> Iterator[PlayedServer]:
    with PlayedServer(PlayedJob()) as server:
        yield server


def start_agent(pipeline: Pipeline, server: PlayedServer) -> Process:
    file = pipeline.folder / "agent.toml"
    file.write_text(f"""
[metrics]
enabled = false
[nics]
enabled = false
[gpus]
enabled = false
[spool]
directory = "{pipeline.folder}/spool"
[[sources]]
kind = "nccl-ras"
job = "bare"
world_size = 4
host = "127.0.0.1"
port = {server.port}
every_s = {EVERY_S}
standing_s = {STANDING_S}
hang_s = {HANG_S}
""")
    return pipeline.start("agent", str(file))


def hangs(pipeline: Pipeline) -> list[Verdict]:
    return [one for one in pipeline.revisions("alerts") if one.kind == "hang"]


def run(server: PlayedServer, looks: int = 6) -> None:
    """Let the job train until it was seen a few times more."""
    assert server.job is not None
    seen = server.asked
    while server.asked < seen + looks:
        server.job.step()
        time.sleep(EVERY_S / 4)


def test_a_hang_is_told_and_a_pause_is_not(pipeline: Pipeline, server: PlayedServer) -> None:
    job = server.job
    assert job is not None
    pipeline.start_worker(grace_s=GRACE_S, silence_s=SILENCE_S)
    agent = start_agent(pipeline, server)
    wait_until(lambda: server.asked > 3, "an agent that asks")
    run(server)
    job.launch(job.world, but=[1])  # rank 1 writes a checkpoint, for which the others wait
    wait_until(lambda: "event=ras_stands_still" in agent.output(), "a standstill")
    time.sleep(SILENCE_S / 2)
    job.launch(job.world, but=[0, 2, 3])
    run(server, 8)
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
