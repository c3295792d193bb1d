"""Observes a worker's stages each second, from their event loop, and serves metrics, health and readiness."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from typing import Final, Protocol

from prometheus_client import Gauge
from prometheus_client.core import CounterMetricFamily, Metric

from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.topics import RESULTS, TOPICS, TopicSettings
from irregulars.messages.judgements import SEVERITIES
from irregulars.messages.kinds import VERDICT_KINDS
from irregulars.pages import Page, PageServer, metrics_page, parse_listen, text_page
from irregulars.streams.health.counters import HOPS, PREFIX, Counters, Labels, set_series
from irregulars.streams.health.liveness import Flow, FlowWatch, Health, Place, Reading
from irregulars.streams.health.monitor_faults import BROKEN, Watched, is_broken
from irregulars.streams.health.watchdog import Watchdog
from irregulars.version import VERSION

LOG: Final = logging.getLogger("irregulars.worker")
OBSERVE_S: Final = 1.0
"""Between two looks at the stages, s: far below all waits of `streams.health.liveness`."""

_SUM_EVERY: Final = 15  # looks from one sum of state bytes to the next: it goes through the records of all monitors


class StateLike(Protocol):
    """`streams.stages.partition_state.PartitionState`, as it is looked at."""

    @property
    def tracked(self) -> Mapping[bytes, Watched]:
        """See PartitionState."""

    def read_to(self) -> dict[str, int]:
        """See PartitionState."""

    def position(self) -> dict[str, int]:
        """See PartitionState."""


class StageLike(Protocol):
    """`streams.stages.stage.Stage`, as it is looked at."""

    hop: str

    @property
    def states(self) -> Mapping[int, StateLike]:
        """See Stage."""

    def state_bytes(self) -> int:
        """See Stage."""


UntilS = Callable[[int, dict[str, int]], float | None]
"""Until when everything that was sent is in the monitors of a partition, read to these offsets; s since 1970."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One of the two stages."""

    stage: StageLike
    until_s: UntilS


class Observer:
    """Metrics, health and readiness of a worker, from its stages."""

    def __init__(
        self, counters: Counters, outbox: Outbox, dead_letters: DeadLetters, topics: TopicSettings, group: str,
        hops: Sequence[Hop], is_restored: Callable[[], bool], now_s: Callable[[], float], grace_s: float = 30.0,
        is_broker_away: Callable[[], bool] = lambda: False, watchdog: Watchdog | None = None,
    ) -> None:  # fmt: skip
        self.counters: Final = counters
        self._outbox: Final = outbox
        self._dead_letters: Final = dead_letters
        self._short_names: Final = {topics.name(topic): topic for topic in TOPICS}
        self._hops: Final = hops
        self._is_restored: Final = is_restored
        self._now_s: Final = now_s
        self._is_broker_away: Final = is_broker_away
        self._watchdog: Final = Watchdog() if watchdog is None else watchdog
        self._health: Final = Health(time.monotonic())
        self._flow: Final = FlowWatch(grace_s)
        self._observed_s = time.monotonic()
        self._looks = 0
        # A worker starts as not ready, and as healthy: only changes from there on are logged.
        self._said: Final = {"ready": False, "healthy": True}
        self._ends: dict[Place, int] = {}
        self._ends_at_s: float | None = None
        self._broken: list[str] = []
        self._series: Final[dict[str, Mapping[Labels, float]]] = {}
        counters.gauge("info", "1; says which worker this is", "version", "group").labels(VERSION, group).set(1)
        counters.gauge_of("ready", "1 while /readyz says ok", lambda: self.why_not_ready() is None)
        counters.gauge_of("healthy", "1 while /healthz says ok", lambda: self.why_dead() is None)
        counters.gauge_of(
            "loop_silent_seconds", "Since the event loop last came round", lambda: time.monotonic() - self._observed_s
        )
        self._ranks: Final = counters.gauge(
            "ranks", "Ranks in partitions of this worker that were announced and have not ended"
        )
        self._open: Final = Gauge(
            "irregulars_open_verdicts", "Verdicts on jobs of this worker that are open now", ("severity", "kind"),
            registry=counters.registry,
        )  # fmt: skip
        self._show_open(())
        self._gauges: Final = {
            name: counters.gauge(name, about, *labels)
            for name, about, labels in (
                ("partitions", "Partitions that this worker holds", ("hop",)),
                ("topic_partitions", "Partitions that an input topic has", ("topic",)),
                ("monitors", "States that are held: hop rank, of groups of ranks; hop job, of jobs", ("hop",)),
                ("lag_messages", "Messages of a held partition that are not read yet; of evidence: not yet in a "
                 "job's monitor", ("topic", "partition")),
                ("behind_seconds", "Seconds that a held partition is behind; hop job: behind what ranks send",
                 ("hop", "partition")),
                ("state_bytes", "Bytes of the stored states of the monitors that are held", ("hop",)),
            )
        }  # fmt: skip
        for name in ("partitions", "monitors", "state_bytes"):
            self._show(name, {(hop,): 0.0 for hop in HOPS})
        counters.registry.register(self)

    # --- from the event loop ----------------------------------------------------------------------------------------

    def saw_ends(self, ends: Mapping[int, Mapping[str, int]]) -> None:
        """Take the ends of topics (offset of the next message): by partition, then topic."""
        self._ends |= {Place(topic, number): end for number, own in ends.items() for topic, end in own.items()}
        if self._ends_at_s is None:  # before, there is no time to count from, and no such series
            about = "Since the broker last said where topics end"
            self.counters.gauge_of(
                "broker_silent_seconds", about, lambda: time.monotonic() - (self._ends_at_s or 0.0)
            )
        self._ends_at_s = time.monotonic()

    async def observe(self) -> None:
        """Observe the stages once."""
        self._observed_s = time.monotonic()
        readings = {place: reading for hop in self._hops for place, reading in self._readings(hop.stage)}
        self._health.observe(
            self._observed_s, readings, is_restored=self._is_restored(), ends_at_s=self._ends_at_s,
            is_sink_busy=self.counters.store_is_full, is_broker_away=self._is_broker_away(),
        )  # fmt: skip
        for page, why in (("ready", self.why_not_ready()), ("healthy", self.why_dead())):
            if (why is None) != self._said[page]:
                self._said[page] = why is None
                log = LOG.error if page == "healthy" and why else LOG.info
                log("event=%s%s", page if why is None else f"not_{page}", f" reason={why!r}" if why else "")
        taken, evidence = self.counters.operator_messages, self._sent().get("evidence", (0, 0))[0]
        for reason, to_do in self._flow.look(self._observed_s, Flow(taken, self._dead_letters.count, evidence)):
            LOG.error("event=no_alert_can_come reason=%r do=%r", reason, to_do)
        stages = {(hop.stage.hop,): hop.stage for hop in self._hops}
        monitors = {
            name: [own for state in stage.states.values() for own in state.tracked.items()]
            for name, stage in stages.items()
        }
        self._broken = [key.decode() for own in monitors.values() for key, one in own if is_broken(one)]
        ranks = (getattr(getattr(one, "monitor", None), "ranks", 0) for own in monitors.values() for _, one in own)
        self._ranks.set(sum(ranks))
        jobs = (getattr(one, "monitor", None) for own in monitors.values() for _, one in own)
        self._show_open(kind for job in jobs for kind in getattr(job, "open_kinds", ()))
        self._show("partitions", {name: len(stage.states) for name, stage in stages.items()})
        self._show("monitors", {name: len(own) for name, own in monitors.items()})
        self._show("lag_messages", {(at.topic, str(at.partition)): one.lag for at, one in readings.items()})
        now_s = self._now_s()
        self._show("behind_seconds", {
            (hop.stage.hop, str(partition)): max(now_s - until_s, 0.0)
            for hop in self._hops
            for partition, state in hop.stage.states.items()
            if (until_s := hop.until_s(partition, _done(hop.stage, state))) is not None
        })  # fmt: skip
        self._show("topic_partitions", {(topic,): n for topic, n in Counter(at.topic for at in self._ends).items()})
        self._looks += 1
        if self._looks % _SUM_EVERY == 1:
            self._show("state_bytes", {name: stage.state_bytes() for name, stage in stages.items()})

    def _show_open(self, found: Iterable[Labels]) -> None:
        for labels, number in (dict.fromkeys(product(SEVERITIES, VERDICT_KINDS), 0) | Counter(found)).items():
            self._open.labels(*labels).set(number)

    def _show(self, name: str, values: Mapping[Labels, float]) -> None:
        set_series(self._gauges[name], values, self._series.get(name, {}))
        self._series[name] = values

    def _readings(self, stage: StageLike) -> Iterable[tuple[Place, Reading]]:
        for partition, state in stage.states.items():
            read_to, done = state.read_to(), _done(stage, state)
            for topic in read_to:
                place = Place(topic, partition)
                if place in self._ends:
                    lag = max(self._ends[place] - done.get(topic, 0), 0)
                    yield place, Reading((read_to[topic], done.get(topic)), lag)

    # --- from the thread that serves pages --------------------------------------------------------------------------

    def healthz(self) -> Page:
        """Return 200 while a restart would mend nothing, else 503 with the reason."""
        return _verdict_page(self.why_dead(), self._notes())

    def readyz(self) -> Page:
        """Return 200 while all partitions are restored and read, and the database was reached, else 503 and why."""
        return _verdict_page(self.why_not_ready(), self._notes())

    def _notes(self) -> list[str]:
        """Return which monitors take long, and which are given nothing any more until their next start."""
        return [*self._watchdog.slow(), *(f"{name} is not judged: {BROKEN}" for name in self._broken)]

    def why_dead(self) -> str | None:
        """See `Health.why_dead`; besides, a thread that does not come back from a monitor never will."""
        lost = self._watchdog.slow(is_lost=True)
        if lost:
            return f"work that is given up must end; it does not, a new worker leaves it out: {'; '.join(lost)}"
        return self._health.why_dead(time.monotonic())

    def why_not_ready(self) -> str | None:
        """See `Health.why_not_ready`; besides, a database that was never reached may be wrong in the settings."""
        why = self._health.why_not_ready(time.monotonic())
        if why is None and self.counters.sink_is_missing:
            return "database must have answered since the start; it has not"
        return why

    def collect(self) -> Iterator[Metric]:
        """Yield the counters that the outbox and the dead letters keep; `prometheus_client` asks for them."""
        yield CounterMetricFamily(
            f"{PREFIX}dead_letters", "Messages sent to the topic deadletter", value=self._dead_letters.count
        )
        sent = self._sent()
        for name, about, part in (
            ("snapshots", "Records written to the snapshot topics", 0),
            ("snapshot_bytes", "Bytes of these records, before compression", 1),
        ):
            family = CounterMetricFamily(PREFIX + name, about, labels=("hop",))
            for hop in HOPS:
                family.add_metric((hop,), sent.get(f"{hop}_snapshots", (0, 0))[part])
            yield family
        topics = dict.fromkeys((*RESULTS, *(topic for topic in sent if not topic.endswith("_snapshots"))))
        for name, about, part in (
            ("sent_messages", "Messages handed over to Kafka, without snapshots", 0),
            ("sent_bytes", "Bytes of these messages, before compression", 1),
        ):
            family = CounterMetricFamily(PREFIX + name, about, labels=("topic",))
            for topic in topics:
                family.add_metric((topic,), sent.get(topic, (0, 0))[part])
            yield family

    def _sent(self) -> dict[str, tuple[int, int]]:
        """Return messages and bytes handed to Kafka, by topic (named without prefix)."""
        return {
            self._short_names[name]: sent for name, sent in self._outbox.sent().items() if name in self._short_names
        }


def serve_pages(observer: Observer, listen: str) -> ExitStack:
    """Serve the pages until the returned stack is closed; ``off`` serves none; raises `InputError`.

    A port that is taken is no reason not to work: then it is any free one, and the log names it.
    """
    stack = ExitStack()
    address = parse_listen(listen)
    if address is not None:
        pages = {
            "/metrics": metrics_page(observer.counters.registry),
            "/healthz": observer.healthz,
            "/readyz": observer.readyz,
        }
        server = PageServer(*address, pages, takes_other_port=True)
        stack.callback(server.close)
        LOG.info("event=metrics url=%s/metrics", server.url)
        if server.port != address[1] != 0:
            LOG.warning("event=metrics_port_taken wanted=%d port=%d", address[1], server.port)
    return stack


def _verdict_page(reason: str | None, notes: Sequence[str]) -> Page:
    return text_page("\n".join([reason or "ok", *notes]), 200 if reason is None else 503)


def _done(stage: StageLike, state: StateLike) -> dict[str, int]:
    """Return how far a partition is done: messages that wait for a job's monitor are not, ranks' parked ones are."""
    return state.position() if stage.hop == "job" else state.read_to()
