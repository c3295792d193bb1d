"""Every metric that our processes have, and its labels: what rules and dashboards may ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from irregulars.producers.node.device_source import DeviceSource
from irregulars.producers.node.metrics import AgentState
from irregulars.producers.node.node_source import NodeSource
from irregulars.producers.node.roster import Roster
from irregulars.producers.publishing.publisher import AgentSettings
from irregulars.producers.publishing.spooling_publisher import SpoolingPublisher, SpoolSettings
from irregulars.sinks.notices.process import NotifyMetrics
from tests.streams.health.observed_worker import observed_metrics

_SCRAPED: Final = {"job", "instance"}
# Prometheus's own, and those of the process, which `irregulars.pages.metrics_page` adds
_OTHERS: Final = {
    "up": _SCRAPED,
    "process_start_time_seconds": _SCRAPED,
    "process_cpu_seconds_total": _SCRAPED,
    "process_resident_memory_bytes": _SCRAPED,
    "ALERTS": {"alertname", "alertstate"},
}


def known_metrics(folder: Path) -> dict[str, set[str]]:
    """Return the labels of every metric of a worker, an agent or notify; `folder` is for an agent's spool."""
    return _labels(iter(observed_metrics())) | _labels(_of_agent(folder)) | _labels(_of_notify()) | _OTHERS


def require_known(texts: Iterable[str], known: Mapping[str, set[str]]) -> None:
    """Require that expressions of Prometheus's language ask for metrics and labels that exist."""
    for text in texts:
        names = re.findall(r"\b(?:irregulars_\w+|up|ALERTS|process_\w+)\b", text)
        assert names, text
        assert [name for name in names if name not in known] == [], text
        for name, labels in re.findall(r"\b(\w+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)=", labels)) <= known[name], text
        for labels in re.findall(r"\bby \(([^)]*)\)", text):
            assert set(re.split(r", *", labels)) <= set().union(*(known[name] for name in names)), text


def _labels(families: Iterator[Metric]) -> dict[str, set[str]]:
    return {
        sample.name: {*sample.labels, *_SCRAPED}
        for family in families
        for sample in family.samples
    }  # fmt: skip


def _of_agent(folder: Path) -> Iterator[Metric]:
    publisher = SpoolingPublisher(AgentSettings("127.0.0.1:1"), SpoolSettings(folder, 1 << 21, 1 << 21, 0.0))
    roster = Roster("here", {}, ())
    source = NodeSource({}, roster, DeviceSource([], owners=lambda: roster.owners))
    yield from AgentState(source, roster, publisher).collect()
    publisher.close()


def _of_notify() -> Iterator[Metric]:
    yield from NotifyMetrics(["pager"]).registry.collect()
