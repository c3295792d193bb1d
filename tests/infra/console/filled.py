"""A database as it is at 3 a.m.: real recordings, judged by our own code, with the moments of some moved to now."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from irregulars.sinks.connection import DatabaseSettings
from irregulars.sinks.protocol import Rows
from tests.integration.pipelines import store
from tests.sinks.recorded_jobs import rows_of_recording, with_columns

OVER = ("bench/ddp16-nic-both", "bench/tp2pp2dp2-nic-send")  # jobs that ended some hours ago
LIVE = ("gloo-slow-nic",)
"""Jobs whose fault lasts: the revisions that say that it is over are left out, and what came after it."""

HEALTHY = ("bench/tp2pp2dp2-clean",)
HUNG = "bench/pp4dp2-hang-inside"


def fill(settings: DatabaseSettings, now_s: float | None = None) -> None:
    now_s = time.time() if now_s is None else now_s
    store(
        settings,
        *(moved_to(rows_of_recording(name), now_s - 3600 * (at + 2)) for at, name in enumerate(OVER)),
        *(moved_to(while_it_lasts(rows_of_recording(name)), now_s - 1) for name in LIVE),
        *(moved_to(without_end(rows_of_recording(name)), now_s - 2) for name in HEALTHY),
        moved_to(silent(rows_of_recording(HUNG)), now_s - 900),
    )


def moved_to(rows: Rows, newest_s: float) -> Rows:
    """Return rows whose newest iteration began at a moment, all others as long before it as they did."""
    newest = pc.max(rows["iterations"]["started_at"]).cast(pa.int64()).as_py()
    by_ns = int(newest_s * 1e9) - newest
    return {name: _moved(table, by_ns) for name, table in rows.items()}


def _moved(table: pa.Table, by_ns: int) -> pa.Table:
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            moved = pc.add(table.column(at).cast(pa.int64()), by_ns).cast(field.type)
            table = table.set_column(at, field, moved)
    return table


def without_end(rows: Rows) -> Rows:
    """Return the rows of a job that has not said that it is over."""
    return {name: table for name, table in rows.items() if name != "attempt_ends"}


def while_it_lasts(rows: Rows) -> Rows:
    """Return rows as they were before the verdict closed."""
    rows = without_end(rows)
    verdicts = rows["verdicts"]
    open_ones = verdicts.filter(pc.equal(verdicts["state"], "open"))
    past = pc.max(open_ones["past_last_iteration"]).as_py()
    kept: dict[str, pa.Table] = {}
    for name, table in rows.items():
        if name == "verdicts":
            kept[name] = open_ones
        elif name == "suspects":
            kept[name] = table.filter(pc.less_equal(table["revision"], pc.max(open_ones["revision"])))
        elif "iteration" in table.column_names:
            kept[name] = table.filter(pc.less(table["iteration"], past))
        else:
            kept[name] = table
    return kept


def silent(rows: Rows) -> Rows:
    """Return the rows of a job that hung and was not heard again, where the recording knows that it ended."""
    return with_columns(without_end(rows), ["verdicts"], state="open", close_reason=None)
