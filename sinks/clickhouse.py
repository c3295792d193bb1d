"""The sink that stores rows in ClickHouse."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from irregulars.errors import ServiceError, SinkBusy, SinkError, SinkRejected
from irregulars.sinks.connection import LOGIN_REFUSALS, DatabaseSettings, connect, disconnect, reason_of, translated
from irregulars.sinks.migrate import keep, migrate
from irregulars.sinks.protocol import Rows
from irregulars.sinks.tables import conform

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

__all__ = ["ClickHouseSink", "DatabaseSettings"]

# ClickHouse error codes that blame the rows: can't parse, wrong type, out of range, a constraint violated, … Every
# other code blames the moment (too many parts, no memory, no disk, a table or column gone, credentials changed): the
# rows are good, and are kept until somebody has repaired the database
_DATA_ERRORS: Final = frozenset({6, 26, 27, 33, 38, 41, 43, 53, 69, 70, 72, 117, 128, 131, 321, 349, 407, 469, 691})

# async_insert may answer before the rows are stored, where a profile has wait_for_async_insert = 0. Nulls in columns
# that have none must be errors, not zeros. A recording with wild clocks may span any number of partitions.
_INSERT_SETTINGS: Final[dict[str, Any]] = {
    "async_insert": 0, "input_format_null_as_default": 0, "max_partitions_per_insert_block": 0,
}  # fmt: skip

# Stored after the others: who sees one of these looks for its ranks, its suspects, and may look once alone.
_LAST: Final = frozenset(("iterations", "verdicts"))

_FIRST_RETRY_S: Final = 0.5
_LAST_RETRY_S: Final = 30.0


class _LoginRefused(SinkBusy):
    """The database does not know our name and password: a new password may stand in its file."""


class ClickHouseSink:
    """Buffers rows per table, and stores them as Arrow inserts. Usable from several threads.

    Inserts are not transactions over several tables: a reader may see a verdict before its iterations. Since rows
    replace rows of equal keys, an insert that failed half-way is simply repeated. `buffer_rows`, `buffer_s`: a write
    that finds this many rows buffered, or some that have waited for this long, stores them first, and no insert has
    more rows: that bounds the memory here and in the database. `keep_days`: see `sinks.migrate.keep`.
    """

    def __init__(
        self, settings: DatabaseSettings, *, buffer_rows: int = 100_000, buffer_s: float = 5.0,
        keep_days: Mapping[str, int] | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._buffer_rows = buffer_rows
        self._buffer_s = buffer_s
        self._keep_days = dict(keep_days or {})
        self._clock = clock
        self._client: Client | None = None
        self._buffer: dict[str, list[pa.Table]] = {}
        self._oldest_at_s = 0.0  # when the first of the buffered rows came; means nothing while there are none
        self._refused: list[tuple[str, pa.Table, str]] = []  # waits for a flush that ends without SinkBusy
        self._failures = 0
        self._lock = threading.RLock()

    def open(self) -> None:
        """Wait for the database, create it if it is missing, and apply migrations.

        Raises `ServiceUnavailable` if it does not answer within ``settings.wait_s``; `ServiceRefused` if it refuses
        us; `InputError` if an applied migration was edited.
        """
        with self._lock:
            if self._client is not None:
                return
            self._settings = self._settings.with_new_password() or self._settings  # it may have been away for long
            client = connect(self._settings, is_creating=True)
            try:
                with translated(self._settings):
                    migrate(client)
                    keep(client, self._keep_days)
            except BaseException:
                disconnect(client)
                raise
            self._client = client

    def write(self, rows: Rows) -> None:
        """Take all rows or none; see `sinks.protocol.Sink.write`."""
        tables = conform(rows)
        with self._lock:
            self._require_open()
            is_old = bool(self._buffer) and self._clock() - self._oldest_at_s >= self._buffer_s
            if is_old or self.buffered_rows >= self._buffer_rows:
                self._store_buffer()  # what is refused now, the next flush reports: these rows are not to blame
            if not self._buffer:
                self._oldest_at_s = self._clock()
            for name, table in tables.items():
                self._buffer.setdefault(name, []).extend(
                    table.slice(first, self._buffer_rows) for first in range(0, table.num_rows, self._buffer_rows)
                )

    def flush(self) -> None:
        """Store the buffered rows; see `sinks.protocol.Sink.flush`."""
        with self._lock:
            self._store_buffer()
            if self._refused:
                # They go with this error: the caller buries them, and the next flush is clean.
                refused_rows, self._refused = self._refused, []
                raise SinkRejected(
                    f"rows must fit the database's columns; got {refused_rows[-1][2]}",
                    tuple((name, chunk) for name, chunk, _ in refused_rows),
                )

    def close(self) -> None:
        """Flush, and close the connection even where that raises. Closing twice is fine."""
        with self._lock:
            if self._client is None:
                return
            try:
                self.flush()
            finally:
                disconnect(self._client)
                self._client = None

    @property
    def buffered_rows(self) -> int:
        """Rows taken, and not stored yet."""
        return sum(chunk.num_rows for chunks in self._buffer.values() for chunk in chunks)

    def _require_open(self) -> Client:
        if self._client is None:
            raise SinkError("sink must be open; call open() before write() and flush()")
        return self._client

    def _store_buffer(self) -> None:
        self._require_open()
        for name in sorted(self._buffer, key=_LAST.__contains__):
            inserts = _inserts(self._buffer[name], self._buffer_rows)
            refused = [one for chunks in inserts for one in self._store(name, chunks)]
            self._refused.extend((name, chunk, reason) for chunk, reason in refused)
            # Table by table: after a `SinkBusy` only the tables that are left are inserted again.
            del self._buffer[name]

    def _store(self, name: str, chunks: list[pa.Table]) -> list[tuple[pa.Table, str]]:
        """Insert the chunks together, or one by one if the database refuses rows; return the refused ones."""
        reason = self._insert_logged_in(name, pa.concat_tables(chunks))
        if reason is None:
            return []
        if len(chunks) == 1:
            return [(chunks[0], reason)]
        return [refused for chunk in chunks for refused in self._store(name, [chunk])]

    def _insert_logged_in(self, name: str, table: pa.Table) -> str | None:
        """Insert; where the login is refused, once more with the password that its file holds now."""
        try:
            return self._insert(self._require_open(), name, table)
        except _LoginRefused:
            new = self._settings.with_new_password()
            if new is None:
                raise
        try:
            # Asked once: the writer waits outside, as `SinkBusy` says, and not here with the lock.
            client = connect(replace(new, wait_s=0.0))
        except ServiceError as error:
            raise SinkBusy(str(error), self._next_retry_s()) from error
        old, self._client, self._settings = self._require_open(), client, new
        disconnect(old)
        return self._insert(client, name, table)

    def _insert(self, client: Client, name: str, table: pa.Table) -> str | None:
        """Insert; return None, or why the database refuses these rows. Raise `SinkBusy` for any other failure."""
        from clickhouse_connect.driver.exceptions import ClickHouseError

        try:
            client.insert_arrow(name, table, settings=_INSERT_SETTINGS)
        except ClickHouseError as error:
            reason = f"{reason_of(error)} (table {name}, {self._settings.address})"
            if getattr(error, "code", None) in _DATA_ERRORS:
                return reason
            if getattr(error, "code", None) in LOGIN_REFUSALS:
                raise _LoginRefused(
                    f"database must accept user {self._settings.user!r}; it refused the login: {reason}",
                    self._next_retry_s(),
                ) from error
            raise SinkBusy(f"database must take rows; got {reason}", self._next_retry_s()) from error
        self._failures = 0
        return None

    def _next_retry_s(self) -> float:
        self._failures += 1
        # Of a thousand failures in a row, two hours, 2 to their number would be no float any more.
        return float(min(_FIRST_RETRY_S * 2 ** min(self._failures - 1, 30), _LAST_RETRY_S))


def _inserts(chunks: list[pa.Table], rows: int) -> Iterator[list[pa.Table]]:
    """Group chunks, none of which has more than `rows` rows, into inserts that have no more either."""
    group: list[pa.Table] = []
    for chunk in chunks:
        if sum(one.num_rows for one in (*group, chunk)) > rows:
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group
