"""A worker's process: directory, port, memory, event loop, waiting for services at the start, a stop that ends."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from irregulars.errors import InputError, ServiceUnavailable
from irregulars.in_thread import run_in_thread
from irregulars.private_files import make_private_directory

LOG: Final = logging.getLogger("irregulars.worker")


def make_directory(name: str) -> None:
    """Make the worker's directory; raises `InputError` where that is not allowed."""
    try:
        make_private_directory(Path(name))
    except OSError as error:
        raise InputError(f"data_directory must be one that we can write; got {name!r} ({error.strerror})") from error


def free_port_or_none(host: str, port: int) -> int:
    """Return the port of a worker's page, or 0, with a line in the log, where it is taken: no worker ends for it."""
    if port == 0:
        return 0
    with socket.socket() as probe:
        # As servers do: after a restart the old connections in TIME_WAIT do not take the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            LOG.warning("event=no_page host=%s port=%d reason=%r", host, port, error.strerror)
            return 0
    return port


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop, uvloop's if it is installed, which logs stray errors in one line."""
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    loop.set_exception_handler(_tell)
    return loop


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log the error of a task that is not awaited: Faust leaves some."""
    error = context.get("exception")
    LOG.info("event=stray_error error=%s reason=%r", type(error).__name__, str(error or context.get("message")))


CUT_OFF_STATUS: Final = 1  # exit status of a process that had to be cut off: its supervisor may start it again


class StopDeadline:
    """Ends the process some seconds after `arm`, unless it has ended by itself.

    It is never disarmed: even the end of the interpreter may hang, as it waits for threads that wait for a database.
    Nothing is lost by it, since messages whose results are not stored are read again.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s: Final = within_s
        self._lock: Final = threading.Lock()
        self._began_s: float | None = None
        self._ended_with: int | None = None

    @property
    def left_s(self) -> float:
        """Seconds that are left; all of them before `arm`."""
        if self._began_s is None:
            return self._within_s
        return max(self._within_s - (time.monotonic() - self._began_s), 0.0)

    def arm(self) -> None:
        """Begin to count; later calls change nothing."""
        with self._lock:
            if self._began_s is not None:
                return
            self._began_s = time.monotonic()
        threading.Thread(target=self._cut_off, name="irregulars-stop", daemon=True).start()

    def leave_with(self, status: int) -> None:
        """End with this status: all work has ended in order, and the threads that are left are not waited for."""
        self._ended_with = status

    def _cut_off(self) -> None:
        time.sleep(self._within_s)
        if self._ended_with is not None:
            os._exit(self._ended_with)
        # Neither `logging` nor `print`: a thread that hangs may hold their locks.
        os.write(2, f"irregulars worker: stopping must end within {self._within_s:g} s; it did not\n".encode())
        os._exit(CUT_OFF_STATUS)


_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 8.0


@dataclass(frozen=True)
class Need:
    """A service that a start waits for."""

    service: str  # its name in the log: ``event=broker_away``, later ``event=broker_back``
    # Asks once, within a few seconds; raises `ServiceUnavailable` while it is away. It runs in a thread of its own:
    # a call that nothing can interrupt, like the look-up of a host's name, must not hold up a signal.
    ask: Callable[[], object]
    most_s: float  # how long the service may be away, seconds


def wait_for(
    needs: Sequence[Need], now_s: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return when each of them has answered once; raises `ServiceUnavailable`.

    All are asked before any is waited for: a refusal by one shows at once though another is away.
    """
    began_s, pause_s = now_s(), _FIRST_PAUSE_S
    away: set[str] = set()
    missing = list(needs)
    while missing := [need for need in missing if not _answers(need, now_s() - began_s, away)]:
        # The last question falls on the end of the time, and not a pause behind it.
        left_s = began_s + min(need.most_s for need in missing) - now_s()
        sleep(max(0.0, min(pause_s, left_s)))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _answers(need: Need, waited_s: float, away: set[str]) -> bool:
    """Ask once; log when the service is away, and when it is back."""
    try:
        run_in_thread(need.ask)
    except ServiceUnavailable as error:
        if waited_s >= need.most_s:
            said = str(error)
            sentence = said if said.endswith((".", "?")) else f"{said}."
            raise ServiceUnavailable(f"{sentence} A start waits {need.most_s:g} s for it") from error
        if need.service not in away:
            LOG.warning("event=%s_away waits_s=%g reason=%r", need.service, need.most_s, str(error))
            away.add(need.service)
        return False
    if need.service in away:
        LOG.warning("event=%s_back away_s=%.1f", need.service, waited_s)
    return True


_M_ARENA_MAX: Final = -8  # of glibc's malloc.h
_ARENAS: Final = 2
"""Heaps that threads share. Python's lock lets one of its threads allocate at a time, so that none but librdkafka's
could wait for one another."""

GIVE_BACK_S: Final = 20.0
"""Between two looks, s. Memory that is needed again costs a page fault for each 4 KiB: some 10 ms for 100 MiB."""

_BUSY_RATIO: Final = 0.5
"""Of a core, since the look before. A worker that does more than that needs its memory again at once."""


def share_few_heaps() -> None:
    """Let all threads share few heaps; call it before they are started."""
    _call("mallopt", _M_ARENA_MAX, _ARENAS)


class SpareMemory:
    """Gives freed memory back to the system while the process has little to do.

    After a burst glibc keeps memory that numpy and librdkafka have freed: in each arena only the end of the heap goes
    back by itself, and each of some fifty threads may get its own arena. Elsewhere (musl, macOS) nothing is done.
    """

    def __init__(
        self, clock_s: Callable[[], float] = time.monotonic, cpu_s: Callable[[], float] = time.process_time,
        trim: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._clock_s, self._cpu_s, self._trim = clock_s, cpu_s, trim or _trim
        self._looked_s, self._spent_s = clock_s(), cpu_s()

    def look(self) -> bool:
        """Give memory back unless the process was busy since the last look; return whether it did."""
        now_s, spent_s = self._clock_s(), self._cpu_s()
        is_busy = spent_s - self._spent_s > _BUSY_RATIO * (now_s - self._looked_s)
        self._looked_s, self._spent_s = now_s, spent_s
        if not is_busy:
            self._trim()
        return not is_busy


def _trim() -> None:
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    """Call a function of the C library, if it has it; other threads go on meanwhile."""
    found = getattr(ctypes.CDLL(None), name, None)
    if found is not None:
        found(*arguments)
