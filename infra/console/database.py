"""The console's way to ClickHouse: answers are shared, bounded in time and rows, and few are asked for at once.

However many people look, the database gets each question once in `KEEP_S`, and never more than `AT_ONCE` together.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from irregulars.errors import IrregularsError, ServiceUnavailable
from irregulars.sinks.connection import DatabaseSettings, connect, translated

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

KEEP_S: Final = 2.0
"""How long an answer is given to others too, s: pages ask again as often."""

AT_ONCE: Final = 6
"""Questions that the database works on at a time."""

ANSWER_S: Final = 8.0
"""How long the database may work on one question, s. People wait a second or two, and then look elsewhere."""

_QUEUE_S: Final = 4.0  # how long a question waits for its turn
_MARGIN_S: Final = 3.0  # from the database's own limit to ours
_MOST_ROWS: Final = 1_000_000
_KEPT: Final = 512

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    """An answer, or the question on its way; ``until`` counts once it is there."""

    task: asyncio.Task[Any]
    keep_s: float
    until: float | None = None

    def is_over(self, now: float) -> bool:
        return self.until is not None and now >= self.until


class ConsoleDatabase:
    """Answers the questions of all pages.

    Parameters
    ----------
    settings
        Where the database is and who we are; made to read only, and never waited for.
    on_answer
        Called with seconds and None or the error, for metrics.
    """

    def __init__(
        self,
        settings: DatabaseSettings,
        on_answer: Callable[[float, Exception | None], None] = lambda seconds, error: None,
    ) -> None:
        self.settings: Final = replace(settings, is_reading=True, wait_s=0.0, answer_s=ANSWER_S + _MARGIN_S)
        self._on_answer: Final = on_answer
        self._kept: Final[OrderedDict[Hashable, _Kept]] = OrderedDict()
        self._threads: Final = ThreadPoolExecutor(AT_ONCE, "irregulars-database")
        self._turns: Final = asyncio.Semaphore(AT_ONCE)
        self._client: Client | None = None
        self._lock: Final = Lock()

    @property
    def source(self) -> str:
        """Where answers come from, for people."""
        return f"{self.settings.database} on {self.settings.address}"

    async def ask(self, key: Hashable, read: Callable[[Client], T], keep_s: float = KEEP_S) -> T:
        """Return what `read` makes of the database, or what it made for somebody else a moment ago.

        Parameters
        ----------
        key
            Names the question with all its values: equal keys get one answer.
        read
            Asks the client; runs in a thread, bounded in time and rows by settings of the connection.
        keep_s
            Seconds for which the answer is shared.

        Raises
        ------
        ServiceError
            If the database does not answer in time, or refuses us.
        InputError
            If the question can't be asked.
        """
        kept = self._kept.get(key)
        if kept is None or kept.is_over(time.monotonic()):
            kept = self._begin(key, read, keep_s)
        return cast(T, await asyncio.shield(kept.task))

    def close(self) -> None:
        """Let go of the connection; questions on their way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    def _begin(self, key: Hashable, read: Callable[[Client], Any], keep_s: float) -> _Kept:
        self._forget()
        kept = _Kept(asyncio.get_running_loop().create_task(self._answer(read)), keep_s)
        self._kept[key] = kept
        kept.task.add_done_callback(lambda task: _finish(kept, task))
        return kept

    def _forget(self) -> None:
        now = time.monotonic()
        for key in [key for key, kept in self._kept.items() if kept.is_over(now)]:
            del self._kept[key]
        while len(self._kept) >= _KEPT:
            self._kept.popitem(last=False)

    async def _answer(self, read: Callable[[Client], Any]) -> Any:
        begun = time.monotonic()
        error: Exception | None = None
        try:
            return await self._in_turn(read)
        except Exception as raised:
            error = raised
            raise
        finally:
            self._on_answer(time.monotonic() - begun, error)

    async def _in_turn(self, read: Callable[[Client], Any]) -> Any:
        try:
            async with asyncio.timeout(_QUEUE_S):
                await self._turns.acquire()
        except TimeoutError:
            raise ServiceUnavailable(
                f"database must answer the questions before this one within {_QUEUE_S:g} s; got {AT_ONCE} that it "
                f"still works on ({self.settings.address}). Is it under load?"
            ) from None
        try:
            async with asyncio.timeout(ANSWER_S + 2 * _MARGIN_S):
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, read)
        except TimeoutError:
            raise ServiceUnavailable(
                f"database must answer within {ANSWER_S:g} s; got nothing ({self.settings.address})"
            ) from None
        finally:
            self._turns.release()

    def _ask(self, read: Callable[[Client], Any]) -> Any:
        with translated(self.settings):
            return read(self._connected())

    def _connected(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = _bounded(connect(self.settings))
            return self._client


def _finish(kept: _Kept, task: asyncio.Task[Any]) -> None:
    failed = not task.cancelled() and task.exception() is not None  # asking for it marks it as seen
    kept.until = time.monotonic() + (min(kept.keep_s, KEEP_S) if failed or task.cancelled() else kept.keep_s)


def _bounded(client: Client) -> Client:
    """Bound what each question may cost; a user whose profile allows no settings at all has bounds of its own."""
    known = client.server_settings.get("readonly")
    if known is None or known.value != "1":
        client.set_client_setting("max_execution_time", int(ANSWER_S))
        client.set_client_setting("max_result_rows", _MOST_ROWS)
    return client


def is_expected(error: BaseException) -> bool:
    """Return whether an error is one that we raise on purpose: its text is for people."""
    return isinstance(error, IrregularsError)
