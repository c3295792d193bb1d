"""The agent's metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from irregulars.pages import PageServer, metrics_page
from irregulars.producers.node.node_source import NodeSource
from irregulars.producers.node.roster import Roster
from irregulars.producers.publishing.agent import Progress
from irregulars.producers.publishing.spooling_publisher import SpoolingPublisher


@dataclass(slots=True, eq=False)  # a registry keeps it by its hash
class AgentState:
    """The parts of a running agent that metrics are made of, at each request and in a thread of their own."""

    source: NodeSource
    roster: Roster
    publisher: SpoolingPublisher | None = None
    progress: Progress = field(default_factory=Progress)

    def note(self, progress: Progress) -> None:
        """Keep the newest progress."""
        self.progress = progress

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        progress, publisher = self.progress, self.publisher
        yield _counter("rows", "Rows of operators, samples and iterations taken in", progress.rows)
        yield _counter("batches", "Batches that these rows were made into", progress.batches)
        yield _counter("batch_bytes", "Bytes of batches and announcements, before compression", progress.value_bytes)
        yield _counter("delivered_messages", "Messages that Kafka has acknowledged", progress.delivered_messages)
        yield _gauge("newest_event_seconds", "Newest event time published, Unix time",
                     (progress.watermark_ns or 0) / 1e9)  # fmt: skip
        yield _gauge("sources", "Sources that are polled", len(self.source.names))
        yield _counter("failed_sources", "Sources that failed and were left out", self.source.failed_sources)
        yield _counter("closed_connections", "Connections of processes that were closed for what they sent",
                       self.source.closed_connections)  # fmt: skip
        yield _gauge("gpus", "GPUs in use by ranks, and sampled", len(self.roster.gpus))
        yield _gauge("nics", "NICs in use by ranks, and sampled", len(self.roster.nics))
        if publisher is None:
            return
        yield _gauge("spool_bytes", "Bytes on disk that wait for Kafka", publisher.spool_bytes)
        about = "1 while messages wait on disk, or for Kafka's first answer"
        yield _gauge("kafka_behind", about, publisher.is_behind)
        yield _counter("dropped_messages", "Messages dropped because the spool was full", publisher.dropped_messages)
        yield _counter("dropped_rows", "Rows in dropped and refused messages", publisher.dropped_rows)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"irregulars_agent_{name}", about, value=value)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"irregulars_agent_{name}", about, value=value)


def serve_metrics(state: AgentState, host: str, port: int) -> PageServer:
    """Serve the metrics of one agent over HTTP.

    `host`, `port`: where to listen; 0: any free one. Raises InputError if it can't listen at the address.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(state)
    return PageServer(host, port, {"/metrics": metrics_page(registry)})
