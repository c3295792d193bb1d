"""A simulated job as flat columns, as a reader sees it who has nothing but its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import RECV, SEND, Batch
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import TIDY, SimulatorSettings
from irregulars.producers.simulator.source import SimulatorSource

Tidy = Callable[..., SimulatorSettings]
"""Makes settings of a job without noise, in which effects can be measured to the microsecond."""
Key = tuple[str, int, int, int]
"""Communicator and sequence of a transfer, and its sender and receiver; these are -1 of a collective."""


@dataclass(frozen=True)
class Recorded:
    """Columns of all ranks together, with `rank`, and the name of the communicator and device."""

    announcements: tuple[Announcement, ...]
    commops: dict[str, np.ndarray]
    iterations: dict[str, np.ndarray]
    bandwidth: dict[str, np.ndarray]

    def iteration_s(self) -> np.ndarray:
        """Time of each iteration: the largest of its ranks'."""
        result = np.zeros(int(self.iterations["iteration"].max()) + 1)
        np.maximum.at(result, self.iterations["iteration"], self.iterations["elapsed_ns"] / 1e9)
        return result

    def operators(self, rank: int, iteration: int) -> tuple[np.ndarray, ...]:
        """Rows, communicator, start and end of what a rank did in an iteration; one that never ended ends at once."""
        columns = self.commops
        rows = np.flatnonzero((columns["rank"] == rank) & (columns["iteration"] == iteration))
        start = columns["start_ns"][rows]
        elapsed_ns = np.nan_to_num(columns["elapsed_ns"][rows]).astype(np.int64)
        return rows, columns["communicator"][rows], start, start + elapsed_ns

    def gaps_ns(self, iteration: int) -> np.ndarray:
        """Per rank: all gaps between its operators."""
        found = [self.operators(rank, iteration) for rank in range(len(self.announcements))]
        return np.array([np.maximum(start[1:] - end[:-1], 0).sum() for *_, start, end in found])

    def transfers(self) -> dict[Key, tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Per collective and per message: its iteration, the ranks, when each came and when each left.

        A message has its sender first.
        """
        columns = self.commops
        is_send, is_p2p = columns["operator"] == SEND, np.isin(columns["operator"], (SEND, RECV))
        source = np.where(is_p2p, np.where(is_send, columns["rank"], columns["peer"]), -1)
        target = np.where(is_p2p, np.where(is_send, columns["peer"], columns["rank"]), -1)
        names, name = np.unique(columns["communicator"], return_inverse=True)
        order = np.lexsort((columns["operator"] == RECV, target, source, columns["sequence"], name))
        key = np.stack([name, columns["sequence"], source, target])[:, order]
        firsts = np.flatnonzero(np.any(np.diff(key, prepend=-2), axis=0))
        result = {}
        for rows in np.split(order, firsts[1:]):
            first = rows[0]
            where = (str(names[name[first]]), int(columns["sequence"][first]), int(source[first]), int(target[first]))
            came = columns["start_ns"][rows]
            left = came + columns["elapsed_ns"][rows].astype(np.int64)
            result[where] = int(columns["iteration"][first]), columns["rank"][rows], came, left
        return result


def faulty(base: SimulatorSettings, *texts: str) -> SimulatorSettings:
    return replace(base, faults=tuple(parse_fault(text) for text in texts))


def times_s(settings: SimulatorSettings) -> np.ndarray:
    engine = Engine(settings)
    return np.array([engine.advance().elapsed_ns for _ in range(settings.iterations)]) / 1e9


def record(settings: SimulatorSettings) -> Recorded:
    source = SimulatorSource(settings)
    announcements, batches = [], []
    while not source.is_exhausted:
        for polled in source.poll(1_000_000):
            (batches if isinstance(polled, Batch) else announcements).append(polled)
    return Recorded(tuple(announcements), *(_columns(batches, s) for s in ("commops", "iterations", "bandwidth")))


def _columns(batches: list[Batch], schema: str) -> dict[str, np.ndarray]:
    own = [batch for batch in batches if batch.header.schema == schema]
    if not own:
        return {}
    columns = {name: np.concatenate([batch.columns[name] for batch in own]) for name in own[0].columns}
    columns["rank"] = np.concatenate([np.full(len(batch), batch.header.rank) for batch in own])
    for name in {"communicator", "device"} & columns.keys():
        columns[name] = np.concatenate([np.array(b.header.names, dtype=object)[b.columns[name]] for b in own])
        columns[name] = columns[name].astype(str)
    return columns


@pytest.fixture
def tidy() -> Tidy:
    return lambda **values: SimulatorSettings(**({**TIDY} | {"iterations": 6} | values))
