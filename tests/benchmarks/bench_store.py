"""Operators per second that the sink stores in ClickHouse, beside what the database takes.

    python -m tests.benchmarks.bench_store

starts a database of its own, and stores operators as the second hop gives them (columns of numpy, an irregular
iteration of 1,024 ranks at a time), and the same rows as Arrow tables that need nothing but to be inserted.
Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.messages.judgements import Judgements
from irregulars.messages.records import OPERATORS, UNKNOWN
from irregulars.sinks.clickhouse import ClickHouseSink
from irregulars.sinks.connection import DatabaseSettings
from irregulars.sinks.tables import tables_of

_RANKS = 1_024
_NAMES = [f"tp{number}" for number in range(_RANKS // 8)]


def iterations(count: int, operators: int) -> Iterator[Judgements]:
    """Give irregular iterations, of each rank so many operators."""
    rng = np.random.default_rng(1)
    rank = np.repeat(np.arange(_RANKS), operators)
    rows = len(rank)
    for number in range(count):
        start_ns = 1_800_000_000_000_000_000 + number * 300_000_000 + np.sort(rng.integers(0, 300_000_000, rows))
        yield Judgements(
            "bench",
            operators={
                "attempt": np.zeros(rows, dtype=np.int64),
                "iteration": np.full(rows, number),
                "rank": rank,
                "communicator": np.array(_NAMES, dtype=object)[rank // 8],
                "operator": np.array(OPERATORS, dtype=object)[rng.integers(0, 5, rows)],
                "sequence": np.tile(np.arange(operators), _RANKS) + number * operators,
                "peer": np.full(rows, UNKNOWN),
                "start_ns": start_ns,
                "elapsed_ns": np.floor(rng.lognormal(13, 0.3, rows)),
                "size_bytes": np.full(rows, 4e6),
                "gap_ns": np.floor(rng.lognormal(12, 0.3, rows)),
                "wait_ns": np.floor(rng.lognormal(11, 1, rows)),
                "transfer_ns": np.floor(rng.lognormal(11, 0.3, rows)),
                "abnormal_ratio": np.full(rows, np.nan),
            },
        )


def stored_s(sink: ClickHouseSink, tables: Iterable[Mapping[str, pa.Table]]) -> float:
    """Store tables, which may be made meanwhile; return the seconds."""
    began_s = time.monotonic()
    for one in tables:
        sink.write(one)
    sink.flush()
    return time.monotonic() - began_s


def stored_bytes(database: Path) -> int:
    """Return the bytes on disk of all that was inserted into the table ``operators``, told by its columns.

    A part's folder is called ``PARTITION_FIRST_LAST_LEVEL``, by the numbers of its inserts. Those of one insert are
    summed: merged ones hold the same rows again, and stay for some minutes beside what they were merged of.
    """
    newest: dict[tuple[str, str], Path] = {}
    for columns in sorted(database.rglob("*_*_*_*/columns.txt")):
        partition, first, last, _ = columns.parent.name.split("_")
        if first == last and "transfer_ns" in columns.read_text():
            newest[partition, first] = columns.parent
    return sum(file.stat().st_size for part in newest.values() for file in part.iterdir())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--operators", type=int, default=60, help="of each rank in an iteration")
    parser.add_argument("--json", type=Path)
    own = parser.parse_args(arguments)
    judged = list(iterations(own.iterations, own.operators))
    tables = [tables_of(one) for one in judged]
    rows = own.iterations * own.operators * _RANKS
    with (
        tempfile.TemporaryDirectory(prefix="bench-store-") as folder,
        DemoDatabase(Path(folder) / "database") as database,
    ):
        settings = DatabaseSettings(database.url, database.user, database.password, database.database)
        sink = ClickHouseSink(settings)
        sink.open()
        stored_s(sink, tables[:2])  # the first insert of a new database is slower
        bytes_per_row = stored_bytes(Path(folder)) / (2 * own.operators * _RANKS)
        took = {
            "insert of ready tables": stored_s(sink, tables),
            "sink, from numpy": stored_s(sink, map(tables_of, judged)),
        }
        sink.close()
    print(
        f"`python -m tests.benchmarks.bench_store`: {rows:,} rows; {os.cpu_count()} cores shared with the database, "
        f"{platform.machine()}\n"
    )
    print("| what | s | rows/s | of the insert |", "|---|--:|--:|--:|", sep="\n")
    least_s = took["insert of ready tables"]
    for name, seconds in took.items():
        print(f"| {name} | {seconds:.2f} | {rows / seconds:,.0f} | {least_s / seconds:.2f} |")
    print(f"\nOn disk: {bytes_per_row:.1f} bytes a row.")
    if own.json:
        told = {"rows": rows, "took_s": took, "bytes_per_row": bytes_per_row}
        own.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
