"""A program of this machine, which gets the notice as JSON on its standard input."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from irregulars.errors import SinkBusy, SinkRejected
from irregulars.sinks.notices.notice import NotArrived, Notice, encode_notice, written

NEVER: Final = 65  # status with which a program says that it will never take this notice (EX_DATAERR of sysexits.h)
_LONGEST_REFERENCE: Final = 200


class CommandChannel:
    """Runs a program for each notice, without a shell, in a process group of its own.

    Status 0: it took the notice; the first line of its output, if there is one, is the reference, which comes back in
    ``IRREGULARS_REFERENCE`` with the incident's next notice. `NEVER`: it never will. Any other: it is tried again.
    `timeout_s`: Seconds after which it is killed, with all that it started.
    """

    def __init__(self, name: str, argv: Sequence[str], timeout_s: float = 30.0) -> None:
        self.name: Final = name
        self._argv, self._timeout_s = tuple(argv), timeout_s

    def deliver(self, notice: Notice) -> str | None:
        """Run it; see `Channel.deliver`."""
        body = written(encode_notice, notice) + b"\n"
        environment = {**os.environ, "IRREGULARS_REFERENCE": notice.reference or ""}
        try:
            process = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
        except OSError as error:
            raise NotArrived(f"command must be one that can be started; got {error.strerror}", 0.0) from error
        with process:
            try:
                output = process.communicate(body, timeout=self._timeout_s)[0]
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise SinkBusy(f"command must end within {self._timeout_s:g} s; it was killed", 0.0) from None
        if process.returncode == NEVER:
            raise SinkRejected(f"command must take the notice; got status {NEVER}: never")
        if process.returncode != 0:
            raise SinkBusy(f"command must end with status 0; got {process.returncode}", 0.0)
        lines = output.decode(errors="replace").splitlines()
        return lines[0].strip()[:_LONGEST_REFERENCE] or None if lines else None

    def close(self) -> None:
        """Nothing is held."""
