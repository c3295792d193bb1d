"""A signal at any moment ends a command in order: here those that need no service; `tests/faults` has the others."""

from __future__ import annotations

import signal

import pytest

from tests.integration.signalled import Command, all_complaints, moments, seconds_to_ready
from tests.integration.worker_runs import ROOT

NOWHERE = "127.0.0.1:1"
MOMENTS = 6
AGENT = f"""kafka_bootstrap = "{NOWHERE}"
[spool]
directory = "spool"
final_s = 1
[metrics]
enabled = false
"""
COMMANDS = {
    "console": Command(
        ("console", "--no-kafka", "--clickhouse-url", f"http://{NOWHERE}", "--listen", "127.0.0.1:0"), "console at"
    ),
    "worker that waits": Command(("worker", "--no-store", "--bootstrap", NOWHERE), "event=broker_away"),
    "agent": Command(("agent", "agent.toml"), "event=agent_started", files={"agent.toml": AGENT}),
    "analyze": Command(
        ("analyze", str(ROOT / "tests/recordings/gloo-slow-nic")), "slow_nic", is_service=False, has_end=True
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_at_any_moment_ends_it_in_order(name: str) -> None:
    command = COMMANDS[name]
    when = moments(MOMENTS, seconds_to_ready(command))
    for number in (signal.SIGINT, signal.SIGTERM):
        assert list(all_complaints(command, number, when[number == signal.SIGTERM :: 2])) == []
