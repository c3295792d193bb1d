"""Rows that wait for the database, packed where many of them wait. Plain bookkeeping, usable from several threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

_PACK_BYTES: Final = 1 << 20
"""Loose tables of one name are packed into one block when they take so many bytes; zstd makes them much smaller."""

_TABLE_BYTES: Final = 4096
"""What a table takes beside its values, bytes: a job of 8 ranks gives hundreds of small ones a minute."""

_FIRST: Final = ("verdicts", "suspects", "iterations", "jobs")
"""Taken before the others when the database is back: few rows, and what people look at."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one table: as Arrow tables, or packed as an Arrow stream."""

    name: str
    tables: tuple[pa.Table, ...]
    packed: bytes | None
    size_bytes: int

    def rows(self) -> pa.Table:
        """Return the rows as one table."""
        if self.packed is None:
            return pa.concat_tables(self.tables)
        return pa.ipc.open_stream(self.packed).read_all()


class RowQueue:
    """Rows by table, oldest first. A block that was taken counts until it is `settled`.

    >>> queue = RowQueue()
    >>> queue.add({"jobs": pa.table({"rank": [1]}), "verdicts": pa.table({"revision": [3, 4]})})
    >>> blocks = queue.take_all()
    >>> [(block.name, block.rows().num_rows) for block in blocks]
    [('verdicts', 2), ('jobs', 1)]
    >>> for block in blocks:
    ...     queue.settled(block)
    >>> queue.size_bytes
    0
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._loose: dict[str, list[pa.Table]] = {}
        self._loose_bytes: dict[str, int] = {}
        self._packed: dict[str, list[Block]] = {}
        self._lock: Final = threading.Lock()

    def add(self, tables: Mapping[str, pa.Table]) -> None:
        """Take in rows; packing them may take some milliseconds."""
        with self._lock:
            for name, table in tables.items():
                size_bytes = table.nbytes + _TABLE_BYTES
                self._loose.setdefault(name, []).append(table)
                self._loose_bytes[name] = self._loose_bytes.get(name, 0) + size_bytes
                self.size_bytes += size_bytes
                if self._loose_bytes[name] >= _PACK_BYTES:
                    self._pack(name)

    def take_all(self) -> list[Block]:
        """Return all that waits, by table, the oldest rows of each first."""
        with self._lock:
            loose = {
                name: Block(name, tuple(tables), None, self._loose_bytes[name])
                for name, tables in self._loose.items()
            }
            packed, self._packed, self._loose, self._loose_bytes = self._packed, {}, {}, {}
        blocks = []
        for name in dict.fromkeys((*_FIRST, *packed, *loose)):
            blocks += packed.get(name, [])
            blocks += [loose[name]] if name in loose else []
        return blocks

    def settled(self, block: Block) -> None:
        """Count a block no more: somebody else keeps its rows, or has stored them."""
        with self._lock:
            self.size_bytes -= block.size_bytes

    def _pack(self, name: str) -> None:
        loose, loose_bytes = self._loose.pop(name), self._loose_bytes.pop(name)
        packed = _encode(pa.concat_tables(loose).combine_chunks())
        self._packed.setdefault(name, []).append(Block(name, (), packed, len(packed)))
        self.size_bytes += len(packed) - loose_bytes


def _encode(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
