"""A service's data directory: one that was given, or a temporary one; locked while it is used."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import Final

from irregulars.errors import InputError
from irregulars.private_files import make_private_directory

# Seconds to wait for a lock. A killed service counts as gone at once, and releases its files a moment later.
_LETTING_GO_S: Final = 2.0
_POLL_S: Final = 0.05


def lock_directory(directory: Path) -> int:
    """Lock a directory before anything is written in it.

    Return the descriptor that holds the lock. Hand it to the service as well, and close it when the service has
    ended: the lock then lasts until both this process and the service are gone. Raises `InputError` if another
    process holds it; `OSError` if the directory can't be written.
    """
    # The file stays for good: a lock on a file that was removed would not keep out one who makes it anew.
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _LETTING_GO_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise InputError(
                    f"data directory must not be in use; got one that another process holds ({directory}). "
                    "Stop that process, or choose another directory"
                ) from None
        time.sleep(_POLL_S)


class DataDirectory:
    """A directory of one service at a time: the `given` one, or a temporary one, which stays until `remove`."""

    def __init__(self, given: Path | None, prefix: str) -> None:
        self.is_temporary = given is None
        self.path = given.resolve() if given else Path()  # of a temporary one: once it was chosen
        self._prefix = prefix
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._lock: int | None = None

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that the service is to keep open: the lock then lasts as long as it does."""
        return () if self._lock is None else (self._lock,)

    def choose(self) -> Path:
        """Return the directory; a temporary one is made when it is first asked for."""
        if self.is_temporary and self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix=self._prefix)
            self.path = Path(self._temporary.name)
        return self.path

    def take(self) -> None:
        """Make the directory, mode 0700, where it is not there, and lock it.

        Raises `InputError` if another process holds it; `OSError` if it can't be written.
        """
        make_private_directory(self.choose())
        self._lock = lock_directory(self.path)

    def release(self) -> None:
        """Release the lock; the data stays. Twice is fine."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Release the lock, and remove a temporary directory. Twice is fine."""
        self.release()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
