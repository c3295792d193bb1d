"""Processes of ``irregulars notify``, and what they tell whom."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.integration.pipelines import COMMAND
from tests.integration.worker_runs import ROOT, Bus, Running, page_of
from tests.sinks.notices.alerts import alert_bytes


class NotifyRun(Running):
    """One process on the topics of a bus, with the channels of a TOML text."""

    def __init__(self, bus: Bus, folder: Path, channels: str, **settings: Any) -> None:
        self.file = folder / f"notify-{uuid4().hex[:6]}.toml"
        values: Mapping[str, Any] = {"notify_listen": "127.0.0.1:0", "notify_hold_s": 0.0, **settings}
        self.file.write_text(f"{_toml(values)}\n{channels}")
        log = self.file.with_suffix(".log")
        self.arguments = ["notify", str(self.file), "--bootstrap", bus.bootstrap, "--topic-prefix", bus.topics.prefix]
        super().__init__([*COMMAND, *self.arguments], log, cwd=ROOT)

    def is_loaded(self) -> bool:
        assert self.is_running, self.output()
        return "event=loaded" in self.output()

    def page(self, path: str) -> str:
        found = re.search(r"metrics=(http://\S+)", self.output())
        assert found is not None
        return page_of(found[1] + path)[1]

    def metric(self, name: str) -> float:
        found = re.search(rf"^irregulars_notify_{re.escape(name)} (\S+)$", self.page("/metrics"), re.MULTILINE)
        assert found is not None, name
        return float(found[1])


def channel(kind: str, name: str, **values: Any) -> str:
    """Return a channel as notify's file has it."""
    return f"[[channel]]\n{_toml({'kind': kind, 'name': name, **values})}\n"


def webhook(url: str, name: str = "hook") -> str:
    """Return a channel that sends notices to this address."""
    return channel("webhook", name, url=url)


def pagerduty(url: str, folder: Path, **values: Any) -> str:
    """Return a channel that sends events to this address, with a key that is written into a folder."""
    key = folder / "key"
    key.write_text("0123456789abcdef0123456789abcdef")
    key.chmod(0o600)
    return channel("pagerduty", "pager", url=url, routing_key_file=key, **values)


def send_alert(bus: Bus, verdict_id: str, revision: int = 1, event: str = "opened", **facts: Any) -> None:
    """Send an alert as a worker would, and wait until it stands on the broker."""
    bus.send("alerts", verdict_id.encode(), alert_bytes(verdict_id, revision, event, **facts))
    bus.flush()


def _toml(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name} = {json.dumps(value, default=str)}" for name, value in values.items())
