"""Notices for tests: an alert as the worker sends it, and what was told of it before."""

from __future__ import annotations

import json
from typing import Any

from irregulars.messages.judgements import Suspect, Verdict
from irregulars.sinks.alerts import alert_of
from irregulars.sinks.notices.notice import Notice, NoticeEvent

NOW_NS = 1_795_000_000_000_000_000
GPU = Suspect("gpu", 8, (8,), 0.95, host="node-1", gpu=0, nic="mlx5_1", switch="leaf-1")
VERDICT = Verdict(
    "llama:0:60:0", 1, "open", "llama", "slow_rank", (60, 80), 2.0, 690.0, "dp0", (GPU,), "e", world_size=64,
    layer="hardware", time_ns=NOW_NS, severity="page",
)  # fmt: skip


def notice_of(verdict: Verdict = VERDICT, event: NoticeEvent = "opened", reference: str | None = None) -> Notice:
    """The notice of a verdict's revision, as the channel gets it."""
    return Notice(event, alert_values(verdict), verdict.severity or "ticket", reference=reference)


def alert_values(verdict: Verdict) -> dict[str, Any]:
    """The alert of a verdict, decoded."""
    message = alert_of(verdict, "note")
    assert message is not None
    found: dict[str, Any] = json.loads(message)
    return found
