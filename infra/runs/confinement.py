"""Confine a process to the files that it needs, with Linux's Landlock: no rights and no container are asked for.

https://docs.kernel.org/userspace-api/landlock.html; numbers and bits below are those of ``linux/landlock.h``.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on each architecture
_VERSION, _PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_OF_VERSION_2: Final = (1 << 14) - 1  # up to LANDLOCK_ACCESS_FS_REFER
_TRUNCATE: Final = 1 << 14  # since version 3, Linux 6.2


class _PathBeneath(ctypes.Structure):
    # Packed in the kernel's declaration, too.
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def landlock_version() -> int:
    """Return the version of Landlock that this kernel offers.

    0 where there is none, it is switched off, or has version 1 (before Linux 5.19), under which no file can be moved
    or linked into another directory, as databases do.
    """
    # Sizes are explicit, since ctypes passes an int of Python as 32 bits.
    version = int(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)))
    return version if version >= 2 else 0


def confine(writable: Sequence[Path], readable: Sequence[Path]) -> None:
    """Restrict this thread, and those that it starts from now on, to these files and directories.

    A directory stands for all below it; open files stay open. It can't be undone. Call it where `landlock_version` is
    not 0. Raises `OSError` if a path is not there, or the kernel refuses.
    """
    handled = _OF_VERSION_2 | (_TRUNCATE if landlock_version() >= 3 else 0)
    ruleset = _call(_CREATE_RULESET, ctypes.byref(ctypes.c_uint64(handled)), ctypes.c_size_t(8), ctypes.c_uint32(0))
    for paths, access in ((writable, handled & ~_EXECUTE), (readable, _READ_FILE | _READ_DIR)):
        for path in paths:
            # Stays open: a file of /proc keeps its rule only as long as the kernel keeps its inode.
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            of_files = -1 if stat.S_ISDIR(os.fstat(descriptor).st_mode) else _WRITE_FILE | _READ_FILE | _TRUNCATE
            rule = _PathBeneath(access & of_files, descriptor)
            _call(_ADD_RULE, ruleset, ctypes.c_uint32(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    # Without this promise the kernel asks for CAP_SYS_ADMIN.
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    os.close(ruleset)


def _call(number: int, *arguments: object) -> int:
    result = int(_LIBC.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
