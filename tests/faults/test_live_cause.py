"""One rank of a real job waits for its data: rank, layer and cause are told, and nobody is to drain anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.runs.child_process import free_port
from irregulars.infra.runs.local_services import LocalServices
from irregulars.infra.runs.published_run import PublishedRun
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings, database_settings
from irregulars.kafka.log_reader import LogReader
from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.producers.torch_hook.agent_socket import SocketSource
from irregulars.sinks.advice import plan_of
from irregulars.sinks.connection import connect
from tests.benchmarks.causes.trials import Trial
from tests.integration.worker_runs import ROOT, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        find_spec("torch") is None, reason="torch must be installed for a real job (make torch); it is not"
    ),
]

RANKS = 4
TRIAL = Trial("live-cause", "data_loader", ranks=(2,), first=40, past=75, steps=90, extra_s=0.2)


@contextmanager
def processes(socket: Path, listed: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    port = str(free_port())
    listed.write_text(json.dumps([asdict(TRIAL)]))
    try:
        for rank in range(RANKS):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
            own |= {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
            command = [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "tests.benchmarks.causes.worker",
                str(socket),
                str(listed),
            ]
            running.append(subprocess.Popen(command, cwd=ROOT, env=os.environ | own))
        yield running
    finally:
        for one in running:
            one.kill()
            one.wait()


def test_a_slow_loader_is_named_and_no_host_is_drained_for_it(tmp_path: Path) -> None:
    with LocalServices(Settings(snapshot_s=1.0, partitions=4)) as services:
        own = services.settings
        socket = tmp_path / "agent.sock"
        with (
            PublishedRun(SocketSource(socket, ranks=RANKS), agent_settings(own)) as run,
            processes(socket, tmp_path / "trials.json"),
            closing(LogReader(own.kafka_bootstrap, {})) as reader,
        ):
            topic = own.topics().name("verdicts")

            def found() -> list[Verdict]:
                messages = [one for p in reader.partitions(topic) for one in reader.read_tail(topic, p)]
                verdicts = [decode_verdict(one.value()) for one in messages]
                return [one for one in verdicts if one.suspects and one.suspects[0].ranks == TRIAL.ranks]

            wait_until(lambda: any(one.cause for one in found()), "a verdict that names the cause")
            while run.is_running:
                services.require_running()
                time.sleep(0.25)
            named = [one for one in found() if one.cause is not None]
            assert {(one.kind, one.layer, one.cause) for one in named} == {("slow_rank", "data", "data_loader")}
            assert all(one.cause_share is not None and one.cause_share >= 0.8 for one in named)
            assert all(not {"cordon", "drain"} & set(plan_of(one).actions) for one in found())

        def stored() -> list[Any]:
            client = connect(database_settings(own, 10.0, is_reading=True))
            try:
                sql = (
                    "SELECT DISTINCT v.layer, v.cause, p.rank FROM verdicts AS v FINAL JOIN pauses AS p FINAL"
                    " ON p.job = v.job AND p.cause = v.cause WHERE v.job = 'live-cause' AND p.elapsed_ns > 1e8"
                )
                return [tuple(row) for row in client.query(sql).result_rows]
            finally:
                client.close_connections()

        wait_until(lambda: ("data", "data_loader", 2) in stored(), "the verdict, and the pauses, in the database")
