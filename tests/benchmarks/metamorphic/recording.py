"""A recorded job as plain columns over all of its ranks: what changes are made to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from irregulars.messages.announcements import Communicator
from irregulars.messages.records import OPERATORS, PATHS, PHASE_UNKNOWN, PHASES, SCHEMAS, UNKNOWN, Batch
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S
from irregulars.producers.trace.directory import Trace, assemble_trace, read_trace
from irregulars.producers.trace.files import COLUMNS, TableFile
from irregulars.producers.trace.job_file import JobFile, read_job

Array = np.ndarray
Columns = Mapping[str, Array]

_ARROW: Final = {"int": pa.int64(), "time": pa.int64(), "float": pa.float64()}
_NAMED: Final = {"commops": "communicator", "bandwidth": "device"}
"""Column of a schema that holds places in a dictionary of the job."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace directory in memory, as its files hold it."""

    job: JobFile  # what ``job.json`` says
    # By schema (``commops``, ``bandwidth``, ``iterations``) the columns of its file, one value per row in any order.
    # They are those of `messages.records`, beside ``rank`` (int64). ``communicator`` holds places in
    # ``job.communicators``, ``device`` places in `devices`.
    tables: Mapping[str, Columns]
    devices: tuple[str, ...] = ()  # names of the devices that bandwidth was sampled of

    @property
    def logged(self) -> Array:
        return np.unique(np.concatenate([table["rank"] for table in self.tables.values()]))

    @property
    def has_marks(self) -> bool:
        """Whether a row says to which iteration it belongs."""
        is_marked = bool((self.tables["commops"]["iteration"] != UNKNOWN).any())
        return is_marked or len(self.tables["iterations"]["rank"]) > 0

    def with_columns(self, schema: str, **columns: Array) -> Recording:
        return self.with_table(schema, {**self.tables[schema], **columns})

    def with_table(self, schema: str, table: Columns) -> Recording:
        return replace(self, tables={**self.tables, schema: table})

    def with_rows(self, schema: str, rows: Array) -> Recording:
        """Return the same recording with only these rows of a table: a mask, or indices in their new order."""
        return self.with_table(schema, {name: column[rows] for name, column in self.tables[schema].items()})

    def with_more_rows(self, schema: str, more: Columns) -> Recording:
        table = self.tables.get(schema)  # a recording of before audits has none
        return self.with_table(schema, {name: np.concatenate([table[name], more[name]]) for name in table})

    def with_communicators(self, communicators: Sequence[Communicator]) -> Recording:
        """Return the same recording with other communicators; each old one has its place in the list.

        The result has them in order of their ids, as the job file is read, and its rows say the new places.
        """
        order = sorted(range(len(communicators)), key=lambda place: communicators[place].id)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        job = replace(self.job, communicators=tuple(communicators[old] for old in order))
        changed = self.with_columns("commops", communicator=place[self.tables["commops"]["communicator"]])
        return replace(changed, job=job)

    def to_trace(self) -> Trace:
        """Read it as `read_trace` would read it from files: each row is checked, and order and copies go."""
        return assemble_trace(self.job, self._tables_of)

    def _tables_of(self, schema: str) -> list[TableFile]:
        table = self.tables.get(schema)  # audits are among the iterations
        if table is None or (not len(table["rank"]) and schema != "commops"):
            return []
        ids = [communicator.id for communicator in self.job.communicators]
        names = {"operator": OPERATORS, "path": PATHS, "phase": PHASES, "communicator": ids, "device": self.devices}
        arrays = {
            column.name: pa.chunked_array([_to_arrow(table[column.name], column.kind, names.get(column.name))])
            for column in COLUMNS[schema]
        }
        return [TableFile(f"{schema} in memory", schema, arrays)]


def read_recording(directory: Path) -> Recording:
    """Read a trace directory; rows that break the contract are left out.

    Raises `InputError` if a file is unusable, as `read_trace` does.
    """
    return recording_of(read_job(directory), read_trace(directory))


def recording_of(job: JobFile, trace: Trace) -> Recording:
    """Join the rows of a trace over its ranks; `job` is the one that it was read with."""
    ids = {communicator.id: place for place, communicator in enumerate(job.communicators)}
    devices = sorted({name for batch in trace.bandwidth.values() for name in batch.header.names})
    names: Mapping[str, Mapping[str, int]] = {
        "commops": ids, "bandwidth": {name: place for place, name in enumerate(devices)}, "iterations": {},
    }  # fmt: skip
    tables = {schema: _joined(schema, list(trace.batches(schema).values()), names[schema]) for schema in SCHEMAS}
    return Recording(job, tables, tuple(devices))


def _joined(schema: str, batches: Sequence[Batch], places: Mapping[str, int]) -> Columns:
    columns = {
        field.name: _concatenated([batch.columns[field.name] for batch in batches]) for field in SCHEMAS[schema]
    }
    lengths = [len(batch) for batch in batches]
    columns["rank"] = np.repeat(np.array([batch.header.rank for batch in batches], dtype=np.int64), lengths)
    if schema in _NAMED:
        tables = [np.array([places[name] for name in batch.header.names], dtype=np.int64) for batch in batches]
        named = _NAMED[schema]
        columns[named] = _concatenated(
            [table[batch.columns[named]] for table, batch in zip(tables, batches, strict=True)]
        )
    return columns


def _concatenated(columns: Sequence[Array]) -> Array:
    return np.concatenate(columns) if columns else np.empty(0, dtype=np.int64)


def _to_arrow(column: Array, kind: str, names: Sequence[str] | None) -> pa.Array:
    if names is not None:
        is_null = column == PHASE_UNKNOWN if names is PHASES else None
        codes = pa.array(column.astype(np.int32), mask=is_null)
        return pa.DictionaryArray.from_arrays(codes, pa.array(names, type=pa.string()))
    if column.dtype.kind == "f":
        is_null = np.isnan(column)
        if kind == "float":
            return pa.array(column, type=pa.float64(), mask=is_null)
        column = np.where(is_null, 0, column).astype(np.int64)
    else:
        is_null = column == UNKNOWN
    return pa.array(column, type=_ARROW[kind], mask=is_null)


@dataclass(frozen=True, slots=True)
class Naming:
    """From the names in a changed recording to those in the first one; what is not listed has kept its name."""

    # ranks, communicators: New name to old name
    ranks: Mapping[int, int] = field(default_factory=dict)
    communicators: Mapping[str, str] = field(default_factory=dict)
    added: frozenset[int] = frozenset()  # ranks that the first job did not have
    iterations_later: int = 0  # how much larger the numbers of iterations are
    # Half-open range of iterations, in the new numbering, that the first job did not have
    inserted: tuple[int, int] = (0, 0)

    def old_ranks(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Ranks by their old names; added ones are left out where the device has old ones too."""
        kept = [rank for rank in ranks if rank not in self.added]
        return tuple(self.ranks.get(rank, rank) for rank in kept or ranks)

    def old_window(self, iterations: tuple[int, int]) -> tuple[int, int]:
        """Translate a half-open range of iterations; where it ends among inserted ones it ends before them.

        >>> Naming(inserted=(40, 45)).old_window((30, 61)), Naming(inserted=(40, 45)).old_window((42, 61))
        ((30, 56), (40, 56))
        """
        first, past = self.inserted
        begin, last = (number - self.iterations_later for number in (iterations[0], iterations[1] - 1))
        begin = first if first <= begin < past else begin if begin < first else begin - (past - first)
        last = first - 1 if first <= last < past else last if last < first else last - (past - first)
        return begin, last + 1


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a recording is handed to the monitors."""

    # max_rows, max_span_s: Rows and seconds of event time of a batch at most
    max_rows: int = BATCH_ROWS
    max_span_s: float = BATCH_SPAN_S


@dataclass(frozen=True, slots=True)
class Changed:
    recording: Recording
    naming: Naming = Naming()
    delivery: Delivery | None = None  # `None`: the way of delivery is no part of the change
