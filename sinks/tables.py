"""The database's tables, and the conversion of judgements and samples to their rows.

`TABLES` is read from ``sinks/sql/migrations``; an integration test compares it with a database. Unknown values
(``NaN``, `messages.records.UNKNOWN`, ``None``) become null. Times become timestamps of ns in UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from irregulars.errors import SinkRejected
from irregulars.messages.announcements import Announcement, ranks_to_runs
from irregulars.messages.bounds import usable_rows
from irregulars.messages.judgements import Columns, JudgedIteration, Judgements, Verdict
from irregulars.messages.opinions import Opinion
from irregulars.messages.reasons import encode_reasons
from irregulars.messages.records import EVENT_KINDS, NUMERICS, PATHS, THROTTLE_REASONS, UNKNOWN, Batch
from irregulars.sinks.advice import name_step
from irregulars.sinks.migrate import Migration, shipped_migrations
from irregulars.validation import LARGEST

# Types of columns, without `Nullable`, `LowCardinality` and `Array` around them
_TYPES: Final = {
    "String": pa.string(), "Bool": pa.bool_(), "UInt16": pa.uint16(), "UInt32": pa.uint32(), "Int64": pa.int64(),
    "Float32": pa.float32(), "Float64": pa.float64(), "DateTime64(9, 'UTC')": pa.timestamp("ns", "UTC"),
}  # fmt: skip
_TABLE: Final = re.compile(
    r"CREATE TABLE IF NOT EXISTS (\w+)\n\(\n(.+?)\n\)\n"
    r"ENGINE = ReplacingMergeTree(?:\((\w+)\))?\n.*?ORDER BY (.+?)\n",
    re.DOTALL,
)
_COLUMN: Final = re.compile(r"^ +(\w+) (.+?) COMMENT ", re.MULTILINE)
_ADDED: Final = re.compile(r"^ALTER TABLE (\w+) ADD COLUMN IF NOT EXISTS (\w+) (.+?)(?: DEFAULT .+?)? COMMENT ", re.M)
_WRAPPED: Final = re.compile(r"(?:Array|LowCardinality|Nullable)\((.+)\)")


@dataclass(frozen=True, slots=True)
class TableFormat:
    """Columns of one table, and the key by which two rows are the same row."""

    schema: pa.Schema  # the columns that a sink is given; a field that is not nullable must not be null
    # Columns that together name a row; the row with the largest `version`, else the newest, replaces the others
    key: tuple[str, ...]
    version: str | None = None  # column that says which of two rows with equal keys knows more


def _field(name: str, kind: str) -> pa.Field:
    """Make the field of a column: of ``LowCardinality(Nullable(String))`` a text that may be null."""
    inner = kind
    while wrapped := _WRAPPED.fullmatch(inner):
        inner = wrapped[1]
    of_rows = pa.list_(_TYPES[inner]) if kind.startswith("Array(") else _TYPES[inner]
    return pa.field(name, of_rows, nullable="Nullable(" in kind)


def tables_in(migrations: Iterable[Migration]) -> Iterator[tuple[str, TableFormat]]:
    """Yield the tables that sinks fill, as migrations make them."""
    text = "\n".join(one.sql for one in migrations)
    if re.search(r"^ALTER TABLE \w+\s+(?:DROP|RENAME|MODIFY) COLUMN", text, re.MULTILINE):
        raise AssertionError("columns are read of CREATE TABLE and ADD COLUMN alone")
    added = _ADDED.findall(text)
    for name, columns, version, order in _TABLE.findall(text):
        kinds = dict(_COLUMN.findall(columns))
        if kinds.pop("stored_at").endswith("MATERIALIZED now()"):  # the others a view fills, from these
            kinds |= {column: kind for table, column, kind in added if table == name}
            schema = pa.schema([_field(*column) for column in kinds.items()])
            key = tuple(word for word in re.findall(r"\w+", order) if word in kinds)
            yield name, TableFormat(schema, key, version or None)


# All tables that sinks store
TABLES: Final[Mapping[str, TableFormat]] = dict(tables_in(shipped_migrations()))


def tables_of(judgements: Judgements) -> dict[str, pa.Table]:
    """Convert a job monitor's judgements; tables without rows are left out.

    Raises `SinkRejected` if a value does not fit its column, for example a negative rank; ``rows`` is empty, for
    there are none yet.
    """
    suspects = [
        _of(
            "suspects", suspect, job=verdict.job, verdict_id=verdict.verdict_id, revision=verdict.revision,
            position=position, ranks=list(suspect.ranks),
        )
        for verdict in judgements.verdicts
        for position, suspect in enumerate(verdict.suspects)
    ]  # fmt: skip
    tables = {
        "jobs": _rows("jobs", [_announced(a) for a in judgements.announcements]),
        "attempt_ends": _rows("attempt_ends", [_of("attempt_ends", a, ended_at=a.time_ns) for a in judgements.ends]),
        "iterations": _rows("iterations", [_judged(i) for i in judgements.iterations]),
        "rank_iterations": _columns("rank_iterations", judgements.job, judgements.rank_iterations),
        "audits": _columns("audits", judgements.job, judgements.audits),
        "pauses": _columns("pauses", judgements.job, judgements.pauses),
        "detector_scores": _columns("detector_scores", judgements.job, judgements.detector_scores),
        "operators": _columns("operators", judgements.job, judgements.operators),
        "behaviour_patterns": _columns("behaviour_patterns", judgements.job, judgements.patterns),
        "verdicts": _rows("verdicts", [_verdict(v) for v in judgements.verdicts]),
        "suspects": _rows("suspects", suspects),
    }
    return {name: table for name, table in tables.items() if table.num_rows}


def table_of_opinions(opinions: Sequence[Opinion]) -> pa.Table:
    """Convert people's words on verdicts to rows of ``feedback``; raises `SinkRejected` as `tables_of`."""
    rows = []
    for one in opinions:
        first, past_last = one.iterations
        rows.append(_of("feedback", one, said_at=one.time_ns, first_iteration=first, past_last_iteration=past_last))
    return _rows("feedback", rows)


SAMPLES: Final = ("bandwidth", "gpu_health", "events")
"""Topics whose batches become rows of the table of that name as they are."""

_NAMED: Final = frozenset({"device", "host", "detail"})
_FARTHEST_NS: Final = 30 * 86_400 * 10**9
"""How far rows of a batch may be from its middle one, ns: the longest time that these tables keep rows. Each week
is a partition of its own, so that a batch with times of all weeks would make thousands of parts."""


def table_of_samples(batches: Sequence[Batch]) -> pa.Table:
    """Convert batches of one of the topics `SAMPLES` to rows of the table of that name, all at once.

    A job of a thousand ranks has a thousand of them a second: a table of each took longer than to judge them. Rows
    that no honest producer sends are left out. Raises `SinkRejected` if a value does not fit its column; ``rows`` is
    empty.
    """
    name, counts = batches[0].header.schema, [len(batch) for batch in batches]
    values = {column: np.concatenate([batch.columns[column] for batch in batches]) for column in batches[0].columns}
    values |= {
        "job": np.repeat(np.array([batch.header.job for batch in batches], dtype=object), counts),
        "attempt": np.repeat([batch.header.attempt for batch in batches], counts),
        "rank": np.repeat([batch.header.rank for batch in batches], counts),
        # The tables' columns of times are made of it (`_SOURCES`).
        "start_ns": values["time_ns"],
    }
    for column in _NAMED.intersection(values):
        values[column] = np.concatenate([_decoded(one.columns[column], one.header.names) for one in batches])
    middles_ns = [int(one.columns["time_ns"][len(one) // 2]) if len(one) else 0 for one in batches]
    # As floats: times that can't be would overflow an int64.
    apart_ns = values["time_ns"] - np.repeat(np.array(middles_ns, np.float64), counts)
    is_near, is_usable = np.abs(apart_ns) <= _FARTHEST_NS, usable_rows(name, values)
    is_usable = is_near if is_usable is None else is_usable & is_near
    if not is_usable.all():
        values = {column: own[is_usable] for column, own in values.items()}
    if name == "bandwidth":
        values["path"] = _decoded(values["path"], PATHS)
    elif name == "events":
        values["kind"] = _decoded(values["kind"], EVENT_KINDS)
    else:
        # The names of each mask's bits, as ``power_cap, thermal``; empty: none; None: not known.
        masks = values["throttle_reasons"]
        words = {
            mask: ", ".join(reason for bit, reason in enumerate(THROTTLE_REASONS) if mask >> bit & 1)
            for mask in np.unique(masks).tolist()
        }
        values["throttle_reasons"] = np.array(
            [None if mask == UNKNOWN else words[mask] for mask in masks.tolist()], dtype=object
        )
    return pa.Table.from_arrays(
        [_array(name, field, values) for field in TABLES[name].schema], schema=TABLES[name].schema
    )


def conform(rows: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Convert a caller's tables to the columns and types of `TABLES`; empty ones are left out.

    Raises `SinkRejected` if a table is unknown, a column is missing, of another type, or null where it must not be.
    ``rows`` holds all tables of the call as pairs of name and table, since a write is all or nothing.
    """
    try:
        return {name: _conform(name, table) for name, table in rows.items() if table.num_rows}
    except (pa.ArrowException, ValueError) as error:
        raise SinkRejected(str(error), tuple(rows.items())) from error


def _conform(name: str, table: pa.Table) -> pa.Table:
    if name not in TABLES:
        raise ValueError(f"table must be one of {sorted(TABLES)}; got {name!r}")
    schema = TABLES[name].schema
    missing = set(schema.names) - set(table.column_names)
    if missing:
        raise ValueError(f"rows of {name} must have all of its columns; got none of {sorted(missing)}")
    table = table.select(schema.names)
    for field in schema:
        nulls = table.column(field.name).null_count
        if nulls and not field.nullable:
            raise ValueError(f"{name}.{field.name} must be known in each row; got {nulls} nulls")
    return table.cast(schema)


def _of(name: str, record: object, **others: Any) -> dict[str, Any]:
    """Return a row of table `name`: columns that `others` lacks are attributes of the record of the same name."""
    return {one: others[one] if one in others else getattr(record, one) for one in TABLES[name].schema.names}


def _announced(announcement: Announcement) -> dict[str, Any]:
    # Members are not stored per rank (100,000 ranks would each list 100,000): a communicator's members are the rows
    # that name it.
    communicators = announcement.communicators
    # So with replicas: those of a set have its first rank in common.
    replicas = ranks_to_runs(announcement.replicas or ())
    return _of(
        "jobs", announcement, recorded_until=announcement.recorded_until_ns, sources=list(announcement.sources),
        replicas_of=min((first for first, _, _ in replicas), default=None),
        communicators=[one.id for one in communicators], communicator_kinds=[one.kind for one in communicators],
        communicator_sizes=[len(one.ranks) for one in communicators],
    )  # fmt: skip


def _judged(iteration: JudgedIteration) -> dict[str, Any]:
    step = iteration.part
    part: dict[str, Any] = dict.fromkeys(("part", "part_rank", "part_ns", "part_usual_ns"))
    if step is not None:
        part = {
            "part": name_step(step), "part_rank": step.rank if step.has_rank else None, "part_ns": step.elapsed_ns,
            "part_usual_ns": step.usual_ns,
        }  # fmt: skip
    return _of(
        "iterations", iteration, started_at=iteration.start_ns, reference_ns=_known(iteration.reference_ns),
        verdict_ids=list(iteration.verdict_ids), **part,
    )  # fmt: skip


def _verdict(verdict: Verdict) -> dict[str, Any]:
    first, past_last = verdict.iterations
    return _of(
        "verdicts", verdict, first_iteration=first, past_last_iteration=past_last, delta=_known(verdict.delta),
        last_seen_at=verdict.time_ns, explanation=encode_reasons(verdict.explanation),
    )  # fmt: skip


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _decoded(codes: np.ndarray, names: Sequence[str]) -> np.ndarray:
    return np.array(names, dtype=object)[codes] if len(codes) else np.array([], dtype=object)


# Errors of pyarrow about a value that its column can't hold; the last one is about half of a surrogate pair
_MISFITS: Final = (pa.ArrowException, OverflowError, UnicodeEncodeError)


def _rows(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    try:
        return pa.Table.from_pylist(rows, schema=TABLES[name].schema)
    except _MISFITS as error:
        raise SinkRejected(f"rows of {name} must fit its columns; got {error}") from error


# The pipeline's names of columns, where the database has other ones.
_SOURCES: Final = dict.fromkeys(("started_at", "sampled_at", "reported_at"), "start_ns")


def _columns(name: str, job: str, columns: Columns) -> pa.Table:
    schema = TABLES[name].schema
    if not columns:
        return schema.empty_table()
    count = len(columns["rank"])
    arrays = [
        pa.repeat(pa.scalar(job), count) if field.name == "job" else _array(name, field, columns)
        for field in schema
    ]  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(name: str, field: pa.Field, columns: Columns) -> pa.Array:
    values = columns[_SOURCES.get(field.name, field.name)]
    try:
        return _nullable(np.asarray(values), field)
    except _MISFITS as error:
        raise SinkRejected(f"{name}.{field.name} must be {field.type}; got {error}") from error


def _nullable(values: np.ndarray, field: pa.Field) -> pa.Array:
    if values.dtype.kind == "O":
        return pa.array(values, type=field.type)
    if values.dtype.kind == "f":  # an infinite loss is a finding, an infinite time an error of ours
        unknown = np.isnan(values) if field.name in NUMERICS else ~np.isfinite(values)
    else:
        unknown = values == UNKNOWN
    if values.dtype.kind == "f" and not pa.types.is_floating(field.type):
        whole = np.rint(np.where(unknown, 0, values))  # parts of a nanosecond mean nothing
        values = np.clip(whole, -LARGEST, LARGEST).astype(np.int64)  # sums of odd rows go beyond
    if pa.types.is_timestamp(field.type):
        return pa.array(values.astype(np.int64), mask=unknown).cast(field.type)
    return pa.array(values, mask=unknown).cast(field.type)
