"""The sink that stores rows in ClickHouse."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from irregulars.errors import SinkBusy, SinkError, SinkRejected
from irregulars.sinks.connection import DatabaseSettings, connect, reason_of, translated
from irregulars.sinks.migrate import migrate
from irregulars.sinks.protocol import Rows
from irregulars.sinks.tables import conform

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

__all__ = ["ClickHouseSink", "DatabaseSettings"]

_DATA_ERRORS: Final = frozenset({6, 26, 27, 33, 38, 41, 43, 53, 69, 70, 72, 117, 128, 131, 321, 349, 407, 469, 691})
"""ClickHouse error codes that blame the rows: can't parse, wrong type, out of range, a constraint violated, …

Every other code blames the moment (too many parts, no memory, no disk, a table or column gone, credentials changed):
the rows are good, and are kept until somebody has repaired the database.
"""

# async_insert would answer before the rows are stored (the default since 26.2). Nulls in columns that have none must
# be errors, not zeros. A recording with wild clocks may span any number of partitions.
_INSERT_SETTINGS: Final[dict[str, Any]] = {
    "async_insert": 0, "input_format_null_as_default": 0, "max_partitions_per_insert_block": 0,
}  # fmt: skip

_FIRST_RETRY_S: Final = 0.5
_LAST_RETRY_S: Final = 30.0


class ClickHouseSink:
    """Buffers rows per table, and stores them as Arrow inserts. Usable from several threads.

    Inserts are not transactions over several tables: a reader may see a verdict before its iterations. Since rows
    replace rows of equal keys, an insert that failed half-way is simply repeated.

    Parameters
    ----------
    settings
        Where the database is.
    buffer_rows
        A write that finds this many rows buffered flushes them first; bounds memory, and makes inserts large.
    """

    def __init__(self, settings: DatabaseSettings, *, buffer_rows: int = 100_000) -> None:
        self._settings = settings
        self._buffer_rows = buffer_rows
        self._client: Client | None = None
        self._buffer: dict[str, list[pa.Table]] = {}
        self._refused: list[tuple[str, pa.Table, str]] = []  # waits for a flush that ends without SinkBusy
        self._failures = 0
        self._lock = threading.RLock()

    def open(self) -> None:
        """Wait for the database, create it if it is missing, and apply migrations.

        Raises
        ------
        ServiceUnavailable
            If it does not answer within ``settings.wait_s``.
        ServiceRefused
            If it refuses us.
        InputError
            If an applied migration was edited.
        """
        with self._lock:
            if self._client is not None:
                return
            client = connect(self._settings, is_creating=True)
            with translated(self._settings):
                migrate(client)
            self._client = client

    def write(self, rows: Rows) -> None:
        """Take all rows or none; see `sinks.protocol.Sink.write`."""
        tables = conform(rows)
        with self._lock:
            self._require_open()
            if self.buffered_rows >= self._buffer_rows:
                self._store_buffer()  # what is refused now, the next flush reports: these rows are not to blame
            for name, table in tables.items():
                self._buffer.setdefault(name, []).append(table)

    def flush(self) -> None:
        """Store what is buffered; see `sinks.protocol.Sink.flush`."""
        with self._lock:
            self._store_buffer()
            if self._refused:
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
                self._client.close_connections()
                self._client.close()
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
        client = self._require_open()
        for name in list(self._buffer):
            refused = self._store(client, name, self._buffer[name])
            self._refused.extend((name, chunk, reason) for chunk, reason in refused)
            del self._buffer[name]

    def _store(self, client: Client, name: str, chunks: list[pa.Table]) -> list[tuple[pa.Table, str]]:
        """Insert the chunks together.

        If the database refuses the rows, insert them chunk by chunk; return the refused ones.
        """
        reason = self._insert(client, name, pa.concat_tables(chunks))
        if reason is None:
            return []
        if len(chunks) == 1:
            return [(chunks[0], reason)]
        return [refused for chunk in chunks for refused in self._store(client, name, [chunk])]

    def _insert(self, client: Client, name: str, table: pa.Table) -> str | None:
        """Insert; return None, or why the database refuses these rows. Raise `SinkBusy` for any other failure."""
        from clickhouse_connect.driver.exceptions import ClickHouseError

        try:
            client.insert_arrow(name, table, settings=_INSERT_SETTINGS)
        except ClickHouseError as error:
            reason = f"{reason_of(error)} (table {name}, {self._settings.address})"
            if getattr(error, "code", None) in _DATA_ERRORS:
                return reason
            raise SinkBusy(f"database must take rows; got {reason}", self._next_retry_s()) from error
        self._failures = 0
        return None

    def _next_retry_s(self) -> float:
        self._failures += 1
        return float(min(_FIRST_RETRY_S * 2 ** (self._failures - 1), _LAST_RETRY_S))
