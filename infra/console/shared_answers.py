"""Answers that many viewers share: what is on its way, or was answered a moment ago, is not asked again."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

KEEP_S: Final = 2.0
"""How long an answer is given to others too, s: pages ask again as often."""

_MOST: Final = 512

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    """An answer, or the question on its way; ``until_s`` is known once it is there."""

    task: asyncio.Task[Any]
    keep_s: float
    until_s: float | None = None

    def is_over(self, now_s: float) -> bool:
        return self.until_s is not None and now_s >= self.until_s

    def finish(self, task: asyncio.Task[Any]) -> None:
        """Begin to count. A failure is shared too, but not for long: all who look would ask a sick service again."""
        has_failed = task.cancelled() or task.exception() is not None  # asking for it marks it as seen
        self.until_s = time.monotonic() + (min(self.keep_s, KEEP_S) if has_failed else self.keep_s)


class SharedAnswers:
    """Answers by their question's key, each for some seconds."""

    def __init__(self) -> None:
        self._kept: Final[OrderedDict[Hashable, _Kept]] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]], keep_s: float = KEEP_S) -> T:
        """Return what `make` gives, or what it gave to somebody else within `keep_s`; errors likewise.

        Whoever goes away while it is on its way takes it from nobody else.
        """
        kept = self._kept.get(key)
        if kept is None or kept.is_over(time.monotonic()):
            kept = self._begin(key, make, keep_s)
        return cast(T, await asyncio.shield(kept.task))

    def _begin(self, key: Hashable, make: Callable[[], Awaitable[Any]], keep_s: float) -> _Kept:
        self._forget()

        async def answer() -> Any:
            return await make()

        kept = _Kept(asyncio.get_running_loop().create_task(answer()), keep_s)
        self._kept[key] = kept
        kept.task.add_done_callback(kept.finish)
        return kept

    def _forget(self) -> None:
        now_s = time.monotonic()
        for key in [key for key, kept in self._kept.items() if kept.is_over(now_s)]:
            del self._kept[key]
        while len(self._kept) >= _MOST:
            self._kept.popitem(last=False)
