"""Each promise of `Sink` has a sink that breaks it, which `check_sink` must reject."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from irregulars.errors import PluginError, SinkRejected
from irregulars.sinks.protocol import Rows, Sink, check_sink
from irregulars.sinks.tables import TABLES, conform
from tests.sinks.memory_sink import MemorySink


class Appending(MemorySink):
    """Stores the same rows twice."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[pa.Table] = []

    def write(self, rows: Rows) -> None:
        self.rows += [table for name, table in conform(rows).items() if name == "rank_iterations"]

    def read(self, table: str) -> pa.Table:
        return pa.concat_tables([TABLES[table].schema.empty_table(), *self.rows])


class Forgetful(MemorySink):
    """Flush promises what it does not do."""

    def write(self, rows: Rows) -> None:
        conform(rows)


class Late(MemorySink):
    """Stores on flush, and loses on close what was not flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Rows] = []

    def write(self, rows: Rows) -> None:
        self.kept.append(conform(rows))

    def flush(self) -> None:
        kept, self.kept = self.kept, []
        for rows in kept:
            MemorySink.write(self, rows)


class Half(MemorySink):
    """Stores the good half of what it rejects."""

    def write(self, rows: Rows) -> None:
        for name, table in rows.items():
            if name not in TABLES:
                raise SinkRejected("unknown table", tuple(rows.items()))
            super().write({name: table})


class Tolerant(MemorySink):
    """Drops unknown tables without a word."""

    def write(self, rows: Rows) -> None:
        super().write({name: table for name, table in rows.items() if name in TABLES})


class Mute(MemorySink):
    """Rejects without the rows: nothing can go to the dead-letter topic."""

    def write(self, rows: Rows) -> None:
        try:
            super().write(rows)
        except SinkRejected as rejection:
            raise SinkRejected(str(rejection)) from rejection


class Poisoned(MemorySink):
    """Takes nothing more after one rejection."""

    is_poisoned = False

    def write(self, rows: Rows) -> None:
        try:
            super().write({} if self.is_poisoned else rows)
        except SinkRejected:
            self.is_poisoned = True
            raise


class Rounding(MemorySink):
    """Cuts times to microseconds."""

    def read(self, table: str) -> pa.Table:
        rows = super().read(table)
        index = rows.schema.get_field_index("started_at")
        cut = rows.column(index).cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.timestamp("ns", "UTC"))
        return rows.set_column(index, rows.schema.field(index), cut)


class Brittle(MemorySink):
    """Can be closed once."""

    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise SinkRejected("closed twice")
        self.is_closed = True


class Zeroing(MemorySink):
    """Reads unknown as zero."""

    def read(self, table: str) -> pa.Table:
        rows = super().read(table)
        index = rows.schema.get_field_index("elapsed_ns")
        return rows.set_column(index, rows.schema.field(index), rows.column(index).fill_null(0))


def making(kind: type[MemorySink]) -> Callable[[], tuple[Sink, Callable[[str], pa.Table]]]:
    def make() -> tuple[Sink, Callable[[str], pa.Table]]:
        sink = kind()
        return sink, sink.read

    return make


def test_a_sound_sink_passes() -> None:
    check_sink(making(MemorySink))


@pytest.mark.parametrize(
    ("kind", "promise"),
    [
        (Appending, "came three times"),
        (Forgetful, "after flush"),
        (Late, "after close"),
        (Half, "all or nothing"),
        (Tolerant, "must raise SinkRejected"),
        (Mute, "must carry the 15 rows"),
        (Poisoned, "follow rejected ones"),
        (Rounding, "written values"),
        (Zeroing, "written values"),
    ],
)
def test_a_sink_that_breaks_a_promise_is_rejected(kind: type[MemorySink], promise: str) -> None:
    with pytest.raises(PluginError, match=promise):
        check_sink(making(kind))


def test_a_sink_that_cannot_close_twice_is_rejected() -> None:
    with pytest.raises(SinkRejected, match="closed twice"):
        check_sink(making(Brittle))
