"""What travels from the first hop to the second: evidence rows and membership, encoded for the topic ``evidence``.

One evidence row says of one rank and one iteration: how long, how much of it in operators and how much between them,
per class of operators a few sums, and where in ``commops`` the operators themselves are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from irregulars.errors import RecordError
from irregulars.streams.messages.announcements import Announcement, decode_announcement, encode_announcement
from irregulars.streams.messages.json_fields import (
    LARGEST,
    MAX_RANK,
    first_line,
    integer,
    json_object,
    optional_text,
    text,
    texts,
)
from irregulars.streams.messages.records import (
    OPERATORS,
    PHASE_UNKNOWN,
    UNKNOWN,
    check_version,
    encode_arrow,
    encode_json,
)

Array = np.ndarray

COLUMNS: Final[Mapping[str, Any]] = {
    "attempt": pa.int64(),
    "rank": pa.int32(),
    "iteration": pa.int64(),
    "start_ns": pa.int64(),  # of the iteration, the host's own clock
    "elapsed_ns": pa.int64(),
    "entry_ns": pa.int64(),  # when the rank was free to begin: end of its last operator before; null: not known
    "last_end_ns": pa.int64(),  # end of its last operator; later rows of the iteration came too late
    "work_ns": pa.float64(),  # sum of the gaps between its operators
    "communication_ns": pa.float64(),  # sum of elapsed of its operators
    "operators": pa.int32(),
    "unended": pa.int32(),  # of them, those that were entered and never ended
    "late_rows": pa.int64(),  # rows that came after their iteration was closed, since the row before
    "lost_rows": pa.int64(),  # rows known to be lost so far
    "phase": pa.uint8(),
    "tokens": pa.float64(),
    "score": pa.float32(),  # largest score of an operator by the detectors of the first hop; NaN: no opinion
    "nic_tx_peak": pa.float32(),  # highest rate of its NIC's samples, bytes per second; NaN: no sample
    "nic_rx_peak": pa.float32(),
    "partition": pa.int32(),  # of `commops`, for `offsets`
}
"""Flat columns and their types on the wire; in the process int64 (`UNKNOWN`) or float64 (NaN), ``phase`` uint8."""

CLASS_COLUMNS: Final[Mapping[str, Any]] = {
    "communicator": pa.uint16(),  # index into the batch's names
    "operator": pa.uint8(),
    "peer": pa.int32(),  # -1 for collectives
    "count": pa.int32(),
    "shortest_ns": pa.float32(),  # least elapsed, rounded down to 11 binary digits
}
"""Columns of the classes (communicator, operator, peer) of each row: of recvs and of collectives of many ranks, which
say where to look without reading their operators."""

PATTERN_COLUMNS: Final[Mapping[str, Any]] = {
    "communicator": pa.int32(),  # index into the batch's names; -1: all operators, and the time between them
    "operator": pa.int8(),  # index into OPERATORS; -1 with communicator -1
    "share": pa.float32(),  # of the iteration
    "tx_mean": pa.float32(),  # of the NIC's rates sent meanwhile, bytes per second; NaN: under five samples
    "tx_deviation": pa.float32(),
    "rx_mean": pa.float32(),
    "rx_deviation": pa.float32(),
}
"""Columns of the behaviour patterns of each row, 6 binary digits each: only of what took more than a hundredth of the
iteration while there were enough samples of the NIC."""


_PATTERNS: Final = "patterns"
_PATTERN: Final = pa.struct([pa.field(name, kind, nullable=False) for name, kind in PATTERN_COLUMNS.items()])
"""One pattern; a batch that has any holds a list of them per row in the column ``patterns``."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence rows of one job as columns.

    Parameters
    ----------
    names
        Communicator ids; the classes' ``communicator`` are indices into them.
    columns
        As `COLUMNS` says, all of one length, the number of rows.
    offsets, offset_counts
        Offsets of the `commops` batches that hold each row's operators, all rows' one after the other, and how many
        of them belong to each row.
    classes, class_counts
        As `CLASS_COLUMNS` says, likewise.
    patterns, pattern_counts
        As `PATTERN_COLUMNS` says, likewise.
    """

    job: str
    names: tuple[str, ...]
    columns: Mapping[str, Array]
    offsets: Array
    offset_counts: Array
    classes: Mapping[str, Array]
    class_counts: Array
    patterns: Mapping[str, Array]
    pattern_counts: Array

    def __len__(self) -> int:
        return len(self.columns["rank"])


@dataclass(frozen=True, slots=True)
class Membership:
    """One rank came (``announcement`` is given) or went (``reason`` is given)."""

    job: str
    attempt: int
    rank: int
    announcement: Announcement | None = None
    reason: str | None = None


def concatenate(pieces: Sequence[Evidence]) -> Evidence:
    """Join evidence of one job, in order."""
    names = {name: code for code, name in enumerate(dict.fromkeys(name for piece in pieces for name in piece.names))}
    tables = [code_table(piece.names, names) for piece in pieces]
    return Evidence(
        job=pieces[0].job,
        names=tuple(names),
        columns={name: np.concatenate([piece.columns[name] for piece in pieces]) for name in COLUMNS},
        offsets=np.concatenate([piece.offsets for piece in pieces]),
        offset_counts=np.concatenate([piece.offset_counts for piece in pieces]),
        classes=join_coded([piece.classes for piece in pieces], tables),
        class_counts=np.concatenate([piece.class_counts for piece in pieces]),
        patterns=join_coded([piece.patterns for piece in pieces], tables),
        pattern_counts=np.concatenate([piece.pattern_counts for piece in pieces]),
    )


def select(evidence: Evidence, is_chosen: Array) -> Evidence:
    """Take some rows of evidence; `is_chosen` has one boolean per row."""
    return Evidence(
        job=evidence.job,
        names=evidence.names,
        columns={name: column[is_chosen] for name, column in evidence.columns.items()},
        offsets=evidence.offsets[np.repeat(is_chosen, evidence.offset_counts)],
        offset_counts=evidence.offset_counts[is_chosen],
        classes={n: column[np.repeat(is_chosen, evidence.class_counts)] for n, column in evidence.classes.items()},
        class_counts=evidence.class_counts[is_chosen],
        patterns={
            n: column[np.repeat(is_chosen, evidence.pattern_counts)] for n, column in evidence.patterns.items()
        },
        pattern_counts=evidence.pattern_counts[is_chosen],
    )


def code_table(names: Sequence[str], codes: Mapping[str, int]) -> Array:
    """Return the code of each name, and at the end -1: that of what has no communicator."""
    return np.array([*(codes[name] for name in names), -1], dtype=np.int64)


def join_coded(parts: Sequence[Mapping[str, Array]], tables: Sequence[Array]) -> dict[str, Array]:
    """Join columns one after the other, with communicators coded anew by the `code_table` of each part."""
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    coded = [table[part["communicator"]] for table, part in zip(tables, parts, strict=True)]
    return joined | {"communicator": np.concatenate(coded)}


def encode_evidence(rows: Sequence[Evidence | Membership], job: str) -> list[bytes]:
    """Encode what RankMonitors of one job drained: one message of memberships, one of evidence; empty ones left out.

    A rank's arrival goes before evidence and its departure after it, as it drained them.
    """
    came = [row for row in rows if isinstance(row, Membership) and row.reason is None]
    went = [row for row in rows if isinstance(row, Membership) and row.reason is not None]
    pieces = [row for row in rows if isinstance(row, Evidence) and len(row)]
    messages = [_encode_members(job, came)] if came else []
    messages += [_encode_rows(concatenate(pieces))] if pieces else []
    return messages + ([_encode_members(job, went)] if went else [])


def decode_evidence(value: bytes | None) -> list[Evidence | Membership]:
    """Decode one message of the topic ``evidence``.

    Raises
    ------
    RecordError
        If it is neither of the two.
    """
    if value and value[:1] == b"{":
        return list(_decode_members(value))
    return [_decode_rows(value or b"")]


def _encode_members(job: str, members: Sequence[Membership]) -> bytes:
    rows = [
        {
            "attempt": member.attempt,
            "rank": member.rank,
            "reason": member.reason,
            "announcement": None
            if member.announcement is None
            else json.loads(encode_announcement(member.announcement)),
        }
        for member in members
    ]
    return encode_json("membership", {"job": job, "members": rows})


def _decode_members(value: bytes) -> list[Membership]:
    record = json_object(value, "membership")
    check_version(record, "membership")
    try:
        job = text(record, "job")
        return [_decode_member(job, row) for row in record["members"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"membership must follow its schema; got {first_line(error)}") from error


def _decode_member(job: str, row: Mapping[str, Any]) -> Membership:
    announced = row["announcement"]
    announcement = None if announced is None else decode_announcement(json.dumps(announced).encode())
    rank, attempt = integer(row, "rank", 0, MAX_RANK), integer(row, "attempt")
    said = None if announcement is None else (announcement.job, announcement.attempt, announcement.rank)
    if said not in (None, (job, attempt, rank)):
        raise RecordError(f"announcement of {(job, attempt, rank)} must be its own; got that of {said}")
    return Membership(job, attempt, rank, announcement, optional_text(row, "reason"))


def _encode_rows(evidence: Evidence) -> bytes:
    arrays = {name: _to_wire(evidence.columns[name], kind) for name, kind in COLUMNS.items()}
    arrays["offsets"] = _lists(evidence.offset_counts, evidence.offsets, pa.int64())
    for name, kind in CLASS_COLUMNS.items():
        arrays[f"class_{name}"] = _lists(evidence.class_counts, evidence.classes[name], kind)
    if evidence.pattern_counts.any():  # without samples of NICs there are none, and columns without rows cost too
        arrays[_PATTERNS] = _pattern_lists(evidence)
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    options = pa.ipc.IpcWriteOptions(compression="zstd")  # it moves on every iteration of every rank
    return encode_arrow("evidence", {"job": evidence.job, "names": evidence.names}, batch, options)


def _to_wire(column: Array, kind: Any) -> pa.Array:
    if column.dtype.kind == "f":
        return pa.array(column, type=kind)
    mask = column == UNKNOWN if column.dtype == np.int64 else None
    return pa.array(np.where(mask, 0, column) if mask is not None else column, mask=mask).cast(kind)


def _lists(counts: Array, values: Array, kind: Any) -> pa.ListArray:
    splits = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(splits), pa.array(values).cast(kind))


def _decode_rows(value: bytes) -> Evidence:
    try:
        with pa.ipc.open_stream(value) as reader:
            metadata = json_object((reader.schema.metadata or {}).get(b"irregulars"), "metadata `irregulars`")
            check_version(metadata, "evidence")
            names = texts(metadata, "names")
            batch = reader.read_next_batch()
            batch.validate(full=True)
        _require_columns(batch)
        _require_values(batch, len(names))
        columns = {name: _from_wire(batch.column(name), name) for name in COLUMNS}
        classes = {name: batch.column(f"class_{name}").flatten() for name in CLASS_COLUMNS}
        patterns, pattern_counts = _patterns_from_wire(batch)
        return Evidence(
            job=text(metadata, "job"),
            names=names,
            columns=columns,
            offsets=np.asarray(batch.column("offsets").flatten()),
            offset_counts=np.diff(np.asarray(batch.column("offsets").offsets)),
            classes={name: _class_from_wire(column) for name, column in classes.items()},
            class_counts=np.diff(np.asarray(batch.column("class_count").offsets)),
            patterns=patterns,
            pattern_counts=pattern_counts,
        )
    except (pa.ArrowException, StopIteration, OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"evidence must follow its schema; got {first_line(error)}") from error


def _require_columns(batch: Any) -> None:
    """Require the types; integers may be wider, as those of ``attempt`` once were narrower."""
    wanted = dict(COLUMNS) | {f"class_{name}": pa.list_(kind) for name, kind in CLASS_COLUMNS.items()}
    for name, kind in (wanted | {"offsets": pa.list_(pa.int64())}).items():
        found = batch.column(name).type
        if found != kind and not (pa.types.is_integer(found) and pa.types.is_integer(kind)):
            raise RecordError(f"column {name!r} must be {kind}; got {found}")


def _require_values(batch: Any, names: int) -> None:
    """Require what the monitors index with."""
    for name, most in {"rank": MAX_RANK, "partition": MAX_RANK, "attempt": LARGEST, "iteration": LARGEST}.items():
        least = 0 if most == MAX_RANK else -most
        _require_range(batch.column(name), name, least, most)
    for name in ("offsets", *(f"class_{name}" for name in CLASS_COLUMNS)):
        if batch.column(name).null_count or batch.column(name).flatten().null_count:
            raise RecordError(f"column {name!r} must be known in each row; got nulls")
    _require_range(batch.column("offsets").flatten(), "offsets", 0, LARGEST)
    _require_range(batch.column("class_communicator").flatten(), "class_communicator", 0, names - 1)
    if len({batch.column(f"class_{name}").offsets.to_numpy().tobytes() for name in CLASS_COLUMNS}) > 1:
        raise RecordError("columns of classes must be equally long in each row; they are not")
    if _PATTERNS in batch.schema.names:
        _require_patterns(batch.column(_PATTERNS), names)


def _require_patterns(column: Any, names: int) -> None:
    if column.type != pa.list_(_PATTERN):
        raise RecordError(f"column {_PATTERNS!r} must be {pa.list_(_PATTERN)}; got {column.type}")
    rows = column.flatten()
    if column.null_count or rows.null_count or any(rows.field(n).null_count for n in PATTERN_COLUMNS):
        raise RecordError(f"column {_PATTERNS!r} must be known in each row; got nulls")
    _require_range(rows.field("communicator"), "communicator of a pattern", -1, names - 1)
    _require_range(rows.field("operator"), "operator of a pattern", -1, len(OPERATORS) - 1)


def _require_range(column: Any, name: str, least: int, most: int) -> None:
    if column.null_count:
        raise RecordError(f"column {name!r} must be known in each row; got {column.null_count} nulls")
    values = np.asarray(column)
    if len(values) and not least <= int(values.min()) <= int(values.max()) <= most:
        raise RecordError(f"{name} must be from {least} to {most}; got {values.min()} to {values.max()}")


def _from_wire(column: pa.Array, name: str) -> Array:
    if name == "phase":
        return np.asarray(column.fill_null(PHASE_UNKNOWN))
    if pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    return np.asarray(column.cast(pa.int64()).fill_null(UNKNOWN))


def _pattern_lists(evidence: Evidence) -> pa.ListArray:
    fields = [pa.array(evidence.patterns[name]).cast(kind) for name, kind in PATTERN_COLUMNS.items()]
    splits = np.concatenate([[0], np.cumsum(evidence.pattern_counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(splits), pa.StructArray.from_arrays(fields, fields=list(_PATTERN)), type=pa.list_(_PATTERN)
    )


def _patterns_from_wire(batch: Any) -> tuple[dict[str, Array], Array]:
    if _PATTERNS not in batch.schema.names:
        return no_patterns(batch.num_rows)
    column = batch.column(_PATTERNS)
    rows = column.flatten()
    counts = np.diff(np.asarray(column.offsets))
    return {name: _class_from_wire(rows.field(name)) for name in PATTERN_COLUMNS}, counts


def no_patterns(rows: int) -> tuple[dict[str, Array], Array]:
    """Columns without patterns, and as many counts of none as there are rows."""
    columns: dict[str, Array] = {
        name: np.empty(0, np.float64 if pa.types.is_floating(kind) else np.int64)
        for name, kind in PATTERN_COLUMNS.items()
    }
    return columns, np.zeros(rows, dtype=np.int64)


def _class_from_wire(column: pa.Array) -> Array:
    return np.asarray(column).astype(np.float64 if pa.types.is_floating(column.type) else np.int64)
