"""Answers that many viewers share: what is on its way, or was answered a moment ago, is not asked again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar, cast

KEEP_S: Final = 2.0
"""How long an answer is given to others too, s: pages ask again as often."""

_MOST: Final = 512

T = TypeVar("T")


class SharedAnswers:
    """Answers by their question's key, each for some seconds."""

    def __init__(self) -> None:
        self._kept: Final[OrderedDict[Hashable, asyncio.Task[Any]]] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]], keep_s: float = KEEP_S) -> T:
        """Return what `make` gives, or what it gave to somebody else within `keep_s`; errors likewise.

        Whoever goes away while it is on its way takes it from nobody else.
        """
        task = self._kept.get(key)
        if task is None:
            task = self._begin(key, make, keep_s)
        return cast(T, await asyncio.shield(task))

    def _begin(self, key: Hashable, make: Callable[[], Awaitable[Any]], keep_s: float) -> asyncio.Task[Any]:
        while len(self._kept) >= _MOST:
            self._kept.popitem(last=False)

        async def answer() -> Any:
            return await make()

        def finish(task: asyncio.Task[Any]) -> None:
            """Drop it in time. A failure is shared too, but not for long: all would ask a sick service again."""
            has_failed = task.cancelled() or task.exception() is not None  # asking for it marks it as seen
            loop.call_later(min(keep_s, KEEP_S) if has_failed else keep_s, self._drop, key, task)

        loop = asyncio.get_running_loop()
        task = self._kept[key] = loop.create_task(answer())
        task.add_done_callback(finish)
        return task

    def _drop(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        if self._kept.get(key) is task:
            del self._kept[key]
