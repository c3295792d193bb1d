"""Messages at which the threads of a worker were when it ended without a word: out of memory, or by a fault in C.

Before a monitor is given a message, the message's place goes into a file that is mapped into memory, and out of it
afterwards. That costs half a microsecond, and the file outlives the process. A worker that finds the same place in
it at several starts in a row knows that the message ends workers, and gives up on it instead.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

MOST_CRASHES: Final = 3
"""Workers that end in a row at one place before it is given up: one may be chance, as two in a row may be."""

_SLOT: Final = struct.Struct("<IqI")  # who and where, and how many ended there so far with this one
_SLOTS: Final = 256
_EMPTY: Final = bytes(_SLOT.size)


class CrashMarks:
    """Marks of one process, in a file of its own that a process after it finds.

    Parameters
    ----------
    directory
        Where the file is; workers may share it.
    """

    def __init__(self, directory: Path) -> None:
        self._file: Final = next(_free_files(directory))
        self._file.truncate(_SLOTS * _SLOT.size)
        self._marks: Final = mmap.mmap(self._file.fileno(), _SLOTS * _SLOT.size)
        found = (_SLOT.unpack_from(self._marks, slot * _SLOT.size) for slot in range(_SLOTS))
        self._ended: Final = {(who, at): count for who, at, count in found if count}
        self._marks[:] = bytes(len(self._marks))
        self._slots: Final = itertools.count()

    def close(self) -> None:
        """Leave the file, with its marks, to another process."""
        self._marks.close()
        self._file.close()

    def new_slot(self) -> int:
        """Return a place for one thread's marks."""
        return next(self._slots) % _SLOTS * _SLOT.size

    def begin(self, slot: int, hop: int, key: bytes, offset: int) -> bool:
        """Put a mark; return whether workers have ended at this place too often. `hop` is any number of its own."""
        who = zlib.crc32(key, hop)
        count = self._ended.pop((who, offset), 0) if self._ended else 0
        if count < MOST_CRASHES:
            _SLOT.pack_into(self._marks, slot, who, offset, count + 1)
        return count >= MOST_CRASHES

    def end(self, slot: int) -> None:
        """Take the mark away."""
        self._marks[slot : slot + _SLOT.size] = _EMPTY


def _free_files(directory: Path) -> Iterator[BinaryIO]:
    """Open files of which no other process has the lock; it goes with the process, however that ends."""
    for number in itertools.count():
        file = (directory / f"at-work-{number}").open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another process has it
            file.close()
        else:
            yield file
