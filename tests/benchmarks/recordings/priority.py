"""Priority of the recorded processes: what else a machine does must not look like a fault."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Final

SLICE_NS: Final = 100_000
"""Time slice asked for, ns; the kernel's least. One that waits for a message is then run at once, and not after the
some 3 ms that whoever runs has for itself (Linux 6.12 and newer; older ones ignore it)."""

_SET_ATTRIBUTES: Final = {"x86_64": 314, "aarch64": 274}  # sched_setattr
_SIZE: Final = 48


_AUTOGROUP: Final = Path("/proc/self/autogroup")


class _Attributes(ctypes.Structure):
    """``struct sched_attr`` of linux/sched/types.h, first version."""

    _fields_ = (
        ("size", ctypes.c_uint32), ("policy", ctypes.c_uint32), ("flags", ctypes.c_uint64), ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32), ("runtime", ctypes.c_uint64), ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )  # fmt: skip


def lead_session(nice: int) -> None:
    """Begin a session, and give it a niceness.

    Where the kernel shares time among sessions first (autogroup), the niceness of a process counts in its own alone.
    """
    os.setsid()
    with suppress(OSError):
        _AUTOGROUP.write_text(str(nice))


def come_first(nice: int) -> None:
    """Give this process, and those that it forks, a niceness and a short time slice."""
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    number = _SET_ATTRIBUTES.get(platform.machine())
    if number is not None:
        wanted = _Attributes(size=_SIZE, nice=nice, runtime=SLICE_NS)
        with suppress(OSError):
            ctypes.CDLL(None, use_errno=True).syscall(number, 0, ctypes.byref(wanted), 0)
