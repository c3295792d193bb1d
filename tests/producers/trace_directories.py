"""Small trace directories, written by hand: independent of `producers.trace.writer`."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from irregulars.producers.trace.directory import Trace

RECORDINGS = Path(__file__).parent.parent / "recordings"
SCHEMAS = ("commops", "bandwidth", "iterations")
START_NS = 1_795_234_590_000_000_000
Row = Mapping[str, Any]


def job(**changes: Any) -> dict[str, Any]:
    values = {
        "job": "small",
        "world_size": 4,
        "clock": "shared",
        "communicators": {
            "world": {"kind": "world", "ranks": [0, 1, 2, 3]},
            "tp0": {"kind": "tp", "ranks": [0, 1]},
            "pp0": {"kind": "pp", "ranks": [0, 2]},
        },
    } | changes
    return {key: value for key, value in values.items() if value is not ...}


def commop(**changes: Any) -> dict[str, Any]:
    values = {
        "rank": 0, "communicator": "world", "operator": "all_reduce", "sequence": 1, "peer": None,
        "start_ns": START_NS, "elapsed_ns": 1_000, "size_bytes": 64, "iteration": 0,
    }  # fmt: skip
    return values | changes


def write_directory(
    directory: Path,
    commops: Sequence[Row] = (commop(),),
    job_object: Any = ...,
    ending: str = ".parquet",
    **others: Sequence[Row],
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "job.json").write_text(json.dumps(job() if job_object is ... else job_object))
    for schema, rows in {"commops": commops, **others}.items():
        (directory / f"{schema}{ending}").write_bytes(encode_rows(rows, ending))
    return directory


def encode_rows(rows: Sequence[Row], ending: str) -> bytes:
    kind, _, packing = ending[1:].partition(".")
    value = {"parquet": _parquet, "jsonl": _jsonl, "csv": _csv}[kind](rows)
    return gzip.compress(value) if packing else value


def _parquet(rows: Sequence[Row]) -> bytes:
    sink = io.BytesIO()
    pa.parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows] or [commop()]).slice(0, len(rows)), sink)
    return sink.getvalue()


def _jsonl(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _csv(rows: Sequence[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0] if rows else commop()))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def assert_same(found: Trace, expected: Trace) -> None:
    assert found.announcements == expected.announcements
    for schema in SCHEMAS:
        assert found.batches(schema).keys() == expected.batches(schema).keys()
        for rank, batch in expected.batches(schema).items():
            other = found.batches(schema)[rank]
            assert other.header == batch.header
            for name, column in batch.columns.items():
                np.testing.assert_array_equal(other.columns[name], column, strict=True)


def table_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.parquet.read_table(path).to_pylist()
    return rows
