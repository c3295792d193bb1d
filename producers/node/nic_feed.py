"""NIC counters as ``bandwidth`` samples of the ranks that use the NICs. A thread reads them at a steady pace."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from irregulars.messages.records import PATHS
from irregulars.producers.node.counters import UNREADABLE, CounterTrack
from irregulars.producers.node.roster import Roster, Samples
from irregulars.producers.node.sysfs import Nic

_LOG: Final = logging.getLogger("irregulars.agent")
_PATH: Final = PATHS.index("nic")
_RETRY_S: Final = 10.0
_KEPT_S: Final = 60.0
_LONGEST_SLEEP_S: Final = 0.5
_LONGEST_COUNT: Final = 24  # 20 digits and a line feed
# Names of the NICs, and for each of them time (ns since the epoch), sent, received: `UNREADABLE` where unknown.
Tick = tuple[tuple[str, ...], list[int]]


class NicFeed:
    """Samples the NICs that the roster's ranks use; each device's samples go to one rank."""

    def __init__(self, roster: Roster, find: Callable[[str], Nic | None], sampler: NicSampler) -> None:
        self._roster, self._find, self._sampler = roster, find, sampler
        self._missing: set[str] = set()
        self._impossible: set[str] = set()
        self._watched: frozenset[str] = frozenset()
        self._tracks: dict[str, CounterTrack] = {}

    def take(self) -> list[Samples]:
        """Take the samples since the last call."""
        runs: list[tuple[tuple[str, ...], list[int]]] = []  # ticks of the same NICs that follow one another
        for names, values in self._sampler.take():
            if not runs or runs[-1][0] != names:
                runs.append((names, []))
            runs[-1][1].extend(values)
        taken = []
        for names, flat in runs:
            ticks = self._counts(names, flat).reshape(-1, len(names), 3)  # (ticks, NICs, [time, sent, received])
            for at, name in enumerate(names):
                owner, track = self._roster.nics.get(name), self._tracks.get(name)
                # The tick may be from before its rank ended, or the NIC went out of use.
                if owner is not None and track is not None:
                    times_ns, rates = track.rates(ticks[:, at, 0].astype(np.int64), ticks[:, at, 1:])
                    taken.append(Samples(owner, name, _PATH, times_ns, rates))
        if self._roster.nics.keys() != self._watched:
            self._watch_those_in_use()
        return taken

    def close(self) -> None:
        """Close the sampler."""
        self._sampler.close()

    def _watch_those_in_use(self) -> None:
        self._watched = frozenset(self._roster.nics)
        found = {}
        for name in sorted(self._watched):
            nic = self._find(name)
            if nic is not None:
                found[name] = nic
            elif name not in self._missing:
                self._missing.add(name)
                _LOG.warning("event=nic_missing device=%s reason='sysfs has no such device'", name)
        # A NIC that stays in use keeps its track, and so its last counts: no interval is lost.
        self._tracks = {
            name: self._tracks.get(name) or CounterTrack(nic.name, nic.unit_bytes, nic.capacity_bytes_per_s)
            for name, nic in found.items()
        }
        self._sampler.watch(found)

    def _counts(self, names: tuple[str, ...], flat: list[int]) -> np.ndarray:
        try:
            return np.array(flat, dtype=np.uint64)
        except OverflowError:  # drivers with signed counters write such counts: they are unknown
            for at, value in enumerate(flat):
                if not 0 <= value <= UNREADABLE:
                    flat[at] = UNREADABLE
                    # Three values a NIC: of two NICs, value 10 is of the second tick, and of NIC 10 // 3 % 2 = 1.
                    name = names[at // 3 % len(names)]
                    if name not in self._impossible:
                        self._impossible.add(name)
                        reason = f"a counter must be below 2^64; got {value}"
                        _LOG.warning("event=nic_unreadable device=%s reason=%r", name, reason)
            return np.array(flat, dtype=np.uint64)


class NicSampler:
    """Reads counters every `period_s` in a thread of its own, until `close`.

    The thread does nothing else: each read costs a microsecond.

    `period_s`: seconds from one read to the next. A read that comes late is not made up for: a sample is of the time
    since the sample before, however long that was.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        # Ticks that are not taken for a minute are dropped, oldest first.
        self._ticks: deque[Tick] = deque(maxlen=max(int(_KEPT_S / period_s), 100))
        self._wanted: Mapping[str, Nic] = {}
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="irregulars-nics", daemon=True)
        self._thread.start()

    def watch(self, nics: Mapping[str, Nic]) -> None:
        """Read the counters of `nics` from now on, and no others."""
        self._wanted = dict(nics)

    def take(self) -> list[Tick]:
        """Take the ticks since the last call, oldest first."""
        return [self._ticks.popleft() for _ in range(len(self._ticks))]

    def close(self) -> None:
        """End the thread; a second time does nothing."""
        self._is_stopping = True
        self._thread.join()

    def _run(self) -> None:
        files = _OpenFiles()
        next_s = time.monotonic()
        while not self._is_stopping:
            files.follow(self._wanted)
            if files.names:
                self._ticks.append(files.read())
            next_s = max(next_s + self._period_s, time.monotonic())
            # In pieces: the agent's end waits for this thread.
            while (left_s := next_s - time.monotonic()) > 0 and not self._is_stopping:
                time.sleep(min(left_s, _LONGEST_SLEEP_S))
        files.close()


class _OpenFiles:
    """The counters that are open now. Logs once of each NIC that it can't be read, and once that it can again."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self._files: dict[str, list[int]] = {}  # by name: the descriptors of both counters; one system call reads one
        self._wanted: Mapping[str, Nic] = {}
        self._failed: set[str] = set()
        self._retry_s = 0.0

    def follow(self, wanted: Mapping[str, Nic]) -> None:
        is_new = wanted is not self._wanted
        if is_new:
            self._wanted = wanted
            # Of a NIC that comes into use again a failure is logged again.
            self._failed &= wanted.keys()
            self.close()
        if is_new or (self._failed and time.monotonic() >= self._retry_s):
            self._retry_s = time.monotonic() + _RETRY_S
            for name, nic in self._wanted.items():
                if name not in self._files:
                    self._open(name, nic)

    def _open(self, name: str, nic: Nic) -> None:
        descriptors = self._files[name] = []
        try:
            for path in (nic.tx, nic.rx):
                descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                # A counter that opens and can't be read, or holds no number, has failed from the start.
                int(os.pread(descriptors[-1], _LONGEST_COUNT, 0))
        except (OSError, ValueError) as error:
            self._close(name)
            self._log_failure(name, error)
            return
        self.names = tuple(self._files)
        if name in self._failed:
            _LOG.info("event=nic_back device=%s", name)
            self._failed.discard(name)

    def _close(self, name: str) -> None:
        for descriptor in self._files.pop(name):
            os.close(descriptor)
        self.names = tuple(self._files)

    def _log_failure(self, name: str, error: Exception) -> None:
        if name not in self._failed:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            _LOG.warning("event=nic_unreadable device=%s file=%s reason=%r", name, self._wanted[name].tx, reason)
        self._failed.add(name)

    def read(self) -> Tick:
        """Read all counters, and close those that can't be read."""
        names, values = self.names, list[int]()
        now_ns, pread = time.time_ns, os.pread
        for name in names:
            try:
                sent, received = self._files[name]
                values += (now_ns(), int(pread(sent, _LONGEST_COUNT, 0)), int(pread(received, _LONGEST_COUNT, 0)))
            except (OSError, ValueError) as error:
                values += (now_ns(), UNREADABLE, UNREADABLE)
                self._log_failure(name, error)
                self._retry_s = time.monotonic() + _RETRY_S
                self._close(name)
        return names, values

    def close(self) -> None:
        for name in self.names:
            self._close(name)
