"""The protocol of a sink, and the checks that each sink passes.

Rows travel as Arrow tables, by table name; `sinks.tables` lists the tables, their columns and their keys. A sink
stores at-least-once input exactly once: rows with equal keys are one row, however often and in whatever batches they
come.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import pyarrow as pa

from irregulars.errors import PluginError, SinkRejected
from irregulars.sinks.tables import TABLES, sort_by_key

Rows = Mapping[str, pa.Table]  # Arrow tables by the names in `sinks.tables.TABLES`


class Sink(Protocol):
    """Somewhere to store rows. No base class is needed."""

    def open(self) -> None:
        """Connect and make the tables ready; called once before the first write, and harmless when called again.

        Raises `ServiceUnavailable` if the store does not answer within the time that the sink's settings give it;
        `ServiceRefused` if it answers and refuses us.
        """

    def write(self, rows: Rows) -> None:
        """Take all of `rows`, or none of them. Taken rows are stored by the next `flush` at the latest.

        Raises `SinkBusy` (nothing was taken: write the same rows again after ``retry_after_s``); `SinkRejected`
        (these rows will never be taken; ``rows`` holds them as pairs of table name and Arrow table).
        """

    def flush(self) -> None:
        """Return only when every row taken so far is stored. Commit offsets after this, never before.

        Raises `SinkBusy` (not all rows are stored; the sink keeps them. Flush again after ``retry_after_s``). Raises
        `SinkRejected` (the rows named will never be stored, and were dropped; all others are stored).
        """

    def close(self) -> None:
        """Flush and let go of all resources, even where the flush raises. Closing twice is fine."""


# Makes an unopened sink on an empty store, and a function that reads one table of that store back
MakeSink = Callable[[], tuple[Sink, Callable[[str], pa.Table]]]

_ROWS_CHECKED: Final = 12


def check_sink(make: MakeSink) -> None:
    """Raise `PluginError` unless the sink that `make` builds keeps the promises of `Sink`.

    Raises `PluginError` (the text names the promise and the numbers). `make`: Called once per check; returns an
    unopened sink on an empty store and a function that reads a table back by its name: the stored rows, with at least
    the columns of `sinks.tables.TABLES`, in any order.
    """
    for check in (
        _check_flush_stores, _check_close_stores, _check_twice_is_once, _check_other_batches, _check_nothing_written,
        _check_rejects_whole, _check_works_after_rejection,
    ):  # fmt: skip
        sink, read = make()
        sink.open()
        try:
            check(sink, read)
        finally:
            sink.close()


def _check_flush_stores(sink: Sink, read: Callable[[str], pa.Table]) -> None:
    rows = _sample(_ROWS_CHECKED)
    sink.open()  # a second open must be harmless
    sink.write({"rank_iterations": rows})
    sink.flush()
    _require_stored(read, rows, "after flush")


def _check_close_stores(sink: Sink, read: Callable[[str], pa.Table]) -> None:
    rows = _sample(_ROWS_CHECKED)
    sink.write({"rank_iterations": rows})
    sink.close()
    sink.close()
    _require_stored(read, rows, "after close")


def _check_twice_is_once(sink: Sink, read: Callable[[str], pa.Table]) -> None:
    rows = _sample(_ROWS_CHECKED)
    sink.write({"rank_iterations": rows})
    sink.write({"rank_iterations": rows})
    sink.flush()
    sink.write({"rank_iterations": rows})
    sink.flush()
    _require_stored(read, rows, "after the same rows came three times")


def _check_other_batches(sink: Sink, read: Callable[[str], pa.Table]) -> None:
    rows = _sample(_ROWS_CHECKED)
    for borders in ((0, 5, _ROWS_CHECKED), (0, 1, 8, _ROWS_CHECKED)):
        for first, past in itertools.pairwise(borders):
            sink.write({"rank_iterations": rows.slice(first, past - first)})
        sink.flush()
    _require_stored(read, rows, "after a replay with other batch borders")


def _check_nothing_written(sink: Sink, read: Callable[[str], pa.Table]) -> None:
    sink.write({})
    sink.write({"rank_iterations": _sample(0)})
    sink.flush()
    _require_stored(read, _sample(0), "after empty writes")


def _check_rejects_whole(sink: Sink, read: Callable[[str], pa.Table]) -> None:
    _write_unstorable(sink)
    sink.flush()
    _require_stored(read, _sample(0), "after a write that holds an unknown table (all or nothing)")


def _check_works_after_rejection(sink: Sink, read: Callable[[str], pa.Table]) -> None:
    _write_unstorable(sink)
    rows = _sample(_ROWS_CHECKED)
    sink.write({"rank_iterations": rows})
    sink.flush()
    _require_stored(read, rows, "after good rows that follow rejected ones")


def _write_unstorable(sink: Sink) -> None:
    rows = {"rank_iterations": _sample(_ROWS_CHECKED), "no_such_table": _sample(3)}
    try:
        sink.write(rows)
    except SinkRejected as rejection:
        count = sum(table.num_rows for _, table in rejection.rows)
        if count != _ROWS_CHECKED + 3:
            raise PluginError(
                f"SinkRejected must carry the {_ROWS_CHECKED + 3} rows of the write; got {count}"
            ) from rejection
        return
    raise PluginError("write must raise SinkRejected for an unknown table; got no error")


def _require_stored(read: Callable[[str], pa.Table], wanted: pa.Table, when: str) -> None:
    found = read("rank_iterations").select(wanted.column_names).cast(wanted.schema)
    if found.num_rows != wanted.num_rows:
        raise PluginError(f"sink must hold {wanted.num_rows} rows {when}; got {found.num_rows}")
    if not sort_by_key("rank_iterations", found).equals(sort_by_key("rank_iterations", wanted)):
        raise PluginError(f"sink must hold the written values {when}; got others in {found.num_rows} rows")


def _sample(count: int) -> pa.Table:
    """`count` rows with distinct keys, in no order, some values unknown."""
    columns = {
        "job": ["check-sink"] * count,
        "attempt": [0] * count,
        "iteration": [(7 * row) % count for row in range(count)],
        "rank": [row % 4 for row in range(count)],
        "started_at": [None if row % 5 == 0 else 1_795_234_590_000_000_000 + row for row in range(count)],
        "elapsed_ns": [None if row % 3 == 0 else 1_000_000 + row for row in range(count)],
        "work_ns": [500_000 + row for row in range(count)],
        "operators": list(range(count)),
        "late_rows": [0] * count,
        "score": [None if row % 2 else row / 4 for row in range(count)],
    }
    return pa.table(columns, schema=TABLES["rank_iterations"].schema)
