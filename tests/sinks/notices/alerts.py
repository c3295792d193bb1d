"""Alerts for tests, as a worker would send them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from irregulars.messages.judgements import Suspect, Verdict
from irregulars.sinks.alerts import alert_of


def alert(verdict_id: str = "llama:1:25:0", revision: int = 1, event: str = "opened", **facts: Any) -> dict[str, Any]:
    """A message of the topic ``alerts``, decoded."""
    return dict(parsed(alert_bytes(verdict_id, revision, event, **facts)))


def alert_bytes(verdict_id: str = "llama:1:25:0", revision: int = 1, event: str = "opened", **facts: Any) -> bytes:
    """The same as it travels; `facts`: ``severity``, ``job``, ``host``, ``nic``, ``lost_s``."""
    facts = {"severity": "ticket", "job": "llama", "host": "node-3", "nic": "mlx5_1", "lost_s": 90.0, **facts}
    suspect = Suspect("nic", 26, (26,), 0.91, host=facts["host"], gpu=2, nic=facts["nic"], switch="leaf-0")
    verdict = Verdict(
        verdict_id, revision, "closed" if event == "closed" else "open", facts["job"], "slow_nic", (25, 60), 1.3,
        facts["lost_s"], "dp_p0_t0", (suspect,), "all_gather on dp_p0_t0 took 32 ms after its last rank had arrived",
        attempt=1, world_size=1024, time_ns=1_800_000_000_000_000_000,
        close_reason="recovered" if event == "closed" else None, event=event, severity=facts["severity"],
        recovers_ratio=0.97,
    )  # fmt: skip
    value = alert_of(verdict)
    assert value is not None
    return value


def parsed(body: bytes) -> Mapping[str, Any]:
    values: Mapping[str, Any] = json.loads(body)
    return values
