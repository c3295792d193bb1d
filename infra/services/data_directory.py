"""Where a service keeps its data: a directory that somebody gave, or a temporary one; locked while it is used."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from irregulars.infra.services.directory_lock import lock_directory
from irregulars.private_files import make_private_directory


class DataDirectory:
    """A directory of one service at a time.

    Parameters
    ----------
    given
        The directory; `None`: a temporary one, which keeps its data until `remove`.
    prefix
        Of the temporary one's name.

    Attributes
    ----------
    path
        The directory, once it was chosen.
    is_temporary
        Whether `remove` removes it.
    """

    def __init__(self, given: Path | None, prefix: str) -> None:
        self.is_temporary = given is None
        self.path = given.resolve() if given else Path()
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

        Raises
        ------
        InputError
            If another process holds it.
        OSError
            If it can't be written.
        """
        make_private_directory(self.choose())
        self._lock = lock_directory(self.path)

    def release(self) -> None:
        """Let go of the lock; the data stays. Twice is fine."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove(self) -> None:
        """Let go of it, and remove it if it is temporary. Twice is fine."""
        self.release()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
