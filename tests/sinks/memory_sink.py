"""A sink that keeps rows in memory: for tests, and for programs that have no database."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from irregulars.sinks.protocol import Rows
from irregulars.sinks.tables import TABLES, TableFormat, conform

_Stored = dict[tuple[Any, ...], dict[str, Any]]


class MemorySink:
    """Keeps the newest row of each key.

    >>> sink = MemorySink()
    >>> sink.open()
    >>> sink.read("verdicts").num_rows
    0
    """

    def __init__(self) -> None:
        self._tables: Final[dict[str, _Stored]] = {name: {} for name in TABLES}

    def open(self) -> None:
        """Do nothing: memory is ready."""

    def write(self, rows: Rows) -> None:
        """Store all rows, or raise `SinkRejected` and store none."""
        for name, table in conform(rows).items():
            for row in _without_times(table).to_pylist():
                _put(TABLES[name], self._tables[name], row)

    def flush(self) -> None:
        """Do nothing: what was written is stored."""

    def close(self) -> None:
        """Do nothing: rows can still be read."""

    def read(self, table: str) -> pa.Table:
        """Return the rows of `table`, in the order in which their keys first came."""
        return pa.Table.from_pylist(list(self._tables[table].values()), schema=TABLES[table].schema)


def _without_times(table: pa.Table) -> pa.Table:
    """Return times as integers: Python's datetime would cut nanoseconds off."""
    kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in table.schema]
    return table.cast(pa.schema([field.with_type(kind) for field, kind in zip(table.schema, kinds, strict=True)]))


def _put(table: TableFormat, stored: _Stored, row: dict[str, Any]) -> None:
    key = tuple(row[column] for column in table.key)
    known = stored.get(key)
    if known is None or table.version is None or row[table.version] >= known[table.version]:
        stored[key] = row
