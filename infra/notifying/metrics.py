"""What ``irregulars notify`` counts, for Prometheus, and its signs of life."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from irregulars.pages import MakePage, Page, metrics_page, text_page

WAITS: Final = ("held", "muted", "retry")
STALLED_S: Final = 60.0
"""Seconds without a turn of the loop after which the process counts as stalled: a turn takes a fifth of one, and
waits for the broker at most while a record is written."""


@dataclass(slots=True)
class ChannelTally:
    """Counts of one channel; read from another thread."""

    delivered: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    retried: int = 0
    given_up: int = 0
    last_success_s: float = 0.0
    waiting: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """Counts of the process."""

    channels: dict[str, ChannelTally]
    alerts: int = 0
    unusable_alerts: int = 0
    is_active: bool = False
    mutes: int = 0
    lag_messages: int = 0
    turned_s: float = field(default_factory=time.monotonic)

    def turn(self) -> None:
        """Note a turn of the loop."""
        self.turned_s = time.monotonic()

    def health(self) -> Page:
        """Return the page ``/healthz``."""
        still_s = time.monotonic() - self.turned_s
        if still_s > STALLED_S:
            return text_page(f"no turn of the loop for {still_s:.0f} s", 503)
        return text_page("ok" if self.is_active else "ok: waiting for partitions of alerts")

    def pages(self) -> dict[str, MakePage]:
        """Return all pages."""
        return {"/metrics": metrics_page(NotifyCollector(self)), "/healthz": self.health}


class NotifyCollector:
    """Makes metrics when they are asked for."""

    def __init__(self, tally: Tally) -> None:
        self._tally: Final = tally

    def collect(self) -> Iterator[Metric]:
        """Give all metrics."""
        yield CounterMetricFamily("irregulars_notify_alerts", "Alerts read", value=self._tally.alerts)
        yield CounterMetricFamily("irregulars_notify_unusable_alerts", "Alerts that broke their schema",
                                  value=self._tally.unusable_alerts)  # fmt: skip
        yield GaugeMetricFamily("irregulars_notify_active", "1 while it has partitions of alerts; 0: it stands by",
                                value=self._tally.is_active)  # fmt: skip
        yield GaugeMetricFamily("irregulars_notify_lag_messages", "Alerts of its partitions that it has not read yet",
                                value=self._tally.lag_messages)  # fmt: skip
        yield GaugeMetricFamily("irregulars_notify_mutes", "Mutes that hold now", value=self._tally.mutes)
        yield self._delivered()
        yield self._waiting()
        for name, about in (
            ("failed", "Tries that a channel did not take"),
            ("retried", "Of these, those that are tried again"),
            ("given_up", "Notices that went to the dead letters"),
        ):
            family = CounterMetricFamily(f"irregulars_notify_{name}", about, labels=["channel"])
            for channel, one in self._tally.channels.items():
                family.add_metric([channel], getattr(one, name))
            yield family
        last = GaugeMetricFamily("irregulars_notify_last_success_seconds",
                                 "When it last took a notice, Unix time; 0: not since the start",
                                 labels=["channel"])  # fmt: skip
        for channel, one in self._tally.channels.items():
            last.add_metric([channel], one.last_success_s)
        yield last

    def _delivered(self) -> Metric:
        family = CounterMetricFamily("irregulars_notify_delivered", "Notices that a channel took",
                                     labels=["channel", "event"])  # fmt: skip
        for channel, one in self._tally.channels.items():
            for event in ("opened", "updated", "repeated", "resolved"):
                family.add_metric([channel, event], one.delivered[event])
        return family

    def _waiting(self) -> Metric:
        family = GaugeMetricFamily("irregulars_notify_waiting", "Incidents of which a channel is told later, and why",
                                   labels=["channel", "reason"])  # fmt: skip
        for channel, one in self._tally.channels.items():
            for reason in WAITS:
                family.add_metric([channel, reason], one.waiting.get(reason, 0))
        return family
