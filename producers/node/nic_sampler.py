"""A thread that reads byte counters of NICs at a steady pace. It does nothing else: each read costs a microsecond."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Final

from irregulars.producers.node.counters import UNREADABLE
from irregulars.producers.node.nics import CounterFiles, Nic, read_count

_LOG: Final = logging.getLogger("irregulars.agent")
_RETRY_S: Final = 10.0
_KEPT_S: Final = 60.0
_LONGEST_SLEEP_S: Final = 0.5

Tick = tuple[tuple[str, ...], list[int]]
"""Names of the NICs, and for each of them time (ns since the epoch), sent, received: `UNREADABLE` where unknown."""


class NicSampler:
    """Reads counters every `period_s` in a thread of its own, until `close`.

    Parameters
    ----------
    period_s
        Seconds from one read to the next. A read that comes late is not made up for: a sample is of the time since
        the sample before, however long that was.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        # What nobody takes for a minute is forgotten, oldest first.
        self._ticks: deque[Tick] = deque(maxlen=max(int(_KEPT_S / period_s), 100))
        self._wanted: Mapping[str, Nic] = {}
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="irregulars-nics", daemon=True)
        self._thread.start()

    def watch(self, nics: Mapping[str, Nic]) -> None:
        """Read the counters of `nics` from now on, and no others."""
        self._wanted = dict(nics)

    def take(self) -> list[Tick]:
        """Take what was read since the last call, oldest first."""
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
            self._sleep_until(next_s)
        files.close()

    def _sleep_until(self, moment_s: float) -> None:
        """Sleep, and look now and then whether to end: the agent's end waits for that."""
        while (left_s := moment_s - time.monotonic()) > 0 and not self._is_stopping:
            time.sleep(min(left_s, _LONGEST_SLEEP_S))


class _OpenFiles:
    """The counters that are open now. Says once of each NIC that it can't be read, and once that it can again."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self._files: list[CounterFiles] = []
        self._descriptors: list[tuple[int, int]] = []
        self._wanted: Mapping[str, Nic] = {}
        self._failed: set[str] = set()
        self._retry_s = 0.0

    def follow(self, wanted: Mapping[str, Nic]) -> None:
        is_new = wanted is not self._wanted
        if is_new:
            self._wanted = wanted
            self._failed &= wanted.keys()
            self.close()
        if is_new or (self._failed and time.monotonic() >= self._retry_s):
            self._open_missing()

    def _open_missing(self) -> None:
        self._retry_s = time.monotonic() + _RETRY_S
        for name, nic in self._wanted.items():
            if name not in self.names:
                self._open(name, nic)

    def _open(self, name: str, nic: Nic) -> None:
        try:
            files = _opened(nic)
        except (OSError, ValueError) as error:
            self._note_failure(name, error)
            return
        if name in self._failed:
            _LOG.info("event=nic_back device=%s", name)
            self._failed.discard(name)
        self._files.append(files)
        self._note_files()

    def _note_files(self) -> None:
        self.names = tuple(files.nic.name for files in self._files)
        self._descriptors = [(files.tx, files.rx) for files in self._files]

    def _note_failure(self, name: str, error: Exception) -> None:
        if name not in self._failed:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            _LOG.warning("event=nic_unreadable device=%s file=%s reason=%r", name, self._wanted[name].tx, reason)
        self._failed.add(name)

    def read(self) -> Tick:
        values: list[int] = []
        now_ns, pread = time.time_ns, os.pread
        try:
            for sent, received in self._descriptors:
                values.append(now_ns())
                values.append(int(pread(sent, 24, 0)))
                values.append(int(pread(received, 24, 0)))
        except (OSError, ValueError):
            return self._read_each()
        return self.names, values

    def _read_each(self) -> Tick:
        """Read all again, and leave out those that can't be read."""
        names, values, now_ns, pread = self.names, [], time.time_ns, os.pread
        for files in self._files.copy():
            values.append(now_ns())
            try:
                values.append(int(pread(files.tx, 24, 0)))
                values.append(int(pread(files.rx, 24, 0)))
            except (OSError, ValueError) as error:
                del values[len(values) - len(values) % 3 :]
                values += (now_ns(), UNREADABLE, UNREADABLE)
                self._drop(files, error)
        return names, values

    def _drop(self, files: CounterFiles, error: Exception) -> None:
        self._note_failure(files.nic.name, error)
        self._retry_s = time.monotonic() + _RETRY_S
        files.close()
        self._files.remove(files)
        self._note_files()

    def close(self) -> None:
        for files in self._files:
            files.close()
        self._files.clear()
        self._note_files()


def _opened(nic: Nic) -> CounterFiles:
    """Open counters that can be read; raises `OSError` or `ValueError` where they can't, and leaves nothing open."""
    files = CounterFiles(nic)
    try:
        for descriptor in (files.tx, files.rx):
            read_count(descriptor)
    except (OSError, ValueError):
        files.close()
        raise
    return files
