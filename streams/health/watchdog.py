"""Work of monitors that does not come back: one that loops, blocks or allocates must not take the others with it.

A thread inspects running work. Work that takes long is logged, and from a limit on it is given up: `GaveUp` is raised
into its thread. That ends anything that runs in Python. A call into C that never returns keeps its thread, which is
*lost*: the others go on in another one, and ``/healthz`` asks for a new worker. The thread's processor time counts,
so that work is not given up because the machine is busy; of blocked work, several times as long by the wall clock.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import logging
import mmap
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

MOST_CRASHES: Final = 3
"""Workers that end in a row at one place before it is given up: one may be chance, as two in a row may be."""

_SLOT: Final = struct.Struct("<IqI")  # who and where, and how many ended there so far with this one
_SLOTS: Final = 256
_EMPTY: Final = bytes(_SLOT.size)


class CrashMarks:
    """Marks of the messages at which a process's threads are, for the case that it ends without a word.

    Out of memory, or by a fault in C. Before a monitor is given a message, the message's place goes into a file that
    is mapped into memory, and out of it afterwards. That costs half a microsecond, and the file outlives the process.
    A worker that finds the same place in it at several starts in a row knows that the message ends workers, and gives
    up on it instead.

    `directory`: where the file is; workers may share it.
    """

    def __init__(self, directory: Path) -> None:
        # The first file of which no other process has the lock; that goes with the process, however it ends.
        for number in itertools.count():
            file = (directory / f"at-work-{number}").open("a+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:  # another process has it
                file.close()
        self._file: Final = file
        self._file.truncate(_SLOTS * _SLOT.size)
        self._marks: Final = mmap.mmap(self._file.fileno(), _SLOTS * _SLOT.size)
        found = (_SLOT.unpack_from(self._marks, slot * _SLOT.size) for slot in range(_SLOTS))
        self._ended: Final = {(who, at): count for who, at, count in found if count}
        # Marks that were found are in `_ended` now; the file holds only those of this process.
        self._marks[:] = bytes(len(self._marks))
        self._slots: Final = itertools.count()

    def close(self) -> None:
        """Leave the file, with its marks, to another process."""
        self._marks.close()
        self._file.close()

    def new_slot(self) -> int:
        """Return a place for one thread's marks."""
        # More threads than slots share some: then a crash may go uncounted.
        return next(self._slots) % _SLOTS * _SLOT.size

    def begin(self, slot: int, hop: int, key: bytes, offset: int) -> bool:
        """Put a mark; return whether workers have ended at this place too often. `hop` is any number of its own."""
        who = zlib.crc32(key, hop)
        # Counted once: a place that is passed now has not ended this worker.
        count = self._ended.pop((who, offset), 0) if self._ended else 0
        if count < MOST_CRASHES:
            _SLOT.pack_into(self._marks, slot, who, offset, count + 1)
        return count >= MOST_CRASHES

    def end(self, slot: int) -> None:
        """Take the mark away."""
        self._marks[slot : slot + _SLOT.size] = _EMPTY


LOG: Final = logging.getLogger("irregulars.worker")
T = TypeVar("T")
_LOOK_S: Final = 0.25
_AGAIN_S: Final = 5.0  # work that catches `GaveUp` gets it again
_UNKNOWN_BYTES: Final = 1 << 60
_BLOCKED_SHARE: Final = 0.02
"""Of a core: work that has had less, though it had its limit's multiple of time, waits for something."""


class GaveUp(BaseException):
    """Raised into a thread whose work is given up; no `Exception`, so that no monitor takes it for one of its own."""


class WorkGivenUp(Exception):
    """A monitor's work was given up: which limit it broke, after how long, and whether it ended workers."""

    def __init__(self, reason: str, seconds: float = 0.0, *, is_fatal: bool = False) -> None:
        super().__init__(reason)
        self.seconds: Final = seconds
        self.is_fatal: Final = is_fatal


@dataclass(frozen=True, slots=True)
class Limits:
    """How long, and how large, a monitor's work may be."""

    slow_s: float = 10.0  # work that has run for longer is logged
    # job_cpu_s, job_cpu_s_per_rank: Processor time of one judgement, s. An irregular iteration of 100,000 ranks takes
    # 19 s: a rank may take five times that, and a message of a small job may complete thousands of iterations, of
    # some ms each.
    job_cpu_s: float = 60.0
    job_cpu_s_per_rank: float = 0.001
    # Processor time of a message, a second's tick or a drain of one group in the first hop, s, where some ms are
    # usual and everybody waits
    rank_cpu_s: float = 5.0
    # The same by the wall clock, as a multiple, of work that takes next to no processor time: it is blocked
    wall_ratio: float = 4.0
    lost_s: float = 10.0  # a thread that has not come back for that long after its work was given up is lost
    # Share of the free memory of the machine, or of the process's cgroup, by which the process may grow meanwhile
    memory_ratio: float = 0.5


@dataclass(slots=True)
class _Seen:
    """Notes of the watchdog's thread on work that it finds running."""

    cpu_s: float
    bytes_: int
    most_bytes: int
    is_told: bool = False
    is_lost: bool = False
    given_up_s: float = 0.0


@dataclass(eq=False, slots=True)
class _Work:
    """One run of a guard. There is one for each message: it costs little to make."""

    key: bytes
    cpu_limit_s: float
    on_lost: Callable[[WorkGivenUp], None] | None
    began_s: float
    seen: _Seen | None = None
    reason: str | None = None  # why it is given up
    raised_s: float | None = None
    away_since_s: float | None = None  # it waits for Kafka, and is not to be disturbed
    away_s: float = 0.0


class Guard:
    """Runs the work of one thread, the one that makes it; see `Watchdog.guard`."""

    def __init__(self, hop: str, marks: CrashMarks | None) -> None:
        self.hop: Final = hop
        self.work: _Work | None = None
        self.lock: Final = threading.Lock()
        self.thread_id: Final = threading.get_ident()
        self._clock: Final = time.pthread_getcpuclockid(self.thread_id)
        self._marks: Final = marks
        self._slot: Final = 0 if marks is None else marks.new_slot()
        self._hop: Final = zlib.crc32(hop.encode())

    def run(
        self, key: bytes, offset: int, cpu_limit_s: float, work: Callable[[], T],
        on_lost: Callable[[WorkGivenUp], None] | None = None,
    ) -> T:  # fmt: skip
        """Do work for the monitor of `key`, on the message at `offset`; raises `WorkGivenUp`.

        `on_lost`: called in the watchdog's thread when this one is lost.
        """
        if self._marks is not None and self._marks.begin(self._slot, self._hop, key, offset):
            raise WorkGivenUp(f"no worker may end at it; {MOST_CRASHES} ended in a row", is_fatal=True)
        own = _Work(key, cpu_limit_s, on_lost, time.monotonic())
        try:
            try:
                self.work = own
                return work()
            finally:
                self._end(own)
        except GaveUp:
            self._end(own)  # it may have come before that was done
        # Outside of `except`: the context of an error holds all that the work had made.
        raise WorkGivenUp(own.reason or "", time.monotonic() - own.began_s)

    def undisturbed(self, call: Callable[[], T]) -> T:
        """Make a call, as a part of the work, that must not be broken off, and takes no time of the work's own."""
        own = self.work
        if own is None:
            return call()
        with self.lock:
            own.away_since_s = time.monotonic()
        try:
            return call()
        finally:
            with self.lock:
                own.away_s += time.monotonic() - own.away_since_s
                own.away_since_s = None
            # Given up while it was away, when nothing could be raised into it.
            if own.reason is not None:
                raise GaveUp

    def cpu_s(self) -> float:
        """Return the processor time of the thread so far."""
        return time.clock_gettime(self._clock)

    def raise_gave_up(self) -> None:
        """Raise `GaveUp` into the thread; the caller holds the lock, and the work is not over."""
        _raise_in(self.thread_id, GaveUp)

    def _end(self, own: _Work) -> None:
        """End the work; behind this nothing is raised any more."""
        with self.lock:
            self.work = None
            # An error that has not arrived yet would break off this thread's next work.
            if own.raised_s is not None:
                _raise_in(self.thread_id, None)
        if self._marks is not None:
            self._marks.end(self._slot)


class Watchdog:
    """Looks at the work of all guards, in a ``with`` block.

    `directory`: where marks are kept of the messages at which the worker was when it ended; None: nowhere.
    """

    def __init__(self, limits: Limits | None = None, directory: Path | None = None) -> None:
        self.limits: Final = Limits() if limits is None else limits
        self._marks: Final = None if directory is None else CrashMarks(directory)
        self._guards: Final[list[Guard]] = []
        self._is_over: Final = threading.Event()

    def guard(self, hop: str) -> Guard:
        """Return a guard of this thread's work."""
        guard = Guard(hop, self._marks)
        self._guards.append(guard)
        return guard

    def __enter__(self) -> None:
        threading.Thread(target=self._look_on, name="irregulars-watchdog", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def slow(self, *, is_lost: bool = False) -> list[str]:
        """Describe the work that has run for long, or only that which is lost."""
        now_s, told = time.monotonic(), []
        for guard in self._guards:
            work = guard.work  # read once: its thread may end it meanwhile
            if work is None or work.seen is None or not work.seen.is_told or (is_lost and not work.seen.is_lost):
                continue
            name = work.key.decode()
            task = f"judging job {name!r}" if guard.hop == "job" else f"taking in what {name!r} sent"
            told.append(f"{task} for {now_s - work.began_s:.0f} s{', given up' if work.reason else ''}")
        return told

    def _look_on(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            at_work = [(one, work) for one in self._guards if (work := one.work) is not None]
            if not at_work:  # an idle worker need not read its memory four times a second
                continue
            memory = used_memory_bytes(), free_memory_bytes()
            # The youngest first: of two that saw the memory grow, the growth is in the time of both.
            for guard, work in sorted(at_work, key=lambda one: -one[1].began_s):
                if self._look(guard, work, time.monotonic(), *memory):
                    break  # the effect on the memory shows in the next look

    def _look(self, guard: Guard, work: _Work, now_s: float, used_bytes: int, free_bytes: int) -> bool:
        """Judge one run of a guard; return whether it is given up for its memory."""
        limits = self.limits
        seen = work.seen
        if seen is None:
            most_bytes = used_bytes + int(limits.memory_ratio * free_bytes)
            seen = work.seen = _Seen(guard.cpu_s(), used_bytes, most_bytes)
        if work.reason is not None:
            self._press(guard, work, seen, now_s)
            return False
        if now_s - work.began_s >= limits.slow_s and not seen.is_told:
            seen.is_told = True
            LOG.warning("event=judgement_slow hop=%s job=%r seconds=%.0f", guard.hop, work.key.decode(),
                        now_s - work.began_s)  # fmt: skip
        is_large = used_bytes > seen.most_bytes
        until_s = now_s if work.away_since_s is None else work.away_since_s
        own_s, cpu_s = until_s - work.began_s - work.away_s, guard.cpu_s() - seen.cpu_s
        if is_large:
            work.reason = (
                f"the process must grow by at most {limits.memory_ratio:.0%} of the free memory meanwhile; it grew "
                f"by {(used_bytes - seen.bytes_) >> 20} MiB"
            )
        elif cpu_s > work.cpu_limit_s:
            work.reason = f"it must end within {work.cpu_limit_s:g} s of processor time; it did not"
        elif own_s > limits.wall_ratio * work.cpu_limit_s and cpu_s < _BLOCKED_SHARE * own_s:
            work.reason = f"it must end within {limits.wall_ratio * work.cpu_limit_s:g} s; it is blocked"
        if work.reason is not None:
            seen.given_up_s = now_s
            self._press(guard, work, seen, now_s)
        return is_large

    def _press(self, guard: Guard, work: _Work, seen: _Seen, now_s: float) -> None:
        """End work that is given up, if it lets itself be ended; else its thread is lost."""
        with guard.lock:
            # It has ended, or waits for Kafka: the error would hit other work, or a call that must not be cut off.
            if guard.work is not work or work.away_since_s is not None:
                return
            if work.raised_s is None or now_s - work.raised_s > _AGAIN_S:
                work.raised_s = now_s
                guard.raise_gave_up()
        if now_s - seen.given_up_s > self.limits.lost_s and not seen.is_lost:
            seen.is_told = seen.is_lost = True
            LOG.error("event=judgement_lost hop=%s job=%r seconds=%.0f do='start the worker anew'", guard.hop,
                      work.key.decode(), now_s - work.began_s)  # fmt: skip
            if work.on_lost is not None:
                work.on_lost(WorkGivenUp(work.reason or "", now_s - work.began_s))


def _raise_in(thread_id: int, error: type[BaseException] | None) -> None:
    """Let a thread raise an error at its next step in Python; None takes back one that it has not raised yet."""
    value = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), value)


# --- memory ---------------------------------------------------------------------------------------------------------


def used_memory_bytes() -> int:
    """Return the resident memory of the process; 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def free_memory_bytes() -> int:
    """Return how much more memory the process may have: the machine's free memory, or the least of its cgroups'."""
    try:
        machine = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
        own = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].partition("\n")[0]
    except OSError:
        return _UNKNOWN_BYTES
    free = [int(machine[1]) << 10 if machine else _UNKNOWN_BYTES]
    top = Path("/sys/fs/cgroup")
    # Every group up to the root may have a limit of its own.
    for group in (top / own, *(top / own).parents):
        with suppress(OSError, ValueError):  # there is none, or its limit is the word "max"
            limit_bytes = int((group / "memory.max").read_text())
            free.append(max(limit_bytes - used_memory_bytes(), 0))
    return min(free)
