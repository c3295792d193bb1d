"""The devices of a node as a source: all samples of one rank travel together, one batch a second."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from irregulars.messages.announcements import Heartbeat, SourceProgress
from irregulars.messages.records import GPU_HEALTH, UNKNOWN, Batch
from irregulars.producers.node.roster import Owner
from irregulars.producers.node.samples import Feed, HealthSample, Samples
from irregulars.producers.publishing.batches import take_rows
from irregulars.producers.publishing.sources import Record, row_count

_LOG: Final = logging.getLogger("irregulars.agent")
_LAG_NS: Final = 500_000_000
"""A sample is here so soon after its time; one that comes later is left out, and nothing waits for it."""


class DeviceSource:
    """Gathers what feeds sample into batches of ``bandwidth`` and ``gpu_health``.

    Parameters
    ----------
    feeds
        Samples of NICs and GPUs.
    health
        States of GPUs; None: nobody samples them.
    batch_s, health_s
        How long samples, and states, are gathered for one batch, seconds.
    owners
        Ranks whose devices are sampled: their watermark of ``bandwidth`` moves on also where a device says nothing,
        since an iteration waits for it.
    clock_s
        Seconds of a clock that never goes back.
    now_ns
        Time of the host, ns since the epoch.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        health: Callable[[], list[HealthSample]] | None = None,
        batch_s: float = 1.0,
        health_s: float = 5.0,
        owners: Callable[[], Iterable[Owner]] = tuple,
        clock_s: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._feeds, self._health = feeds, health or (lambda: [])
        self._batch_s, self._clock_s = batch_s, clock_s
        self._next_s = clock_s() + batch_s
        self._health_s, self._next_health_s = health_s, clock_s() + health_s
        self._rows: Counter[tuple[str, Owner]] = Counter()
        self._owners, self._now_ns = owners, now_ns
        self._watermarks_ns: dict[tuple[str, Owner], int] = {}
        self._ready: deque[Batch | Heartbeat] = deque()
        self._is_clock_back = False

    def poll(self, max_records: int) -> Sequence[Record]:
        """Return the samples as batches, once a second."""
        now_s = self._clock_s()
        is_health_due = now_s >= self._next_health_s
        if now_s >= self._next_s or is_health_due:  # states come with what feeds take: none must be left behind
            self._next_s = now_s + self._batch_s
            self._gather()
        if is_health_due:
            self._next_health_s = now_s + self._health_s
            self._gather_health()
        return self._take(max_records)

    def position(self) -> str:
        """Return an empty position: a sample that was missed can't be taken later."""
        return ""

    @property
    def is_exhausted(self) -> bool:
        """Never: devices are there as long as we look."""
        return False

    def close(self) -> None:
        """Stop sampling."""
        for feed in self._feeds:
            feed.close()

    def _gather(self) -> None:
        sampled = _by_owner(s for feed in self._feeds for s in feed.take())
        until_ns = self._now_ns() - _LAG_NS
        self._note_clock(until_ns)
        for owner, parts in sampled.items():
            self._add("bandwidth", owner, until_ns, *_bandwidth(parts))
        for owner in dict.fromkeys(self._owners()):
            if self._watermarks_ns.get(("bandwidth", owner), until_ns - 1) < until_ns:
                self._tell("bandwidth", owner, until_ns)

    def _note_clock(self, until_ns: int) -> None:
        back_ns = max(self._watermarks_ns.values(), default=until_ns) - until_ns
        if back_ns > _LAG_NS and not self._is_clock_back:
            effect = "samples are left out until it is where it was"
            _LOG.warning("event=clock_set_back seconds=%.1f effect=%r", back_ns / 1e9, effect)
        self._is_clock_back = back_ns > _LAG_NS

    def _gather_health(self) -> None:
        until_ns = self._now_ns() - _LAG_NS
        for owner, states in _by_owner(self._health()).items():
            self._add("gpu_health", owner, until_ns, *_health(states))

    def _add(
        self, schema: str, owner: Owner, until_ns: int, names: tuple[str, ...], columns: Mapping[str, np.ndarray]
    ) -> None:
        key = (schema, owner)
        promised_ns = self._watermarks_ns.get(key)
        if promised_ns is not None:
            is_new = columns["time_ns"] > promised_ns
            columns = columns if is_new.all() else {name: column[is_new] for name, column in columns.items()}
        count = len(columns["time_ns"])
        if count:
            watermark_ns = self._move_watermark(key, until_ns)
            self._ready.append(Batch(owner.header(schema, self._rows[key], watermark_ns, names), columns))
            self._rows[key] += count

    def _tell(self, schema: str, owner: Owner, until_ns: int) -> None:
        """Send a heartbeat with the watermark of a source that has no batch."""
        key = (schema, owner)
        progress = SourceProgress(self._rows[key], self._move_watermark(key, until_ns))
        told = Heartbeat(
            owner.job, owner.attempt, owner.rank, {schema: progress}, start=owner.start, since_ns=owner.since_ns
        )
        self._ready.append(told)

    def _move_watermark(self, key: tuple[str, Owner], until_ns: int) -> int:
        self._watermarks_ns[key] = max(until_ns, self._watermarks_ns.get(key, until_ns))
        return self._watermarks_ns[key]

    def _take(self, max_records: int) -> list[Batch | Heartbeat]:
        taken: list[Batch | Heartbeat] = []
        while self._ready and max_records > 0:
            record = self._ready.popleft()
            if isinstance(record, Batch) and len(record) > max_records:
                self._ready.appendleft(take_rows(record, max_records, len(record)))
                record = take_rows(record, 0, max_records)
            taken.append(record)
            max_records -= row_count(record)
        return taken


_Part = TypeVar("_Part", Samples, HealthSample)


def _by_owner(parts: Iterable[_Part]) -> dict[Owner, list[_Part]]:
    grouped: dict[Owner, list[_Part]] = {}
    for part in parts:
        grouped.setdefault(part.owner, []).append(part)
    return grouped


def _bandwidth(parts: Sequence[Samples]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    parts = [part for part in parts if len(part.times_ns)]
    names = tuple(dict.fromkeys(part.device for part in parts))
    if not parts:
        return (), {"time_ns": np.empty(0, np.int64)}
    columns = {
        "time_ns": np.concatenate([part.times_ns for part in parts]),
        "path": np.concatenate([np.full(len(part.times_ns), part.path, np.uint8) for part in parts]),
        "device": np.concatenate(
            [np.full(len(part.times_ns), names.index(part.device), np.uint16) for part in parts]
        ),
        "tx_bytes_per_s": np.concatenate([part.rates[:, 0] for part in parts]),
        "rx_bytes_per_s": np.concatenate([part.rates[:, 1] for part in parts]),
    }
    if len(parts) > 1:
        order = np.argsort(columns["time_ns"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
    return names, columns


def _health(states: Sequence[HealthSample]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    states = sorted(states, key=lambda state: state.time_ns)
    names = tuple(dict.fromkeys(state.device for state in states))
    columns: dict[str, np.ndarray] = {
        "time_ns": np.array([state.time_ns for state in states], dtype=np.int64),
        "device": np.array([names.index(state.device) for state in states], dtype=np.uint16),
    }
    for field in GPU_HEALTH:
        if field.name not in columns:
            values = [state.values.get(field.name) for state in states]
            columns[field.name] = _column(values, is_float=str(field.type) == "double")
    return names, columns


def _column(values: Sequence[float | None], *, is_float: bool) -> np.ndarray:
    if is_float:
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.array([_whole(value) for value in values], dtype=np.int64)


def _whole(value: float | None) -> int:
    """Return a number as the bus has it; one that it has no room for is not known."""
    return UNKNOWN if value is None or not abs(value) < -float(UNKNOWN) else int(value)
