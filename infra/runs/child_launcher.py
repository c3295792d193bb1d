"""Become another program that dies with its parent: ``child_launcher.py PARENT_PID PROGRAM ARGUMENT...``.

A script of its own, because the other way, `subprocess`'s ``preexec_fn``, runs Python between fork and exec and is
not safe in a process with threads, and a Kafka client has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_EXIT_NOT_FOUND: Final = 127


def main(arguments: Sequence[str]) -> int:
    """Ask Linux for SIGKILL when the parent dies, and become the program."""
    parent, program = int(arguments[0]), list(arguments[1:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call: nobody is left to end us
        return 0
    try:
        os.execvp(program[0], program)
    except OSError as error:
        print(f"{program[0]}: {error.strerror}", file=sys.stderr)
        return _EXIT_NOT_FOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
