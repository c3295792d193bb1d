"""Looks at a worker's stages each second, from their event loop; `worker_pages` shows what it saw."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.topics import TOPICS, TopicSettings
from irregulars.pages import Page, text_page
from irregulars.streams.health.monitor_faults import BROKEN, Watched, is_broken
from irregulars.streams.health.watchdog import Watchdog
from irregulars.streams.telemetry.counters import Counters
from irregulars.streams.telemetry.flow_watch import Flow, FlowWatch
from irregulars.streams.telemetry.health import Health, Place, Reading

LOG: Final = logging.getLogger("irregulars.worker")
OBSERVE_S: Final = 1.0
"""Between two looks at the stages, s: far below what `streams.telemetry.health` waits for anything."""

_SUM_EVERY: Final = 15
"""Looks from one sum of state bytes to the next: it goes through the records of all monitors."""


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

    @property
    def hop(self) -> str:
        """See Stage."""

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


@dataclass(frozen=True, slots=True)
class View:
    """What one look saw.

    Parameters
    ----------
    lags
        Messages still to be read, by place.
    behind_s
        For how long everything before has been read, by hop and partition, s.
    partitions, monitors
        How many are held, by hop.
    ranks
        Ranks that were announced and have not ended.
    state_bytes
        Records that hold the states of what is held, by hop.
    topic_partitions
        How many partitions the input topics have, whoever holds them, by topic.
    broken
        Jobs, or ranks of jobs, whose monitors are given nothing any more.
    """

    lags: Mapping[Place, int] = field(default_factory=dict)
    behind_s: Mapping[tuple[str, int], float] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    monitors: Mapping[str, int] = field(default_factory=dict)
    ranks: int = 0
    state_bytes: Mapping[str, int] = field(default_factory=dict)
    topic_partitions: Mapping[str, int] = field(default_factory=dict)
    broken: Sequence[str] = ()


class Observer:
    """What a worker shows of itself.

    Parameters
    ----------
    counters, outbox, dead_letters, topics, group
        Of the worker.
    hops
        Its stages.
    is_restored
        Whether everything that was assigned to the worker is restored.
    now_s
        The worker's clock, since 1970.
    grace_s
        How long the worker waits for a source or a rank.
    is_broker_away
        Whether the broker has not answered for some seconds.
    watchdog
        Who looks at the work of monitors.
    """

    def __init__(
        self,
        counters: Counters,
        outbox: Outbox,
        dead_letters: DeadLetters,
        topics: TopicSettings,
        group: str,
        hops: Sequence[Hop],
        is_restored: Callable[[], bool],
        now_s: Callable[[], float],
        grace_s: float = 30.0,
        is_broker_away: Callable[[], bool] = lambda: False,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.counters: Final = counters
        self.group: Final = group
        self.view = View()
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
        self._said: Final = {"ready": False, "healthy": True}
        self._ends: dict[Place, int] = {}
        self._ends_at_s: float | None = None

    # --- from the event loop ----------------------------------------------------------------------------------------

    def saw_ends(self, ends: Mapping[int, Mapping[str, int]]) -> None:
        """Note where topics end (offset of the next message): by partition, then topic."""
        self._ends |= {Place(topic, number): end for number, own in ends.items() for topic, end in own.items()}
        self._ends_at_s = time.monotonic()

    async def observe(self) -> None:
        """Look at the stages once."""
        self._observed_s = time.monotonic()
        readings = {place: reading for hop in self._hops for place, reading in self._readings(hop.stage)}
        self._health.observe(
            self._observed_s,
            readings,
            is_restored=self._is_restored(),
            ends_at_s=self._ends_at_s,
            is_sink_busy=self.counters.store_is_full,
            is_broker_away=self._is_broker_away(),
        )
        self._tell_changes()
        self._tell_blocked()
        self.view = View(
            lags={place: reading.lag for place, reading in readings.items()},
            behind_s=dict(self._behind_s()),
            partitions={hop.stage.hop: len(hop.stage.states) for hop in self._hops},
            monitors={hop.stage.hop: _count_monitors(hop.stage) for hop in self._hops},
            ranks=sum(_count_ranks(hop.stage) for hop in self._hops),
            state_bytes=self._state_bytes(),
            topic_partitions=self._topic_partitions(),
            broken=[name for hop in self._hops for name in _broken(hop.stage)],
        )

    def _tell_changes(self) -> None:
        """Write a line when the worker becomes ready or is no more, and when it is stuck or goes on."""
        for page, reason in (("ready", self.why_not_ready()), ("healthy", self.why_dead())):
            if (reason is None) != self._said[page]:
                self._said[page] = reason is None
                log = LOG.error if page == "healthy" and reason else LOG.info
                log("event=%s%s", page if reason is None else f"not_{page}", f" reason={reason!r}" if reason else "")

    def _tell_blocked(self) -> None:
        """Write a line when what ranks send begins to lead nowhere."""
        taken, evidence = self.counters.batches.get("commops", 0), self.sent().get("evidence", (0, 0))[0]
        for reason, to_do in self._flow.look(self._observed_s, Flow(taken, self.dead_letters, evidence)):
            LOG.error("event=no_alert_can_come reason=%r do=%r", reason, to_do)

    def _readings(self, stage: StageLike) -> Iterable[tuple[Place, Reading]]:
        for partition, state in stage.states.items():
            read_to, done = state.read_to(), _done(stage, state)
            for topic in read_to:
                place = Place(topic, partition)
                if place in self._ends:
                    lag = max(self._ends[place] - done.get(topic, 0), 0)
                    yield place, Reading((read_to[topic], done.get(topic)), lag)

    def _behind_s(self) -> Iterable[tuple[tuple[str, int], float]]:
        now_s = self._now_s()
        for hop in self._hops:
            for partition, state in hop.stage.states.items():
                until_s = hop.until_s(partition, _done(hop.stage, state))
                if until_s is not None:
                    yield (hop.stage.hop, partition), max(now_s - until_s, 0.0)

    def _state_bytes(self) -> Mapping[str, int]:
        self._looks += 1
        if self._looks % _SUM_EVERY != 1:
            return self.view.state_bytes
        return {hop.stage.hop: hop.stage.state_bytes() for hop in self._hops}

    def _topic_partitions(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for place in self._ends:
            counts[place.topic] = counts.get(place.topic, 0) + 1
        return counts

    # --- from the thread that serves pages --------------------------------------------------------------------------

    def healthz(self) -> Page:
        """Return 200 while a restart would mend nothing, else 503 with the reason."""
        return _verdict_page(self.why_dead(), self._notes())

    def readyz(self) -> Page:
        """Return 200 while all partitions are restored and read, and the database was reached, else 503 and why."""
        return _verdict_page(self.why_not_ready(), self._notes())

    def _notes(self) -> list[str]:
        """Return which monitors take long, and which are given nothing any more until their next start."""
        return [*self._watchdog.slow(), *(f"{name} is not judged: {BROKEN}" for name in self.view.broken)]

    def why_dead(self) -> str | None:
        """See `Health.why_dead`; besides, a thread that does not come back from a monitor never will."""
        lost = self._watchdog.slow(is_lost=True)
        if lost:
            return f"work that is given up must end; it does not, a new worker leaves it out: {'; '.join(lost)}"
        return self._health.why_dead(time.monotonic())

    def why_not_ready(self) -> str | None:
        """See `Health.why_not_ready`; besides, a database that was never reached may stand wrong in the settings."""
        why = self._health.why_not_ready(time.monotonic())
        if why is None and self.counters.sink_is_missing:
            return "database must have answered since the start; it has not"
        return why

    @property
    def loop_silent_s(self) -> float:
        """Seconds since the event loop last came round."""
        return time.monotonic() - self._observed_s

    @property
    def broker_silent_s(self) -> float | None:
        """Seconds since the broker last said where topics end; `None`: never yet."""
        return None if self._ends_at_s is None else time.monotonic() - self._ends_at_s

    @property
    def unstored_s(self) -> float:
        """Seconds for which a row has waited for the database; 0: all is stored."""
        since_s = self.counters.unstored_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    @property
    def dead_letters(self) -> int:
        """Messages that were buried."""
        return self._dead_letters.count

    def sent(self) -> dict[str, tuple[int, int]]:
        """Return messages and bytes handed to Kafka, by topic (named without prefix)."""
        return {
            self._short_names[name]: sent for name, sent in self._outbox.sent().items() if name in self._short_names
        }


def _verdict_page(reason: str | None, notes: Sequence[str]) -> Page:
    return text_page("\n".join([reason or "ok", *notes]), 200 if reason is None else 503)


def _done(stage: StageLike, state: StateLike) -> dict[str, int]:
    """What waits for a job's monitor is still to be judged; a rank's parked message waits for its announcement."""
    return state.position() if stage.hop == "job" else state.read_to()


def _count_monitors(stage: StageLike) -> int:
    return sum(len(state.tracked) for state in stage.states.values())


def _broken(stage: StageLike) -> Iterable[str]:
    for state in stage.states.values():
        yield from (key.decode() for key, one in state.tracked.items() if is_broken(one))


def _count_ranks(stage: StageLike) -> int:
    monitors = (getattr(one, "monitor", None) for state in stage.states.values() for one in state.tracked.values())
    return sum(getattr(monitor, "ranks", 0) for monitor in monitors)
