"""NIC counters as ``bandwidth`` samples of the ranks that use the NICs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from irregulars.messages.records import PATHS
from irregulars.producers.node.counters import UNREADABLE, CounterTrack
from irregulars.producers.node.nic_sampler import Tick
from irregulars.producers.node.nics import Nic
from irregulars.producers.node.roster import Roster
from irregulars.producers.node.samples import Samples

_LOG: Final = logging.getLogger("irregulars.agent")
_PATH: Final = PATHS.index("nic")


class Sampler(Protocol):
    """What the feed asks of `producers.node.nic_sampler.NicSampler`."""

    def watch(self, nics: Mapping[str, Nic]) -> None:
        """Read the counters of `nics` from now on, and no others."""

    def take(self) -> list[Tick]:
        """Take what was read since the last call, oldest first."""

    def close(self) -> None:
        """Stop reading."""


class NicFeed:
    """Samples the NICs that the roster's ranks use; each device's samples go to one rank.

    Parameters
    ----------
    roster
        Whose NICs; asked at each `take`.
    find
        Finds a NIC by its name; None where there is none.
    sampler
        Reads the counters.
    """

    def __init__(self, roster: Roster, find: Callable[[str], Nic | None], sampler: Sampler) -> None:
        self._roster, self._find, self._sampler = roster, find, sampler
        self._missing: set[str] = set()
        self._impossible: set[str] = set()
        self._watched: frozenset[str] = frozenset()
        self._tracks: dict[str, CounterTrack] = {}

    def take(self) -> list[Samples]:
        """Take the samples since the last call."""
        together = _together(self._sampler.take(), self._note_impossible)
        taken = [one for names, ticks in together for one in self._samples(names, ticks)]
        self._watch_those_in_use()
        return taken

    def close(self) -> None:
        """End the sampler."""
        self._sampler.close()

    def _watch_those_in_use(self) -> None:
        if self._roster.nics.keys() == self._watched:
            return
        self._watched = frozenset(self._roster.nics)
        found = {name: nic for name in sorted(self._watched) if (nic := self._look_up(name)) is not None}
        self._tracks = {name: self._tracks.get(name) or _track(nic) for name, nic in found.items()}
        self._sampler.watch(found)

    def _look_up(self, name: str) -> Nic | None:
        nic = self._find(name)
        if nic is None and name not in self._missing:
            self._missing.add(name)
            _LOG.warning("event=nic_missing device=%s reason='sysfs has no such device'", name)
        return nic

    def _note_impossible(self, name: str, count: int) -> None:
        if name not in self._impossible:
            self._impossible.add(name)
            _LOG.warning("event=nic_unreadable device=%s reason='a counter must be below 2^64; got %d'", name, count)

    def _samples(self, names: tuple[str, ...], ticks: np.ndarray) -> list[Samples]:
        """Rates from counts of shape (ticks, NICs, 3): time, sent, received."""
        found = []
        for place, name in enumerate(names):
            owner, track = self._roster.nics.get(name), self._tracks.get(name)
            if owner is not None and track is not None:
                times_ns, rates = track.rates(ticks[:, place, 0].astype(np.int64), ticks[:, place, 1:])
                found.append(Samples(owner, name, _PATH, times_ns, rates))
        return found


def _track(nic: Nic) -> CounterTrack:
    return CounterTrack(nic.name, nic.unit_bytes, nic.capacity_bytes_per_s)


def _together(
    ticks: Sequence[Tick], on_impossible: Callable[[str, int], None]
) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """Ticks of the same NICs that follow one another, as one array of shape (ticks, NICs, 3).

    A count that is none, as drivers with signed counters write, is unreadable; `on_impossible` is told.
    """
    groups: list[tuple[tuple[str, ...], list[int]]] = []
    for names, values in ticks:
        if not groups or groups[-1][0] != names:
            groups.append((names, []))
        groups[-1][1].extend(values)
    return [(names, _counts(names, flat, on_impossible).reshape(-1, len(names), 3)) for names, flat in groups]


def _counts(names: tuple[str, ...], flat: list[int], on_impossible: Callable[[str, int], None]) -> np.ndarray:
    try:
        return np.array(flat, dtype=np.uint64)
    except OverflowError:
        for place, value in enumerate(flat):
            if not 0 <= value <= UNREADABLE:
                on_impossible(names[place // 3 % len(names)], value)
                flat[place] = UNREADABLE
        return np.array(flat, dtype=np.uint64)
