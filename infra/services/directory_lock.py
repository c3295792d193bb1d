"""A data directory belongs to one service at a time."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from irregulars.errors import InputError

# A service that was killed is gone for who asked at once, and lets go of its files a moment later.
_LETTING_GO_S: Final = 2.0
_POLL_S: Final = 0.05


def lock_directory(directory: Path) -> int:
    """Lock a directory before anything is written in it.

    Hand the descriptor to the service as well, and close it when the service has ended: the lock then lasts until
    both this process and the service are gone.

    Returns
    -------
    int
        Descriptor that holds the lock.

    Raises
    ------
    InputError
        If another process holds it.
    OSError
        If the directory can't be written.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _LETTING_GO_S
    while not _is_locked(descriptor):
        if time.monotonic() > deadline:
            os.close(descriptor)
            raise InputError(
                f"data directory must not be in use; got one that another process holds ({directory}). "
                "Stop that process, or choose another directory"
            )
        time.sleep(_POLL_S)
    return descriptor


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
