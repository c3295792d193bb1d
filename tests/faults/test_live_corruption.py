"""A bit of one replica's weights turns over in a real job of four processes: its rank is told within seconds."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.runs.local_services import LocalServices
from irregulars.infra.runs.published_run import PublishedRun
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings, database_settings
from irregulars.kafka.log_reader import LogReader
from irregulars.producers.torch_hook.agent_socket import SocketSource
from irregulars.sinks.connection import connected
from tests.gloo_ranks import RANKS, needs_torch, training, wait_for_end
from tests.integration.worker_runs import wait_until

pytestmark = [pytest.mark.integration, needs_torch]

RANK, STEP, STEPS = 2, 40, 80
MOST_S = 30.0  # from the end of the step to the alert on its topic, on a busy machine; usual is a second or two


def train() -> None:
    """Train one replica, as one of the processes; the rank at fault prints when its step had ended."""
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    from irregulars import torch_comms

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    torch_comms.start(agent=sys.argv[1], job="live-corruption")
    torch_comms.watch_numerics(model, optimizer, checksum_steps=1)
    data = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        batch = torch.randn(16, 32, generator=data)
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch_comms.report(loss=loss.item())
        if rank == RANK and step == STEP:
            bits = next(iter(model.parameters())).data.view(torch.int32)
            bits[3, 5] ^= 1 << 12
            print(time.time(), flush=True)
        time.sleep(0.1)
    torch_comms.stop()
    distributed.destroy_process_group()


def test_a_turned_bit_is_told_within_seconds(tmp_path: Path) -> None:
    with LocalServices(Settings(snapshot_s=1.0, partitions=4)) as services:
        own = services.settings
        socket = tmp_path / "agent.sock"
        with (
            PublishedRun(SocketSource(socket, ranks=RANKS), agent_settings(own)) as run,
            training("tests.faults.test_live_corruption", str(socket)) as running,
            closing(LogReader(own.kafka_bootstrap, {})) as reader,
        ):
            out = running[RANK].stdout
            assert out is not None
            ended_s = float(out.readline())
            topic = own.topics().name("alerts")

            def alerts() -> list[tuple[float, dict[str, Any]]]:
                # Four processes beside other tests on two cores: a rank may be slow, too, and is told
                found = [one for p in reader.partitions(topic) for one in reader.read_tail(topic, p)]
                told = [(one.timestamp()[1] / 1e3, json.loads(one.value() or b"{}")) for one in found]
                return [one for one in told if one[1]["kind"] == "corruption"]

            wait_until(lambda: bool(alerts()), "an alert")
            at_s, alert = min(alerts(), key=lambda one: one[0])
            print(f"alert {at_s - ended_s:.2f} s after the step: {alert['summary']}")
            assert (alert["severity"], [one["rank"] for one in alert["suspects"]]) == ("page", [RANK])
            assert at_s - ended_s < MOST_S
            wait_for_end(run, services)

        def stored() -> list[Any]:
            sql = "SELECT kind, close_reason, evidence FROM verdicts FINAL WHERE job = 'live-corruption'"
            with connected(database_settings(own, 10.0, is_reading=True)) as client:
                return list(client.query(sql).result_rows)

        def is_stored() -> bool:
            return [one[1] for one in stored() if one[0] == "corruption"] == ["finished"]

        try:
            wait_until(is_stored, "the verdict in the database")
        finally:
            print("stored:", stored())


if __name__ == "__main__":
    train()
