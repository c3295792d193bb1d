"""Metrics of a worker: `prometheus_client`'s counters, gauges and histograms, in a registry of their own.

Stages and writers are given one `Counters` and call it once for each message, never for each row. Children are
bound to their labels at the start: each series begins with 0, since one that begins with its first step hides that
step from Prometheus.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from irregulars.kafka.topics import RANK_TOPICS
from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.judgements import JudgedIteration, Verdict
from irregulars.messages.kinds import VERDICT_KINDS
from irregulars.sinks.tables import TABLES

PREFIX: Final = "irregulars_worker_"
HOPS: Final = ("rank", "job")
INPUTS: Final = (*RANK_TOPICS, "evidence")
EVENTS: Final = ("opened", "changed", "raised", "continued", "closed")
DELAY_BOUNDS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Upper bounds of the buckets of delays, s: from the shortest iterations to a backlog of an hour."""

Labels = tuple[str, ...]


class Counters:
    """Counts of one worker since it started, and its state of storing rows.

    `registry`: all metrics; `observer.Observer` adds those of the stages and of sent messages.
    `operator_messages`: messages of operators that went into monitors.
    `sink_busy_since_s`: since when the sink takes no rows (as `time.monotonic`); `None`: it takes them.
    `unstored_bytes`, `unstored_limit_bytes`, `unstored_since_s`: rows that wait for the sink in memory; the limit;
    since when a row has waited (as `time.monotonic`), `None`: all is stored.
    `sink_is_missing`: whether the sink's database has not been reached since the start.
    `store_is_full`: whether judging waits, since no more rows may wait.
    `thresholds_revision`: offset on the topic ``thresholds`` up to which changes were read.
    """

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry(auto_describe=False)
        self.operator_messages = 0
        self.sink_busy_since_s: float | None = None
        self.unstored_bytes = 0
        self.unstored_limit_bytes = 0
        self.unstored_since_s: float | None = None
        self.sink_is_missing = False
        self.store_is_full = False
        self.thresholds_revision = 0
        self._batches: Final = self._counters("batches", "Messages that went into monitors", "topic", INPUTS)
        self._rows: Final = self._counters("rows", "Rows in these messages", "topic", INPUTS)
        self._late_rows: Final = self._counter("late_rows", "Rows that came after their iteration was closed")
        self.rejected_rows: Final = self._counters(
            "rejected_rows", "Rows that were refused for good, by table", "by", [f"table {name}" for name in TABLES]
        )
        self.given_up: Final = self._counters(
            "judgements_given_up", "Monitors that began anew because their work did not end", "hop", HOPS
        )
        self._judged: Final = self._counter("judged_iterations", "Iterations of jobs that were judged")
        self._irregular: Final = self._counter("irregular_iterations", "Those of them that took too long")
        self._verdicts: Final = Counter(
            f"{PREFIX}verdicts", "Revisions of verdicts that were sent", ("kind", "event"), registry=self.registry
        )
        for kind, event in itertools.product(VERDICT_KINDS, EVENTS):
            self._verdicts.labels(kind, event)
        self._judgement_delays: Final = self._delays("judgement", "From the end of an iteration to its judgement")
        self._verdict_delays: Final = self._delays("verdict", "From the end of an iteration to the verdict it opened")
        self.sink_retries: Final = self._counter("sink_retries", "Calls of the database that had to be made again")
        self.attempt_over_rows: Final = self._counter(
            "attempt_over_rows", "Operators of attempts that are over: not judged"
        )
        self.given_up_iterations: Final = self._counter(
            "given_up_iterations", "Iterations that are not judged, as too many waited for ranks of unread partitions"
        )
        self.contradictions: Final = self._counter(
            "contradictions",
            "How often a job began to contradict itself: ranks in two places, or two jobs of one name",
        )
        self.restores: Final = self._counters(
            "restores", "Partitions whose state was read: at starts and rebalances", "hop", HOPS
        )
        self.restore_s: Final = self._counters("restore_seconds", "Seconds that took", "hop", HOPS)
        self.gauge_of("sink_busy", "1 while the database takes no rows", lambda: self.sink_busy_since_s is not None)
        self.gauge_of("unstored_seconds", "Seconds for which rows have waited to be stored", self._unstored_s)
        self.gauge_of(
            "unstored_bytes", "Bytes of rows that wait in memory for the database", lambda: self.unstored_bytes
        )
        self.gauge_of(
            "unstored_limit_bytes", "How many may wait until judging waits as well: unstored_mib",
            lambda: self.unstored_limit_bytes,
        )  # fmt: skip
        self.gauge_of(
            "thresholds_revision",
            "Offset on the topic thresholds up to which changes were read",
            lambda: self.thresholds_revision,
        )

    def took(self, topic: str, rows: int) -> None:
        """Count a message that went into a monitor."""
        self._batches[topic].inc()
        self._rows[topic].inc(rows)
        self.operator_messages += topic == "commops"

    def took_evidence(self, topic: str, parts: Sequence[Evidence | Membership]) -> None:
        """Count a message of evidence: its rows are ranks' iterations."""
        evidence = [part for part in parts if isinstance(part, Evidence)]
        self.took(topic, sum(map(len, evidence)))
        self._late_rows.inc(sum(int(part.columns["late_rows"].sum()) for part in evidence))

    def judged(self, iterations: Sequence[JudgedIteration], now_s: float) -> None:
        """Count judged iterations; `now_s` since 1970."""
        self._judged.inc(len(iterations))
        self._irregular.inc(sum(one.is_irregular is True for one in iterations))
        for one in iterations:
            self._judgement_delays.observe(max(now_s - _ended_at_s(one), 0.0))  # hosts' clocks may run ahead of ours

    def told(self, verdict: Verdict, iterations: Sequence[JudgedIteration], now_s: float) -> None:
        """Count a revision that was sent.

        `iterations`: those that were judged with it: the one that opened it is among them, but for a hang, which has
        no end.
        """
        self._verdicts.labels(verdict.kind, verdict.event).inc()
        newest = verdict.iterations[1] - 1
        ends = [_ended_at_s(one) for one in iterations if (one.attempt, one.iteration) == (verdict.attempt, newest)]
        if verdict.event == "opened" and ends:
            self._verdict_delays.observe(max(now_s - ends[0], 0.0))

    def gauge(self, name: str, about: str, *labels: str) -> Gauge:
        """Add a gauge."""
        return Gauge(PREFIX + name, about, labels, registry=self.registry)

    def gauge_of(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is asked for with each scrape."""
        self.gauge(name, about).set_function(value)

    def _unstored_s(self) -> float:
        since_s = self.unstored_since_s  # the event loop may clear it meanwhile
        return 0.0 if since_s is None else time.monotonic() - since_s

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(PREFIX + name, about, registry=self.registry)

    def _counters(self, name: str, about: str, label: str, known: Sequence[str]) -> dict[str, Counter]:
        """Add a counter; return its children by their one label: `labels` takes longer than `inc`."""
        counter = Counter(PREFIX + name, about, (label,), registry=self.registry)
        return {one: counter.labels(one) for one in known}

    def _delays(self, name: str, about: str) -> Histogram:
        return Histogram(f"{PREFIX}{name}_delay_seconds", about, buckets=DELAY_BOUNDS_S, registry=self.registry)


def set_series(gauge: Gauge, values: Mapping[Labels, float], before: Mapping[Labels, float]) -> None:
    """Set the series of a gauge by their labels, and remove those that are gone since `before`."""
    for labels in before.keys() - values.keys():
        gauge.remove(*labels)
    for labels, value in values.items():
        gauge.labels(*labels).set(value)


def metrics_table(families: Iterable[Metric]) -> str:
    """Return the Markdown table of infra/docs/operating.md; a family has at least one sample, which names labels."""
    rows = []
    for one in families:
        name = one.name.removeprefix(PREFIX) + ("_total" if one.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in one.samples[0].labels if label != "le") or "-"
        rows.append(f"| `{name}` | {one.type} | {labels} | {one.documentation} |")
    return "\n".join(["| name | kind | labels | meaning |", "|---|---|---|---|", *sorted(rows), ""])


def _ended_at_s(one: JudgedIteration) -> float:
    return (one.start_ns + one.elapsed_ns) / 1e9
