"""The first use of a type by msgspec, one thread at a time.

msgspec 0.22 looks at a dataclass when it converts to it for the first time, and keeps what it found in the class.
Where two threads do so at once, the one reads what the other has not finished, and the process dies (SIGSEGV).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_LOCK: Final = threading.RLock()
_KNOWN: Final[set[Any]] = set()


@contextmanager
def first_use(kind: Any) -> Iterator[None]:
    """Hold up other threads that use some type for the first time, if this one is used so in the block."""
    if kind in _KNOWN:
        yield
        return
    with _LOCK:
        yield
    _KNOWN.add(kind)
