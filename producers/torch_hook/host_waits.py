"""Waits of a thread outside of its program: for a processor, its quota, a disk, memory. From /proc and cgroups."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from operator import sub
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_DELAYS: Final = 39  # place of delayacct_blkio_ticks in ``stat``, counted behind the name
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_LOOK_NS: Final = 1_000_000_000  # until the group's quota is read again, where it had none
_WAITED_NS: Final = 100_000  # or until the thread waited so long for a processor: it may have a quota since
_BYTES: Final = 512  # of a file: more than any of them has in the lines that count
PRICE_SHARE: Final = 0.001
"""Share of a thread's time that readings may take: after one of 15 µs the next waits for 15 ms."""


class _Counters(NamedTuple):
    """Counters since the thread began, ns but for the last two."""

    now: int
    ran: int  # on a processor
    queued: int  # ready to run, and waiting for a processor
    throttled: int  # that the quota of its control group was spent
    blocks: int  # read or written by this thread
    faults: int  # of this thread, which read a page from a disk


class HostWaits:
    """Reads the counters of the thread that makes it; a counter that the machine lacks counts as 0.

    `proc`, `cgroups`: where these are mounted.
    """

    def __init__(self, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> None:
        own = proc / "self" / "task" / str(threading.get_native_id())
        self._schedstat = _opened(own / "schedstat")
        self._cpu_stat = _opened(*_cpu_stats(proc, cgroups))
        self._stalls = [
            _Stall(_opened(proc / "pressure" / "io"), _opened(own / "stat")),
            _Stall(_opened(proc / "pressure" / "memory"), None),
        ]
        self._has_quota, self._throttled_ns, self._look_ns, self._queued_ns = False, 0, 0, 0  # as of the last look
        self._before = self._read()
        self._price_ns = 0  # of one reading

    def take(self) -> tuple[int, Mapping[str, int]]:
        """Return the time of the reading, monotonic ns, and by the names of `PAUSES` how long the thread waited, ns.

        Nothing if that was so short ago that readings would take more than `PRICE_SHARE` of the time: the next
        reading covers it.
        """
        begun_ns = time.monotonic_ns()
        if begun_ns - self._before.now < self._price_ns / PRICE_SHARE:
            return begun_ns, {}
        before, self._before = self._before, self._read()
        # The least so far: a reading that was itself held up must not put off the next.
        self._price_ns = min(self._price_ns or self._before.now, self._before.now - begun_ns)
        wall, ran, queued, throttled, blocks, faults = map(sub, self._before, before)
        # Of a group of several threads, those that this one waits for may be throttled: but not while it ran itself.
        idle = max(wall - ran, 0)
        throttled = min(throttled, idle)
        waits = {"cpu_throttled": throttled}
        if queued > throttled:  # kernels differ in whether a throttled thread is queued
            waits |= {"cpu_wait": queued - throttled, "cpu_time": ran}
        # A thread waits for a disk or memory while it neither runs nor is ready to run: for this long at most.
        asleep = max(idle - queued, 0)
        for name, stall, moved in zip(("io_wait", "memory_pressure"), self._stalls, (blocks, faults), strict=True):
            waits[name] = min(stall.take(is_own=moved > 0), asleep)
        return self._before.now, waits

    def close(self) -> None:
        """Close the files."""
        stalls = [file for one in self._stalls for file in one.files]
        for file in (self._schedstat, self._cpu_stat, *stalls):
            if file is not None:
                os.close(file)
        self._schedstat = self._cpu_stat = None
        self._stalls = []

    def _read(self) -> _Counters:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        # A kernel without scheduler statistics has no such file.
        ran, queued = _content(self._schedstat).split()[:2] or (b"0", b"0")
        now_ns = time.monotonic_ns()
        # Without a quota the count of throttling stays 0: then one reading a second is enough.
        if self._has_quota or int(queued) - self._queued_ns >= _WAITED_NS or now_ns >= self._look_ns:
            self._queued_ns = int(queued)
            cpu = _content(self._cpu_stat)
            self._has_quota = _after(cpu, b"nr_periods ") > 0
            # Version 2 of cgroups counts µs, version 1 ns under another name.
            self._throttled_ns = _after(cpu, b"throttled_usec ") * 1000 or _after(cpu, b"throttled_time ")
            self._look_ns = now_ns + _LOOK_NS
        blocks = usage.ru_inblock + usage.ru_oublock
        # The time is read anew, at the end: `take` computes from it how long the reading took.
        return _Counters(time.monotonic_ns(), int(ran), int(queued), self._throttled_ns, blocks, usage.ru_majflt)


class _Stall:
    """Time in which threads waited for a disk, or for memory: as far as the machine counts it, a lower bound.

    `pressure`: counts all threads, in proportion to the processors in use. It counts as this thread's own where the
    thread moved blocks, or pages, in two readings one after the other: only then it is known for the time between
    them. `delays`: counts this thread alone, where the kernel does that (``sysctl kernel.task_delayacct=1``).
    """

    def __init__(self, pressure: int | None, delays: int | None) -> None:
        self.files = (pressure, delays)
        self._before: tuple[int, int] | None = None  # at the last reading

    def take(self, *, is_own: bool) -> int:
        """Return the time since the last reading, ns; 0 where it is not this thread's, or not known."""
        if not is_own:
            self._before = None
            return 0
        pressure, delays = map(_content, self.files)
        waited = delays.rpartition(b")")[2].split()  # behind the name of the program, which may hold anything
        delayed_ns = int(waited[_DELAYS]) * _TICK_NS if len(waited) > _DELAYS else 0
        before, self._before = self._before, (_after(pressure, b"total=") * 1000, delayed_ns)
        return 0 if before is None else max(map(sub, self._before, before))


def _opened(*paths: Path) -> int | None:
    """Open the first of these files that can be read."""
    for path in paths:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # of another version of cgroups, or not ours to read
            continue
    return None


def _content(file: int | None) -> bytes:
    try:
        return b"" if file is None else os.pread(file, _BYTES, 0)
    except OSError:  # the thread has ended, for example
        return b""


def _after(text: bytes, name: bytes) -> int:
    r"""Return the integer behind the first `name`, 0 if there is none.

    >>> _after(b"some avg10=0.00 total=177\nfull total=0", b"total=")
    177
    """
    at = text.find(name)
    return 0 if at < 0 else int(text[at + len(name) :].split(None, 1)[0])


def _cpu_stats(proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield where the quota of this process may be counted: in cgroup v1, then in v2."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    groups = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    for _, controllers, path in groups:
        if "cpu" in controllers.split(","):
            yield cgroups / controllers / path.lstrip("/") / "cpu.stat"
            yield cgroups / "cpu" / path.lstrip("/") / "cpu.stat"
    for _, controllers, path in groups:
        if not controllers:
            yield cgroups / path.lstrip("/") / "cpu.stat"
    yield cgroups / "cpu.stat"  # of a container that sees its own group as the root
