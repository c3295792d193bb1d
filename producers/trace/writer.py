"""Writing a trace directory, from announcements and batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.kinds import PLACE
from irregulars.messages.records import (
    CODED,
    EVENT_KINDS,
    OPERATORS,
    PATHS,
    PAUSES,
    PHASE_UNKNOWN,
    PHASES,
    UNKNOWN,
    Batch,
)
from irregulars.producers.trace.files import COLUMNS
from irregulars.producers.trace.iteration_events import FILE_COLUMNS

_TYPES: Final = {"int": pa.int64(), "time": pa.int64(), "float": pa.float64(), "text": pa.string()}
_GROUP_ROWS: Final = 1 << 20  # rows that wait in memory before they are written
_NAMES: Final = {"kind": EVENT_KINDS, "operator": OPERATORS, "path": PATHS, "phase": PHASES, "cause": PAUSES}
_PLACE_KEYS: Final = (*PLACE, "lost_rows")


def write_trace(directory: Path | str, announcements: Iterable[Announcement], batches: Iterable[Batch]) -> None:
    """Write a trace directory (``infra/docs/trace-directory.md``) in parquet, in memory that does not grow with it.

    `directory`: is made where it does not exist. Files of an earlier trace are replaced. `announcements`: all of one
    attempt of one job. `batches`: in any order; ranks and schemas may mix. Raises InputError if announcements are
    missing, or are of several jobs, or contradict each other.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    job = _job_object(list(announcements))
    (directory / "job.json").write_text(json.dumps(job, indent=1) + "\n", encoding="utf-8")
    writers = {schema: _TableWriter(directory / f"{schema}.parquet", schema) for schema in COLUMNS}
    try:
        for batch in batches:
            for schema, part in _parts_of(batch):
                writers[schema].add(part)
    finally:
        for writer in writers.values():
            writer.close()


def _job_object(announcements: Sequence[Announcement]) -> dict[str, Any]:
    if not announcements:
        raise InputError("announcements must be at least one; got none")
    first = announcements[0]
    common = ("job", "attempt", "world_size", "clock", "recorded_until_ns")
    for name in common:
        values = {getattr(announcement, name) for announcement in announcements}
        if len(values) > 1:
            raise InputError(f"{name} must be the same in all announcements; got {sorted(values, key=str)[:3]}")
    job: dict[str, Any] = {name: getattr(first, name) for name in common}
    found: dict[str, Communicator] = {}
    for communicator in (one for announcement in announcements for one in announcement.communicators):
        known = found.setdefault(communicator.id, communicator)
        if known is not communicator and known != communicator:
            rule = "the same in all announcements"
            raise InputError(f"communicator {known.id!r} must be {rule}; got {known} and {communicator}")
    job["communicators"] = {c.id: {"kind": c.kind, "ranks": list(c.ranks)} for c in found.values()}
    replicas = sorted({tuple(sorted(a.replicas)) for a in announcements if a.replicas is not None})
    job["replicas"] = [list(one) for one in replicas] or None
    job["fabric"] = {lower: uppers for a in announcements for lower, uppers in (a.fabric or {}).items()} or None
    places = {a.rank: {k: getattr(a, k) for k in _PLACE_KEYS if getattr(a, k) is not None} for a in announcements}
    # An announced rank that does not log is known by its place alone, even by an empty one.
    job["ranks"] = {str(a.rank): places[a.rank] for a in announcements if places[a.rank] or not a.is_logged}
    job["logged_ranks"] = sorted({a.rank for a in announcements if a.is_logged})
    return {key: value for key, value in job.items() if value is not None}


def _parts_of(batch: Batch) -> Iterator[tuple[str, Batch]]:
    """Yield the rows of a batch for each file: audits and pauses travel among iterations, with files of their own."""
    is_left = np.ones(len(batch), dtype=bool)
    for schema, names in FILE_COLUMNS.items():
        is_own = batch.columns.get(next(iter(names)), np.full(len(batch), UNKNOWN)) != UNKNOWN
        if is_own.any():
            columns = {to: batch.columns[name] for name, to in {"iteration": "iteration", **names}.items()}
            yield schema, Batch(batch.header, {name: column[is_own] for name, column in columns.items()})
            is_left &= ~is_own
    if is_left.all():
        yield batch.header.schema, batch
    elif is_left.any():
        yield "iterations", Batch(batch.header, {name: column[is_left] for name, column in batch.columns.items()})


class _TableWriter:
    """One parquet file, which exists only if rows came, or if the contract wants it."""

    def __init__(self, path: Path, schema: str) -> None:
        self._path, self._schema = path, schema
        self._arrow = pa.schema([pa.field(c.name, _TYPES[c.kind], nullable=c.nullable) for c in COLUMNS[schema]])
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._file: pa.parquet.ParquetWriter | None = None
        # A file of an earlier trace must not stay beside this one if no rows come.
        path.unlink(missing_ok=True)

    def add(self, batch: Batch) -> None:
        names = _NAMES | dict.fromkeys(CODED, batch.header.names)
        columns = {"rank": pa.array(np.full(len(batch), batch.header.rank, dtype=np.int64))}
        for name, column in batch.columns.items():
            if name in names:
                codes = pa.array(column.astype(np.int32), mask=column == PHASE_UNKNOWN if name == "phase" else None)
                columns[name] = pa.DictionaryArray.from_arrays(codes, pa.array(names[name], type=pa.string()))
            else:
                is_unknown = np.isnan(column) if column.dtype.kind == "f" else column == UNKNOWN
                columns[name] = pa.array(column, mask=is_unknown)
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(len(batch), field.type)
            for field in self._arrow
        ]
        self._waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._arrow))
        self._waiting_rows += len(batch)
        if self._waiting_rows >= _GROUP_ROWS:
            self._write()

    def close(self) -> None:
        if self._waiting_rows or (self._schema == "commops" and self._file is None):
            self._write()
        if self._file is not None:
            self._file.close()

    def _write(self) -> None:
        if self._file is None:
            self._file = pa.parquet.ParquetWriter(self._path, self._arrow, compression="zstd")
        self._file.write_table(pa.Table.from_batches(self._waiting, schema=self._arrow), row_group_size=_GROUP_ROWS)
        self._waiting, self._waiting_rows = [], 0
