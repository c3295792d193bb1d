"""Sum of the times for which a thread has waited."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final


class WaitedTime:
    """Adds up the seconds of each ``with`` block, the one that still runs included.

    Parameters
    ----------
    now_s
        A clock that never goes back.

    Examples
    --------
    >>> times = iter([0.0, 2.0, 10.0, 11.0, 15.0])
    >>> waited = WaitedTime(lambda: next(times))
    >>> with waited:
    ...     pass
    >>> with waited:
    ...     print(waited.seconds)
    3.0
    >>> waited.seconds
    7.0
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s: Final = now_s
        self._before_s = 0.0
        self._since_s: float | None = None

    @property
    def seconds(self) -> float:
        """All of it, until now."""
        return self._before_s + (0.0 if self._since_s is None else self._now_s() - self._since_s)

    def __enter__(self) -> None:
        self._since_s = self._now_s()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._before_s, self._since_s = self.seconds, None
