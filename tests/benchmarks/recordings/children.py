"""Forked processes that end with the one that forked them, and are ended by their own id."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of linux/prctl.h
_POLL_S: Final = 0.002


class Child:
    """A fork of this process that runs something and ends; dies with this process.

    Parameters
    ----------
    run
        What it does. Raising makes its status 1.
    log
        Where its standard output and error go.
    parting
        The signal that ends it, also where this process has died: ``SIGTERM`` lets it clean up behind itself.
    """

    def __init__(self, run: Callable[[], None], log: Path, parting: signal.Signals = signal.SIGKILL) -> None:
        self.log, self._parting = log, parting
        self._status: int | None = None
        parent = os.getpid()
        self.process = os.fork()
        if self.process == 0:
            os._exit(_run(run, parent, log, parting))

    @property
    def status(self) -> int | None:
        """Its exit status, negative where a signal ended it; None while it runs."""
        if self._status is None:
            found, status = os.waitpid(self.process, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if found else None
        return self._status

    def end(self, limit_s: float = 10.0) -> None:
        """End it, and wait until it has ended."""
        for number in (self._parting, signal.SIGKILL):
            if self.status is None:
                os.kill(self.process, number)
            deadline_s = time.monotonic() + limit_s
            while self.status is None and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)

    def last_words(self) -> str:
        """The last line that it said."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else "nothing"


def _run(run: Callable[[], None], parent: int, log: Path, parting: signal.Signals) -> int:
    """Run in the fork; return its exit status. What the parent registered for its own exit never runs here."""
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, parting)
        if os.getppid() != parent:  # it died before we said so
            return 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends us
        signal.signal(signal.SIGTERM, _leave)
        _write_to(log)
        run()
    except SystemExit:
        return 128 + signal.SIGTERM
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _write_to(log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115  # to its end
