"""The promises of `irregulars.sinks.protocol.Sink`, checked on any sink."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pytest

from irregulars.errors import SinkRejected
from irregulars.messages.records import NUMERICS
from irregulars.sinks.protocol import Sink
from irregulars.sinks.tables import TABLES

Read = Callable[[str], pa.Table]
MakeSink = Callable[[], tuple[Sink, Read]]  # an unopened sink on an empty store, and how a table of it is read back
_ROWS: Final = 12


def check_sink(make: MakeSink) -> None:
    for check in (flush_stores, close_stores, twice_is_once, borders_do_not_matter, nothing_written, rejection):
        sink, read = make()
        sink.open()
        try:
            check(sink, read)
        finally:
            sink.close()


def flush_stores(sink: Sink, read: Read) -> None:
    sink.open()  # a second open must be harmless
    sink.write({"rank_iterations": sample()})
    sink.flush()
    require_stored(read, sample(), "after flush")


def close_stores(sink: Sink, read: Read) -> None:
    sink.write({"rank_iterations": sample()})
    sink.close()
    sink.close()
    require_stored(read, sample(), "after close")


def twice_is_once(sink: Sink, read: Read) -> None:
    for times in (2, 1):
        for _ in range(times):
            sink.write({"rank_iterations": sample()})
        sink.flush()
    require_stored(read, sample(), "after the same rows came three times")


def borders_do_not_matter(sink: Sink, read: Read) -> None:
    for borders in ((0, 5, _ROWS), (0, 1, 8, _ROWS)):
        for first, past in itertools.pairwise(borders):
            sink.write({"rank_iterations": sample().slice(first, past - first)})
        sink.flush()
    require_stored(read, sample(), "after a replay with other batch borders")


def nothing_written(sink: Sink, read: Read) -> None:
    sink.write({})
    sink.write({"rank_iterations": sample(0)})
    sink.flush()
    require_stored(read, sample(0), "after empty writes")


def rejection(sink: Sink, read: Read) -> None:
    with pytest.raises(SinkRejected) as caught:
        sink.write({"rank_iterations": sample(), "no_such_table": sample(3)})
    assert sum(table.num_rows for _, table in caught.value.rows) == _ROWS + 3, "it carries the rows of the write"
    sink.flush()
    require_stored(read, sample(0), "after a write that holds an unknown table (all or nothing)")
    sink.write({"rank_iterations": sample()})
    sink.flush()
    require_stored(read, sample(), "after good rows that follow rejected ones")


def require_stored(read: Read, wanted: pa.Table, when: str) -> None:
    found = read("rank_iterations").select(wanted.column_names).cast(wanted.schema)
    assert found.num_rows == wanted.num_rows, when
    assert sort_by_key("rank_iterations", found).equals(sort_by_key("rank_iterations", wanted)), when


def sample(count: int = _ROWS) -> pa.Table:
    """Rows with distinct keys, in no order, some values unknown."""
    columns = {
        "job": ["check-sink"] * count, "attempt": [0] * count,
        "iteration": [(7 * row) % count for row in range(count)], "rank": [row % 4 for row in range(count)],
        "started_at": [None if row % 5 == 0 else 1_795_234_590_000_000_000 + row for row in range(count)],
        "elapsed_ns": [None if row % 3 == 0 else 1_000_000 + row for row in range(count)],
        "work_ns": [500_000 + row for row in range(count)], "operators": list(range(count)),
        "late_rows": [0] * count, "lost_rows": list(range(count)),
        "score": [None if row % 2 else row / 4 for row in range(count)],
        **{name: [None if row % 7 else math.inf for row in range(count)] for name in NUMERICS[:-2]},
        **{name: [None if row % 7 else row for row in range(count)] for name in NUMERICS[-2:]},
    }  # fmt: skip
    return pa.table(columns, schema=TABLES["rank_iterations"].schema)


def sort_by_key(name: str, table: pa.Table) -> pa.Table:
    """Sort rows of table `name` by its key: two tables with the same rows become equal."""
    return table.sort_by([(column, "ascending") for column in TABLES[name].key]).combine_chunks()
