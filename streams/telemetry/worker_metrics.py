"""Every metric of a worker: its name, its labels, what it says, and where it is read. Read when asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from irregulars.messages.judgements import VERDICT_KINDS
from irregulars.sinks.tables import TABLES
from irregulars.streams.telemetry.counters import Histogram
from irregulars.streams.telemetry.observer import Observer
from irregulars.version import VERSION

PREFIX: Final = "irregulars_worker_"
HOPS: Final = ("rank", "job")
INPUTS: Final = ("jobs", "commops", "iterations", "bandwidth", "gpu_health", "heartbeats", "evidence")
RESULTS: Final = ("evidence", "verdicts", "alerts", "deadletter", "progress")
_EVENTS: Final = ("opened", "changed", "raised", "continued", "closed")

Labels = tuple[str, ...]
Values = Iterable[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class WorkerMetric:
    """One metric.

    Parameters
    ----------
    name
        Without prefix, as Prometheus shows it; a counter ends with ``_total``.
    kind
        ``counter``, ``gauge`` or ``histogram``.
    labels
        Names; each has few values, whatever the jobs are called.
    about
        What it says, for people.
    read
        Its values. What may be counted stands there with 0 from the start: else the first step would go unseen.
    """

    name: str
    kind: str
    labels: Labels
    about: str
    read: Callable[[Observer], Any]


def _one(value: Callable[[Observer], float | None]) -> Callable[[Observer], Values]:
    def read(seen: Observer) -> Values:
        found = value(seen)
        return [] if found is None else [((), found)]

    return read


def _by(
    known: Sequence[str], values: Callable[[Observer], Mapping[str, float]]
) -> Callable[[Observer], Iterator[tuple[Labels, float]]]:
    def read(seen: Observer) -> Iterator[tuple[Labels, float]]:
        found = dict(values(seen))
        return (((name,), found.get(name, 0.0)) for name in dict.fromkeys((*known, *found)))

    return read


def _verdicts(seen: Observer) -> Values:
    found = dict(seen.counters.verdicts)
    return [(place, found.get(place, 0)) for place in itertools.product(VERDICT_KINDS, _EVENTS)]


def _snapshots(seen: Observer, part: int) -> Mapping[str, float]:
    sent = seen.sent()
    return {hop: sent.get(f"{hop}_snapshots", (0, 0))[part] for hop in HOPS}


def _sent(seen: Observer, part: int) -> Mapping[str, float]:
    return {topic: sent[part] for topic, sent in seen.sent().items() if not topic.endswith("_snapshots")}


METRICS: Final = (
    WorkerMetric("info", "gauge", ("version", "group"), "1; says which worker this is",
                 lambda seen: [((VERSION, seen.group), 1.0)]),
    WorkerMetric("ready", "gauge", (), "1 while /readyz says ok",
                 _one(lambda seen: seen.why_not_ready() is None)),
    WorkerMetric("healthy", "gauge", (), "1 while /healthz says ok",
                 _one(lambda seen: seen.why_dead() is None)),
    WorkerMetric("loop_silent_seconds", "gauge", (), "Since the event loop last came round",
                 _one(lambda seen: seen.loop_silent_s)),
    WorkerMetric("broker_silent_seconds", "gauge", (), "Since the broker last said where topics end",
                 _one(lambda seen: seen.broker_silent_s)),
    WorkerMetric("partitions", "gauge", ("hop",), "Partitions that this worker holds",
                 _by(HOPS, lambda seen: seen.view.partitions)),
    WorkerMetric("topic_partitions", "gauge", ("topic",), "Partitions that an input topic has",
                 _by((), lambda seen: seen.view.topic_partitions)),
    WorkerMetric("monitors", "gauge", ("hop",),
                 "States that are held: hop rank, of groups of ranks; hop job, of jobs",
                 _by(HOPS, lambda seen: seen.view.monitors)),
    WorkerMetric("ranks", "gauge", (), "Ranks in partitions of this worker that were announced and have not ended",
                 _one(lambda seen: seen.view.ranks)),
    WorkerMetric("lag_messages", "gauge", ("topic", "partition"),
                 "Messages of a held partition that are not read yet; of evidence: not yet in a job's monitor",
                 lambda seen: [((at.topic, str(at.partition)), lag) for at, lag in seen.view.lags.items()]),
    WorkerMetric("behind_seconds", "gauge", ("hop", "partition"),
                 "Seconds that a held partition is behind; hop job: behind what ranks send",
                 lambda seen: [((hop, str(number)), s) for (hop, number), s in seen.view.behind_s.items()]),
    WorkerMetric("batches_total", "counter", ("topic",), "Messages that went into monitors",
                 _by(INPUTS, lambda seen: seen.counters.batches)),
    WorkerMetric("rows_total", "counter", ("topic",), "Rows in these messages",
                 _by(INPUTS, lambda seen: seen.counters.rows)),
    WorkerMetric("late_rows_total", "counter", (), "Rows that came after their iteration was closed",
                 _one(lambda seen: seen.counters.late_rows)),
    WorkerMetric("rejected_rows_total", "counter", ("by",), "Rows that were refused for good, by table",
                 _by([f"table {name}" for name in TABLES], lambda seen: seen.counters.rejected_rows)),
    WorkerMetric("dead_letters_total", "counter", (), "Messages sent to the topic deadletter",
                 _one(lambda seen: seen.dead_letters)),
    WorkerMetric("judgements_given_up_total", "counter", ("hop",),
                 "Monitors that began anew because their work did not end",
                 _by(HOPS, lambda seen: seen.counters.given_up)),
    WorkerMetric("judged_iterations_total", "counter", (), "Iterations of jobs that were judged",
                 _one(lambda seen: seen.counters.judged_iterations)),
    WorkerMetric("irregular_iterations_total", "counter", (), "Those of them that took too long",
                 _one(lambda seen: seen.counters.irregular_iterations)),
    WorkerMetric("verdicts_total", "counter", ("kind", "event"), "Revisions of verdicts that were sent", _verdicts),
    WorkerMetric("judgement_delay_seconds", "histogram", (), "From the end of an iteration to its judgement",
                 lambda seen: seen.counters.judgement_delays),
    WorkerMetric("verdict_delay_seconds", "histogram", (), "From the end of an iteration to the verdict it opened",
                 lambda seen: seen.counters.verdict_delays),
    WorkerMetric("sink_retries_total", "counter", (), "Calls of the database that had to be made again",
                 _one(lambda seen: seen.counters.sink_retries)),
    WorkerMetric("sink_busy", "gauge", (), "1 while the database takes no rows",
                 _one(lambda seen: seen.counters.sink_busy_at_s is not None)),
    WorkerMetric("unstored_seconds", "gauge", (),
                 "Seconds for which rows have waited to be stored",
                 _one(lambda seen: seen.unstored_s)),
    WorkerMetric("unstored_bytes", "gauge", (), "Bytes of rows that wait in memory for the database",
                 _one(lambda seen: seen.counters.unstored_bytes)),
    WorkerMetric("unstored_limit_bytes", "gauge", (), "How many may wait until judging waits as well: unstored_mib",
                 _one(lambda seen: seen.counters.unstored_limit_bytes)),
    WorkerMetric("attempt_over_rows_total", "counter", (), "Operators of attempts that are over: not judged",
                 _one(lambda seen: seen.counters.attempt_over_rows)),
    WorkerMetric("contradictions_total", "counter", (),
                 "How often a job began to contradict itself: ranks in two places, or two jobs of one name",
                 _one(lambda seen: seen.counters.contradictions)),
    WorkerMetric("partitions_read_anew_total", "counter", ("topic",),
                 "Partitions that forgot their places in a topic that was made anew, or cut",
                 _by(INPUTS, lambda seen: seen.counters.partitions_read_anew)),
    WorkerMetric("restores_total", "counter", ("hop",), "Partitions whose state was read: at starts and rebalances",
                 _by(HOPS, lambda seen: seen.counters.restores)),
    WorkerMetric("restore_seconds_total", "counter", ("hop",), "Seconds that took",
                 _by(HOPS, lambda seen: seen.counters.restore_s)),
    WorkerMetric("thresholds_revision", "gauge", (),
                 "Offset on the topic thresholds up to which changes hold in the partitions that are held",
                 _one(lambda seen: seen.counters.thresholds_revision)),
    WorkerMetric("state_bytes", "gauge", ("hop",),
                 "Bytes of the stored states of the monitors that are held",
                 _by(HOPS, lambda seen: seen.view.state_bytes)),
    WorkerMetric("snapshots_total", "counter", ("hop",), "Records written to the snapshot topics",
                 _by(HOPS, lambda seen: _snapshots(seen, 0))),
    WorkerMetric("snapshot_bytes_total", "counter", ("hop",), "Bytes of these records, before compression",
                 _by(HOPS, lambda seen: _snapshots(seen, 1))),
    WorkerMetric("sent_messages_total", "counter", ("topic",), "Messages handed over to Kafka, without snapshots",
                 _by(RESULTS, lambda seen: _sent(seen, 0))),
    WorkerMetric("sent_bytes_total", "counter", ("topic",), "Bytes of these messages, before compression",
                 _by(RESULTS, lambda seen: _sent(seen, 1))),
)  # fmt: skip
"""All metrics, in the order of infra/docs/operating.md."""


class WorkerCollector:
    """Makes the metrics of one worker when they are asked for; costs nothing in between."""

    def __init__(self, observer: Observer) -> None:
        self._observer: Final = observer

    def collect(self) -> Iterator[Metric]:
        """Give all metrics."""
        for metric in METRICS:
            yield _family(metric, metric.read(self._observer))


def _family(metric: WorkerMetric, found: Any) -> Metric:
    name = PREFIX + metric.name.removesuffix("_total")
    if isinstance(found, Histogram):
        buckets = [*map(str, found.bounds), "+Inf"]
        counts = itertools.accumulate(found.counts)
        return HistogramMetricFamily(
            name, metric.about, buckets=[*zip(buckets, counts, strict=True)], sum_value=found.sum
        )
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, metric.about, labels=metric.labels)
    for labels, value in found:
        family.add_metric(labels, float(value))
    return family


def metrics_table() -> str:
    """Return the Markdown table of infra/docs/operating.md."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels) or '-'} "
        f"| {metric.about} |"
        for metric in METRICS
    ]
    return "\n".join(["| name | kind | labels | meaning |", "|---|---|---|---|", *rows, ""])
