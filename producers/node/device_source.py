"""The devices of a node as a source: all samples of one rank travel together, one batch a second."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from irregulars.grouping import grouped
from irregulars.messages.announcements import Heartbeat, SourceProgress
from irregulars.messages.device_events import DeviceEvent, batch_of
from irregulars.messages.records import BATCH_SCHEMAS, GPU_HEALTH, UNKNOWN, Batch
from irregulars.producers.node.events import NodeEvents
from irregulars.producers.node.roster import HealthSample, Owner, Samples
from irregulars.producers.node.stacks import StackWatch
from irregulars.producers.publishing.sources import Record, take_records

_LOG: Final = logging.getLogger("irregulars.agent")
# Age at which samples are complete, ns: one that comes later is left out, and nothing waits for it.
_LAG_NS: Final = 500_000_000
_BATCH_S: Final = 1.0  # seconds for which samples are gathered for one batch
# Seconds after which a rank without devices is forgotten: as long as a worker keeps its state (`forget_s`). One that
# comes back before must be counted on, since its rows would be taken for those that are known.
_FORGET_S: Final = 86_400.0


class Feed(Protocol):
    """Gives samples to a `DeviceSource`; no base class is needed. Used by one thread."""

    def take(self) -> list[Samples]:
        """Take the samples since the last call; those of one device are later than all before. Never blocks."""

    def close(self) -> None:
        """Stop sampling; called once at least, and a second time does nothing."""


class DeviceSource:
    """Gathers samples of feeds into batches of ``bandwidth`` and ``gpu_health``.

    `health`: returns states of GPUs; None: they are not sampled. `health_s`: seconds for which states are gathered
    for one batch. `owners`: ranks whose devices are sampled: their watermark of ``bandwidth`` moves on also where a
    device gives no samples, since an iteration waits for it. `events`: reports of devices; None: they are not asked.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        health: Callable[[], list[HealthSample]] | None = None,
        health_s: float = 5.0,
        owners: Callable[[], Iterable[Owner]] = tuple,
        clock_s: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
        events: NodeEvents | None = None,
    ) -> None:
        self._events = events
        self._feeds, self._health = feeds, health or (lambda: [])
        self._stacks: StackWatch | None = None
        self._clock_s, self._next_s = clock_s, clock_s() + _BATCH_S
        self._health_s, self._next_health_s = health_s, clock_s() + health_s
        self._rows: Counter[tuple[str, Owner]] = Counter()
        self._owners, self._now_ns = owners, now_ns
        self._watermarks_ns: dict[tuple[str, Owner], int] = {}
        self._counted_s: dict[Owner, float] = {}  # when one of the two above changed last; the oldest comes first
        self._ready: deque[Batch | Heartbeat] = deque()
        self._is_clock_back = False

    def look_into(self, stacks: StackWatch) -> None:
        """Publish what is seen in processes, too: their rows are counted with those of the other events."""
        self._stacks = stacks

    def poll(self, max_records: int) -> Sequence[Record]:
        """Return the samples as batches, once a second."""
        now_s = self._clock_s()
        is_health_due = now_s >= self._next_health_s
        if now_s >= self._next_s or is_health_due:  # `Feed.take` brings the states too: none must be left behind
            self._next_s = now_s + _BATCH_S
            self._gather()
        if is_health_due:
            self._next_health_s = now_s + self._health_s
            until_ns = self._now_ns() - _LAG_NS
            states = self._health()
            for owner, samples in grouped((one.owner, one) for one in states).items():
                self._add("gpu_health", owner, until_ns, *_health(samples))
            if self._events is not None:
                self._add_events(self._events.of_health(states))
        return take_records(self._ready, max_records)

    def position(self) -> str:
        """Return an empty position: a sample that was missed can't be taken later."""
        return ""

    @property
    def is_exhausted(self) -> bool:
        """Never: devices have no end."""
        return False

    def close(self) -> None:
        """Stop sampling."""
        for feed in self._feeds:
            feed.close()
        for one in (self._events, self._stacks):
            if one is not None:
                one.close()

    def _add_events(self, events: Iterable[tuple[Owner, DeviceEvent]]) -> None:
        """Add events, which no watermark holds back: a log may report them late."""
        for owner, found in grouped(events).items():
            key = ("events", owner)
            header = replace(owner.header("events", self._rows[key], 0, ()), watermark_ns=None)
            self._ready.append(batch_of(found, header))
            self._rows[key] += len(found)
            self._keep(owner)

    def _gather(self) -> None:
        self._forget()
        for one in (self._events, self._stacks):
            if one is not None:
                self._add_events(one.take())
        sampled = grouped((one.owner, one) for feed in self._feeds for one in feed.take())
        until_ns = self._now_ns() - _LAG_NS
        back_ns = max(self._watermarks_ns.values(), default=until_ns) - until_ns
        if back_ns > _LAG_NS and not self._is_clock_back:
            effect = "samples are left out until it is where it was"
            _LOG.warning("event=clock_set_back seconds=%.1f effect=%r", back_ns / 1e9, effect)
        self._is_clock_back = back_ns > _LAG_NS
        for owner, samples in sampled.items():
            self._add("bandwidth", owner, until_ns, *_bandwidth(samples))
        for owner in dict.fromkeys(self._owners()):
            key = ("bandwidth", owner)
            if self._watermarks_ns.get(key, until_ns - 1) < until_ns:  # no batch of this owner moved it
                progress = {"bandwidth": SourceProgress(self._rows[key], self._move_watermark(key, until_ns))}
                own, start, since_ns = (owner.job, owner.attempt, owner.rank), owner.start, owner.since_ns
                self._ready.append(Heartbeat(*own, progress, start=start, since_ns=since_ns))

    def _add(
        self, schema: str, owner: Owner, until_ns: int, names: tuple[str, ...], columns: Mapping[str, np.ndarray]
    ) -> None:
        key = (schema, owner)
        promised_ns = self._watermarks_ns.get(key)
        # A watermark promised that no such sample follows, so a late one is left out.
        if promised_ns is not None:
            is_new = columns["time_ns"] > promised_ns
            columns = columns if is_new.all() else {name: column[is_new] for name, column in columns.items()}
        count = len(columns["time_ns"])
        if count:
            watermark_ns = self._move_watermark(key, until_ns)
            self._ready.append(Batch(owner.header(schema, self._rows[key], watermark_ns, names), columns))
            self._rows[key] += count

    def _move_watermark(self, key: tuple[str, Owner], until_ns: int) -> int:
        self._watermarks_ns[key] = max(until_ns, self._watermarks_ns.get(key, until_ns))
        self._keep(key[1])
        return self._watermarks_ns[key]

    def _keep(self, owner: Owner) -> None:
        self._counted_s.pop(owner, None)
        self._counted_s[owner] = self._clock_s()

    def _forget(self) -> None:
        """Forget the ranks that were counted last more than a day ago."""
        for owner, counted_s in list(self._counted_s.items()):
            if self._clock_s() - counted_s < _FORGET_S:
                return
            del self._counted_s[owner]
            for schema in BATCH_SCHEMAS:
                self._rows.pop((schema, owner), None)
                self._watermarks_ns.pop((schema, owner), None)


def _bandwidth(given: Sequence[Samples]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Return the names of the devices, and the columns of ``bandwidth`` in order of time."""
    given = [one for one in given if len(one.times_ns)]
    names = tuple(dict.fromkeys(one.device for one in given))
    if not given:
        return (), {"time_ns": np.empty(0, np.int64)}
    counts = [len(one.times_ns) for one in given]
    columns = {
        "time_ns": np.concatenate([one.times_ns for one in given]),
        "path": np.repeat(np.array([one.path for one in given], np.uint8), counts),
        "device": np.repeat(np.array([names.index(one.device) for one in given], np.uint16), counts),
        "tx_bytes_per_s": np.concatenate([one.rates[:, 0] for one in given]),
        "rx_bytes_per_s": np.concatenate([one.rates[:, 1] for one in given]),
    }
    # Samples of one device alone are in order already.
    if len(given) > 1:
        order = np.argsort(columns["time_ns"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
    return names, columns


def _health(given: Sequence[HealthSample]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Return the names of the devices, and the columns of ``gpu_health`` in order of time."""
    given = sorted(given, key=lambda one: one.time_ns)
    names = tuple(dict.fromkeys(one.device for one in given))
    columns: dict[str, np.ndarray] = {
        "time_ns": np.array([one.time_ns for one in given], dtype=np.int64),
        "device": np.array([names.index(one.device) for one in given], dtype=np.uint16),
    }
    for field in GPU_HEALTH:
        if field.name not in columns:
            values = [one.values.get(field.name) for one in given]
            if str(field.type) == "double":
                columns[field.name] = np.array([np.nan if value is None else value for value in values], np.float64)
            else:
                # NVML's counts with all bits set do not fit: they are unknown.
                fitting = (UNKNOWN if one is None or not abs(one) < -float(UNKNOWN) else int(one) for one in values)
                columns[field.name] = np.fromiter(fitting, np.int64)
    return names, columns
