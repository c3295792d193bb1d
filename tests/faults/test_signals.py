"""A signal at any moment of its start ends each command in order, services and all: `tests.integration.signalled`.

``SIGNAL_MOMENTS=50`` tries 50 moments of each command, and takes an hour.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from itertools import cycle

import pytest

from tests.integration.pipelines import RECORDINGS, Pipeline
from tests.integration.signalled import Command, complaints_of, moments, seconds_to_ready

MOMENTS = int(os.environ.get("SIGNAL_MOMENTS", "5"))
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SLOW_NIC = str(RECORDINGS / "gloo-slow-nic")
NOTIFY = """notify_listen = "127.0.0.1:0"
[[channel]]
kind = "command"
name = "nobody"
argv = ["/bin/true"]
"""
NOWHERE = "127.0.0.1:1"
AGENT = '[spool]\ndirectory = "spool"\nfinal_s = 1\n[metrics]\nenabled = false\n'
SLURM = {"bin/sinfo": "#!/bin/sh\n", "bin/scontrol": "#!/bin/sh\n"}

ON_SERVICES = {
    "worker": Command(("worker", "--metrics-listen", "127.0.0.1:0"), "event=restored"),
    "notify": Command(("notify", "notify.toml"), "event=loaded", files={"notify.toml": NOTIFY}),
    "agent": Command(("agent", "agent.toml"), "event=agent_started", files={"agent.toml": AGENT}),
    "replay": Command(("replay", SLOW_NIC), None),
    "console": Command(("console", "--listen", "127.0.0.1:0"), "console at"),
    "act slurm": Command(("act", "slurm", "--slurm-bin", "bin"), "dry run", files=SLURM),
    "act nvsentinel": Command(("act", "nvsentinel"), None),
    "alerts": Command(("alerts", "--from-start"), None, is_service=False),
    "doctor": Command(("doctor",), None, is_service=False, ready_s=1.0, has_end=True),
}
ALONE = {
    "worker that waits": Command(("worker", "--no-store", "--bootstrap", NOWHERE), "event=broker_away"),
    "agent that waits": Command(
        ("agent", "agent.toml"),
        "event=agent_started",
        files={"agent.toml": f'kafka_bootstrap = "{NOWHERE}"\n{AGENT}'},
    ),
    "console that waits": Command(
        ("console", "--no-kafka", "--clickhouse-url", f"http://{NOWHERE}", "--listen", "127.0.0.1:0"), "console at"
    ),
    "analyze": Command(("analyze", SLOW_NIC), "slow_nic", is_service=False, has_end=True),
    "up": Command(("up",), "Ctrl-C stops"),
    "demo": Command(("demo",), "GPUs train", is_service=False),
    "simulate": Command(("simulate", "made", "--iterations", "400"), None, is_service=False, has_end=True),
}


@pytest.mark.parametrize("name", ON_SERVICES)
def test_a_signal_at_any_moment_ends_what_uses_services(name: str, pipeline: Pipeline) -> None:
    environment = replace(pipeline.settings, stop_s=10.0).to_environment()
    require_orderly_ends(replace(ON_SERVICES[name], environment=environment))


@pytest.mark.parametrize("name", ALONE)
def test_a_signal_at_any_moment_ends_what_stands_alone(name: str) -> None:
    require_orderly_ends(ALONE[name])


def require_orderly_ends(command: Command) -> None:
    wrong = [
        complaint
        for number, moment in zip(cycle(SIGNALS), moments(MOMENTS, seconds_to_ready(command)), strict=False)
        for complaint in complaints_of(command, number, moment)
    ]
    print(f"{' '.join(command.words[:2])}: {len(wrong)} of {MOMENTS} moments end wrongly")
    assert wrong == []
