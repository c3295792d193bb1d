"""One rank of a real job waits for its data: rank, layer and cause are told, and nobody is to drain anything."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.runs.local_services import LocalServices
from irregulars.infra.runs.published_run import PublishedRun
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings, database_settings
from irregulars.messages.judgements import Verdict
from irregulars.producers.torch_hook.agent_socket import SocketSource
from irregulars.sinks.advice import plan_of
from irregulars.sinks.connection import connected
from tests.benchmarks.causes.trials import Trial
from tests.gloo_ranks import RANKS, needs_torch, reading, training, wait_for_end
from tests.integration.worker_runs import wait_until

pytestmark = [pytest.mark.integration, needs_torch]

TRIAL = Trial("live-cause", "data_loader", ranks=(2,), first=40, past=75, steps=90, extra_s=0.2)


def test_a_slow_loader_is_named_and_no_host_is_drained_for_it(tmp_path: Path) -> None:
    with LocalServices(Settings(snapshot_s=1.0, partitions=4)) as services:
        own = services.settings
        socket, listed = tmp_path / "agent.sock", tmp_path / "trials.json"
        listed.write_text(json.dumps([asdict(TRIAL)]))
        with (
            PublishedRun(SocketSource(socket, ranks=RANKS), agent_settings(own)) as run,
            training("tests.benchmarks.causes.worker", str(socket), str(listed)),
            reading(services, "verdicts") as read,
        ):

            def found() -> list[Verdict]:
                return [one for one in read() if one.suspects and one.suspects[0].ranks == TRIAL.ranks]

            wait_until(lambda: any(one.cause for one in found()), "a verdict that names the cause")
            wait_for_end(run, services)
            named = [one for one in found() if one.cause is not None]
            assert {(one.kind, one.layer, one.cause) for one in named} == {("slow_rank", "data", "data_loader")}
            assert all(one.cause_share is not None and one.cause_share >= 0.8 for one in named)
            assert all(not {"cordon", "drain"} & set(plan_of(one).actions) for one in found())

        def stored() -> list[Any]:
            sql = (
                "SELECT DISTINCT v.layer, v.cause, p.rank FROM verdicts AS v FINAL JOIN pauses AS p FINAL"
                " ON p.job = v.job AND p.cause = v.cause WHERE v.job = 'live-cause' AND p.elapsed_ns > 1e8"
            )
            with connected(database_settings(own, 10.0, is_reading=True)) as client:
                return [tuple(row) for row in client.query(sql).result_rows]

        wait_until(lambda: ("data", "data_loader", 2) in stored(), "the verdict, and the pauses, in the database")
