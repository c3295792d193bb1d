"""Whether a worker is alive (else it should be started anew), is ready (its partitions are read), and is of use.

It is of use if the messages that it reads lead to judgements (`FlowWatch`): not if all are refused, or no iteration
closes. Pure: the observer hands over once a second how much there is to read and how far reading has come.

A worker is stuck if a partition has messages and none is read for long. Two reasons excuse it, because a restart
would not help: the database takes no rows (reading waits for it on purpose), and the broker does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

STUCK_S: Final = 300.0
"""A partition that has messages to read stands still for that long, s: the worker is stuck. Five times the patience
of the consumer's watchdog, and above the longest judgement of one step that was seen."""

STANDS_S: Final = 30.0  # the same for being ready, s: it may still heal by itself
LOOP_STUCK_S: Final = 120.0
"""The event loop has not come round for that long, s: above the longest restoring of one large state."""

LOOP_STANDS_S: Final = 15.0  # the same for being ready, s
BROKER_SILENT_S: Final = 30.0
"""So long after the broker last gave the ends of topics, s, it is unknown how much there is to read."""


class Place(NamedTuple):
    """A partition of an input topic (named without prefix)."""

    topic: str
    partition: int


class Reading(NamedTuple):
    """How far a place has been read, as any value that changes then; and how many messages are still to come."""

    mark: object
    lag: int


@dataclass(slots=True)
class _Standing:
    mark: object
    since_s: float
    has_moved: bool


class Health:
    """Liveness and readiness of a worker. `now_s`: any clock that only goes forward, the same in all calls."""

    def __init__(self, now_s: float) -> None:
        self._observed_s = now_s
        self._is_restored = False
        self._is_broker_away = False
        self._ends_at_s: float | None = None
        self._places: dict[Place, _Standing] = {}

    def observe(
        self, now_s: float, readings: Mapping[Place, Reading], *, is_restored: bool, ends_at_s: float | None,
        is_sink_busy: bool, is_broker_away: bool = False,
    ) -> None:  # fmt: skip
        """Note how far reading has come; called from the worker's event loop."""
        self._observed_s, self._is_restored, self._ends_at_s = now_s, is_restored, ends_at_s
        self._is_broker_away = is_broker_away
        is_excused = is_sink_busy or self._is_broker_silent(now_s)
        places = {}
        for place, reading in readings.items():
            before = self._places.get(place)
            has_moved = reading.lag == 0 or (before is not None and before.mark != reading.mark)
            if before is None:
                places[place] = _Standing(reading.mark, now_s, has_moved)
            else:
                # Excused time does not count: the wait begins anew when the excuse is over.
                since_s = now_s if has_moved or is_excused else before.since_s
                places[place] = _Standing(reading.mark, since_s, before.has_moved or has_moved)
        self._places = places

    def _is_broker_silent(self, now_s: float) -> bool:
        return self._ends_at_s is None or now_s - self._ends_at_s > BROKER_SILENT_S

    def why_dead(self, now_s: float) -> str | None:
        """Return why the worker should be started anew; `None`: nothing is wrong that this would mend."""
        return self._why_loop_stands(now_s, LOOP_STUCK_S) or self._why_places_stand(now_s, STUCK_S)

    def why_not_ready(self, now_s: float) -> str | None:
        """Return why the worker does not do its part; `None`: all its partitions are restored, and being read."""
        if self._is_broker_away:
            return "broker must answer; it does not"
        if not self._is_restored:
            return "partitions must be restored; they are not yet"
        if self._is_broker_silent(now_s):
            return f"broker must say within {BROKER_SILENT_S:g} s where topics end; it does not"
        unread = [place for place, standing in self._places.items() if not standing.has_moved]
        if unread:
            return f"partitions must be read; not yet: {_names(unread)}"
        return self._why_loop_stands(now_s, LOOP_STANDS_S) or self._why_places_stand(now_s, STANDS_S)

    def _why_loop_stands(self, now_s: float, limit_s: float) -> str | None:
        silent_s = now_s - self._observed_s
        if silent_s <= limit_s:
            return None
        return f"event loop must come round within {limit_s:g} s; it stands for {silent_s:.0f} s"

    def _why_places_stand(self, now_s: float, limit_s: float) -> str | None:
        standing = [place for place, one in self._places.items() if now_s - one.since_s > limit_s]
        if not standing:
            return None
        longest_s = max(now_s - self._places[place].since_s for place in standing)
        return (
            f"partitions with messages must be read on within {limit_s:g} s; "
            f"for {longest_s:.0f} s these stand: {_names(standing)}"
        )


def _names(places: list[Place]) -> str:
    return ", ".join(f"{place.topic}/{place.partition}" for place in sorted(places))


REFUSED_S: Final = 60.0
REFUSED_LEAST: Final = 10
"""Seconds without a message taken, and messages refused meanwhile, from which it is no single bad message."""

CLOSING_S: Final = 300.0
"""Above ``grace_s``, without a closed iteration while operators come. A checkpoint, or the first iterations, which
compile, may take some minutes."""


class Flow(NamedTuple):
    """Counts since the worker began: messages of operators taken, messages refused, messages of evidence sent."""

    taken: int
    refused: int
    evidence: int


@dataclass(slots=True)
class _Since:
    """When one of the counts last moved, and all counts then."""

    now_s: float
    flow: Flow


class FlowWatch:
    """Follows the counts of one worker.

    >>> watch = FlowWatch()
    >>> [len(watch.look(now_s, Flow(0, int(now_s), 0))) for now_s in (0.0, 30.0, 61.0, 90.0)]
    [0, 0, 1, 0]
    """

    def __init__(self, grace_s: float = 30.0) -> None:
        self._grace_s: Final = grace_s
        self._taken: _Since | None = None
        self._closed: _Since | None = None
        self._said: set[str] = set()

    def look(self, now_s: float, flow: Flow) -> list[tuple[str, str]]:
        """Return new reasons for which no alert can come, each with a command to run."""
        if self._taken is None or flow.taken != self._taken.flow.taken:
            self._taken = _Since(now_s, flow)
        # As long as nothing is taken no iteration can close: that time does not count.
        if (
            self._closed is None
            or flow.evidence != self._closed.flow.evidence
            or now_s - self._taken.now_s > REFUSED_S
        ):
            self._closed = _Since(now_s, flow)
        found = {}
        if now_s - self._taken.now_s >= REFUSED_S and flow.refused - self._taken.flow.refused >= REFUSED_LEAST:
            found["messages arrive, and all of them are refused"] = "irregulars deadletter list"
        is_unclosed = now_s - self._closed.now_s >= CLOSING_S + self._grace_s
        if is_unclosed and flow.taken != self._closed.flow.taken:
            found["operators arrive, and no iteration closes"] = "irregulars doctor --only jobs"
        new = [(reason, to_do) for reason, to_do in found.items() if reason not in self._said]
        self._said = set(found)
        return new
