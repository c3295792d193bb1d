"""Messages from the first hop to the second, on the topic ``evidence``: evidence rows and membership.

An evidence row is about one rank in one iteration. It holds how long the iteration took, how much of that lay in
operators and how much between them, a few sums for each class of operators, and the places in ``commops`` where the
operators themselves are.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Final, Self, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Meta

from irregulars.arrow_numpy import from_numpy, to_arrow, to_numpy
from irregulars.dtypes import Column, Flags, Ints
from irregulars.errors import RecordError
from irregulars.messages.announcements import Announcement, decode_announcement, encode_announcement
from irregulars.messages.arrow_limits import require_bounded
from irregulars.messages.bounds import BOUNDS, MOMENT, Bound
from irregulars.messages.device_events import DeviceEvent
from irregulars.messages.ragged import Ragged, concatenate_ragged
from irregulars.messages.records import (
    NUMERICS,
    OPERATORS,
    PAUSES,
    PHASE_UNKNOWN,
    PHASES,
    UNKNOWN,
    check_version,
    encode_arrow,
    encode_json,
    without_unknown_start,
)
from irregulars.validation import MAX_RANK, Count, JobName, Label, Name, Rank, checked, first_line, json_object

COLUMNS: Final[Mapping[str, Any]] = {
    "attempt": pa.int64(),  # or the number that stands for the start: `announcements.code_of_start`
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

DETECTOR_SCORE: Final = "score:"
"""Begins the names of further flat columns, float32: the largest score of an operator by one detector of the first
hop, whose name follows. A row of a rank without that detector has NaN."""

DETECTOR_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,62}")
"""Names of detectors: a letter, then letters, digits and ``_.:-``, at most 63 characters in all."""

MOST_DETECTORS: Final = 16
"""Detectors of operators of which a message has columns: whatever comes is kept for each rank and iteration."""

CLASS_COLUMNS: Final[Mapping[str, Any]] = {
    "communicator": pa.uint16(),  # index into the batch's names
    "operator": pa.uint8(),
    "peer": pa.int32(),  # -1 for collectives
    "count": pa.int32(),
    "shortest_ns": pa.float32(),  # least elapsed, rounded down to 11 binary digits
}
"""Columns of the classes (communicator, operator, peer) of each row. Only recvs and collectives of many ranks have
classes: they tell the second hop which ranks to read, before it has read any operator."""

NUMERIC_COLUMNS: Final[Mapping[str, Any]] = {
    name: pa.int64() if name == "parameters_checksum" else pa.float64() for name in NUMERICS
}
"""Further flat columns: the numerics of an iteration on its rank, as `ITERATIONS` says. A message has those of which
it knows any value; unknown is NaN, or `UNKNOWN`."""

NUMERIC_UNKNOWN: Final[Mapping[str, float | int]] = {
    name: UNKNOWN if kind == pa.int64() else math.nan for name, kind in NUMERIC_COLUMNS.items()
}
"""How an unknown value looks in each of `NUMERIC_COLUMNS`."""

AUDIT_COLUMNS: Final[Mapping[str, Any]] = {"of_rank": pa.int64(), "checksum": pa.int64()}
"""Columns of the audits of each row: whose micro-batch its rank computed again, and the checksum of the gradients."""

PAUSE_COLUMNS: Final[Mapping[str, Any]] = {"cause": pa.int64(), "start_ns": pa.int64(), "elapsed_ns": pa.int64()}
"""Columns of the pauses of each row: why (an index into `PAUSES`), from when, and for how long."""

_EVENTS: Final[Mapping[str, tuple[Mapping[str, Any], Mapping[str, Bound]]]] = {
    "audit": (AUDIT_COLUMNS, {"of_rank": Bound(0, MAX_RANK)}),
    "pause": (
        PAUSE_COLUMNS,
        {"cause": Bound(0, len(PAUSES) - 1)} | dict.fromkeys(("start_ns", "elapsed_ns"), MOMENT),
    ),
}
"""Entries of which a row may own any number: their columns, and the bounds of these."""

PATTERN_COLUMNS: Final[Mapping[str, Any]] = {
    "communicator": pa.int32(),  # index into the batch's names; -1: all operators, and the time between them
    "operator": pa.int8(),  # index into OPERATORS; -1 with communicator -1
    "share": pa.float32(),  # of the iteration
    "tx_mean": pa.float32(),  # of the NIC's rates sent meanwhile, bytes per second; NaN: under five samples
    "tx_deviation": pa.float32(),
    "rx_mean": pa.float32(),
    "rx_deviation": pa.float32(),
}
"""Columns of the behaviour patterns of each row, 6 binary digits each. Operators have a pattern if they took more
than a hundredth of the iteration, and if there were enough samples of the NIC meanwhile."""


_BOUNDS: Final = BOUNDS["evidence"]
_MAY_LACK: Final = (
    "start_ns", "elapsed_ns", "entry_ns", "last_end_ns", "tokens", "score", "nic_tx_peak", "nic_rx_peak",
)  # fmt: skip
"""Columns whose values may be unknown."""

_PATTERNS: Final = "patterns"
_PATTERN: Final = pa.struct([pa.field(name, kind, nullable=False) for name, kind in PATTERN_COLUMNS.items()])
"""One pattern; a batch that has any holds a list of them per row in the column ``patterns``."""


def _with_dtypes(kinds: Mapping[str, Any]) -> dict[str, tuple[Any, np.dtype[Any]]]:
    """Return the types of columns on the wire, and in numpy."""
    return {name: (kind, np.dtype(kind.to_pandas_dtype())) for name, kind in kinds.items()}


_ON_WIRE: Final = _with_dtypes(COLUMNS)
_CLASSES_ON_WIRE: Final = _with_dtypes(CLASS_COLUMNS)
_SCHEMA: Final = pa.schema(
    [pa.field(name, kind) for name, kind in COLUMNS.items()]
    + [pa.field("offsets", pa.list_(pa.int64()))]
    + [pa.field(f"class_{name}", pa.list_(kind)) for name, kind in CLASS_COLUMNS.items()]
)
_SCHEMA_WITH_PATTERNS: Final = _SCHEMA.append(pa.field(_PATTERNS, pa.list_(_PATTERN)))
MOST_NAMES: Final = 1 << 16
"""Communicators of a message: classes hold their indices as uint16."""

_WORTH_COMPRESSING: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class EvidenceRows:
    """Evidence rows as columns: one row for each rank and iteration."""

    names: tuple[str, ...]  # communicator ids; the ``communicator`` of classes and patterns are indices into them
    columns: Mapping[str, Column]  # as `COLUMNS` says, all of one length, the number of rows
    offsets: Ragged  # the column ``offset``: Kafka offsets of the `commops` batches that hold each row's operators
    classes: Ragged  # columns as `CLASS_COLUMNS` says: the classes of operators of each row
    patterns: Ragged  # columns as `PATTERN_COLUMNS` says: the behaviour patterns of each row
    audits: Ragged | None = field(default=None, kw_only=True)  # columns as `AUDIT_COLUMNS` says; None: of no row
    pauses: Ragged | None = field(default=None, kw_only=True)  # columns as `PAUSE_COLUMNS` says; None: of no row

    def __len__(self) -> int:
        return len(self.columns["rank"])

    @property
    def size_bytes(self) -> int:
        """Bytes of all columns."""
        tables = (self.columns, self.offsets.columns, self.classes.columns, self.patterns.columns)
        return sum(column.nbytes for table in tables for column in table.values())

    def take(self, rows: Ints | Flags) -> Self:
        """Return some rows: by their places, in that order, or by one boolean for each row."""
        at: Ints = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.int64, copy=False)
        return replace(
            self,
            columns={name: column[at] for name, column in self.columns.items()},
            offsets=self.offsets.take(at),
            classes=self.classes.take(at),
            patterns=self.patterns.take(at),
            audits=None if self.audits is None else self.audits.take(at),
            pauses=None if self.pauses is None else self.pauses.take(at),
        )


@dataclass(frozen=True, slots=True)
class Evidence(EvidenceRows):
    """Evidence rows of one job, as they travel."""

    job: str


@dataclass(frozen=True, slots=True)
class Membership:
    """One rank came (``announcement`` is given), went (``reason`` is given), or its devices reported ``events``.

    Of a start that is over, the reason `GOES_ON` says that rows of it come that are younger than the next start.
    """

    job: str
    attempt: int
    rank: int
    announcement: Announcement | None = None
    reason: str | None = None
    start: str | None = None
    since_ns: int | None = None  # of the place from which it went
    events: tuple[DeviceEvent, ...] = ()  # that its devices and its host reported


GOES_ON: Final = "goes on"

BESIDE_NS: Final = 5_000_000_000
"""A start that is over, and has rows which are younger than the first of the next start by more than this, goes on
beside it: two jobs have one name. Less may be the clocks of two hosts."""

Rows = TypeVar("Rows", bound=EvidenceRows)


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Join evidence rows of one job, in order; the result has the names of all parts."""
    if len(parts) == 1:
        return parts[0]
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    flat = dict.fromkeys(name for part in parts for name in part.columns)

    def own(part: EvidenceRows, name: str) -> Column:  # columns of detectors may be in some of the parts alone
        if name in part.columns:
            return part.columns[name]
        return np.full(len(part), NUMERIC_UNKNOWN.get(name, math.nan))

    return replace(
        parts[0],
        names=names,
        columns={name: np.concatenate([own(part, name) for part in parts]) for name in flat},
        offsets=concatenate_ragged([part.offsets for part in parts]),
        classes=concatenate_ragged([_recoded(part.classes, part.names, names) for part in parts]),
        patterns=concatenate_ragged([_recoded(part.patterns, part.names, names) for part in parts]),
        audits=_joined([part.audits for part in parts], AUDIT_COLUMNS, parts),
        pauses=_joined([part.pauses for part in parts], PAUSE_COLUMNS, parts),
    )


def _joined(
    entries: Sequence[Ragged | None], kinds: Mapping[str, Any], parts: Sequence[EvidenceRows]
) -> Ragged | None:
    if not any(entries):
        return None
    own = zip(entries, parts, strict=True)
    return concatenate_ragged([one or no_entries(kinds, len(part)) for one, part in own])


def _recoded(entries: Ragged, names: Sequence[str], new_names: Sequence[str]) -> Ragged:
    """Return entries whose communicators are indices into `new_names`, where they were indices into `names`."""
    if tuple(names) == tuple(new_names):
        return entries
    codes = {name: code for code, name in enumerate(new_names)}
    table = np.array([*(codes[name] for name in names), -1])  # its last value is for -1: no communicator
    return entries.replaced("communicator", table[entries["communicator"]])


def encode_evidence(rows: Sequence[Evidence | Membership], job: str) -> list[bytes]:
    """Encode rows that RankMonitors of one job drained, as at most three messages.

    They are the arrivals of ranks, the evidence, and the departures, in this order, since a rank arrives before its
    evidence and departs after it. Empty messages are left out.
    """
    came = [row for row in rows if isinstance(row, Membership) and row.reason is None]
    went = [row for row in rows if isinstance(row, Membership) and row.reason is not None]
    pieces = [row for row in rows if isinstance(row, Evidence) and len(row)]
    messages = [_encode_members(job, came)] if came else []
    messages += [_encode_rows(concatenate(pieces))] if pieces else []
    return messages + ([_encode_members(job, went)] if went else [])


def decode_evidence(value: bytes | None) -> list[Evidence | Membership]:
    """Decode one message of the topic ``evidence``; raises `RecordError`."""
    # JSON or Arrow: no Arrow stream begins with a brace.
    if not value or value[:1] != b"{":
        return [_decode_rows(value or b"")]
    record = json_object(value, "membership")
    check_version(record, "membership")
    found: _Members = checked(record, _Members, "", "membership", RecordError)
    members: list[Evidence | Membership] = []
    for one in found.members:
        announced = one.announcement
        announcement = None if announced is None else decode_announcement(json.dumps(announced).encode())
        said = None if announcement is None else (announcement.job, announcement.attempt, announcement.rank)
        own = (found.job, one.attempt, one.rank)
        if said not in (None, own):
            raise RecordError(f"announcement of {own} must be its own; got that of {said}")
        members.append(Membership(*own, announcement, one.reason, one.start, one.since_ns, one.events))
    return members


def _encode_members(job: str, members: Sequence[Membership]) -> bytes:
    rows = [
        without_unknown_start(
            {
                "start": member.start,
                "since_ns": member.since_ns,
                "attempt": member.attempt,
                "rank": member.rank,
                "reason": member.reason,
                "announcement": None
                if member.announcement is None
                else json.loads(encode_announcement(member.announcement)),
            }
            | ({"events": [asdict(one) for one in member.events]} if member.events else {})
        )
        for member in members
    ]
    return encode_json("membership", {"job": job, "members": rows})


@dataclass(frozen=True, slots=True)
class _Member:
    """One that came or went, as it is sent."""

    rank: Rank
    attempt: Count
    announcement: dict[str, Any] | None
    reason: Label | None = None
    start: Name | None = None
    since_ns: Count | None = None
    events: tuple[DeviceEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class _Members:
    job: JobName
    members: Annotated[tuple[_Member, ...], Meta(min_length=1)]  # readers compare the key with the job of each


def _encode_rows(evidence: Evidence) -> bytes:
    if len(evidence.names) > MOST_NAMES:
        raise pa.ArrowInvalid(f"communicators must be at most {MOST_NAMES}; got {len(evidence.names)}")
    arrays = []
    for name, (kind, dtype) in _ON_WIRE.items():
        column = evidence.columns[name]
        is_unknown = column == UNKNOWN if column.dtype == np.int64 else None
        if is_unknown is not None and is_unknown.any():
            # Below a null there must be a number of the narrow type too, and `UNKNOWN` is none.
            arrays.append(to_arrow(np.where(is_unknown, 0, column), kind, dtype, is_unknown))
        else:
            arrays.append(to_arrow(column, kind, dtype))
    arrays.append(_lists(evidence.offsets, "offset", pa.int64(), np.dtype(np.int64)))
    arrays += [_lists(evidence.classes, name, kind, dtype) for name, (kind, dtype) in _CLASSES_ON_WIRE.items()]
    schema = _SCHEMA
    if evidence.patterns.has_entries:  # without samples of NICs there are none, and columns without rows cost too
        fields = [from_numpy(evidence.patterns[name]).cast(kind) for name, kind in PATTERN_COLUMNS.items()]
        rows = pa.StructArray.from_arrays(fields, fields=list(_PATTERN))
        splits = from_numpy(evidence.patterns.splits.astype(np.int32))
        arrays.append(pa.ListArray.from_arrays(splits, rows, type=pa.list_(_PATTERN)))
        schema = _SCHEMA_WITH_PATTERNS
    for name in sorted(evidence.columns.keys() - COLUMNS.keys()):  # of detectors of operators, and numerics
        kind = NUMERIC_COLUMNS.get(name, pa.float32())
        schema = schema.append(pa.field(name, kind))
        arrays.append(to_arrow(evidence.columns[name], kind, np.dtype(kind.to_pandas_dtype())))
    for event, entries in (("audit", evidence.audits), ("pause", evidence.pauses)):
        if entries is not None and entries.has_entries:
            for name, kind in _EVENTS[event][0].items():
                schema = schema.append(pa.field(f"{event}_{name}", pa.list_(kind)))
                arrays.append(_lists(entries, name, kind, np.dtype(np.int64)))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    # It moves on every iteration of every rank. To compress some dozen short columns takes longer than to send them,
    # and the producer compresses all messages anyway.
    options = None if evidence.size_bytes < _WORTH_COMPRESSING else pa.ipc.IpcWriteOptions(compression="zstd")
    return encode_arrow("evidence", {"job": evidence.job, "names": evidence.names}, batch, options)


def _lists(entries: Ragged, name: str, kind: pa.DataType, dtype: np.dtype[Any]) -> pa.ListArray:
    splits = to_arrow(entries.splits, pa.int32(), np.dtype(np.int32))
    return pa.ListArray.from_arrays(splits, to_arrow(entries[name], kind, dtype))


@dataclass(frozen=True, slots=True)
class _Metadata:
    job: JobName
    names: tuple[Label, ...]


def _decode_rows(value: bytes) -> Evidence:
    require_bounded(value)
    try:
        with pa.ipc.open_stream(value) as reader:
            metadata = json_object((reader.schema.metadata or {}).get(b"irregulars"), "metadata `irregulars`")
            check_version(metadata, "evidence")
            own: _Metadata = checked(metadata, _Metadata, "", "metadata of evidence", RecordError)
            batch = reader.read_next_batch()
            # In full: only this checks each offset of the lists, by which their entries are cut.
            batch.validate(full=True)
        # Integers may be of another width, as ``attempt`` had 32 bits once.
        wanted = dict(COLUMNS) | {f"class_{name}": pa.list_(kind) for name, kind in CLASS_COLUMNS.items()}
        for name, kind in (wanted | {"offsets": pa.list_(pa.int64())}).items():
            type_ = batch.column(name).type
            if type_ != kind and not (pa.types.is_integer(type_) and pa.types.is_integer(kind)):
                raise RecordError(f"column {name!r} must be {kind}; got {type_}")
        offsets = batch.column("offsets").flatten()
        classes = {name: batch.column(f"class_{name}").flatten() for name in CLASS_COLUMNS}
        _require_values(batch, len(own.names))
        for name, one in {"offsets": offsets, **{f"class_{name}": one for name, one in classes.items()}}.items():
            if batch.column(name).null_count or one.null_count:
                raise RecordError(f"column {name!r} must be known in each row; got nulls")
        if len({to_numpy(batch.column(f"class_{name}").offsets).tobytes() for name in CLASS_COLUMNS}) > 1:
            raise RecordError("columns of classes must be equally long in each row; they are not")
        _require_bound(offsets, "offsets", _BOUNDS["offsets"])
        _require_bound(classes["communicator"], "class_communicator", Bound(0, len(own.names) - 1))
        _require_bound(classes["operator"], "class_operator", Bound(0, len(OPERATORS) - 1))
        for name in ("peer", "count"):
            _require_bound(classes[name], f"class_{name}", _BOUNDS[f"class_{name}"])
        _require_bound(classes["shortest_ns"], "class_shortest_ns", _BOUNDS["class_shortest_ns"], may_lack=True)
        patterns = no_patterns(batch.num_rows)
        if _PATTERNS in batch.schema.names:
            rows = batch.column(_PATTERNS).flatten()
            patterns = _entries(batch.column(_PATTERNS), {name: rows.field(name) for name in PATTERN_COLUMNS})
        return Evidence(
            job=own.job,
            names=own.names,
            columns={
                name: _from_wire(batch.column(name), name)
                for name in [*COLUMNS, *_detector_scores(batch), *_numerics(batch)]
            },
            offsets=_entries(batch.column("offsets"), {"offset": offsets}),
            classes=_entries(batch.column("class_count"), classes),
            patterns=patterns,
            audits=_events(batch, "audit"),
            pauses=_events(batch, "pause"),
        )
    except (pa.ArrowException, StopIteration, OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"evidence must follow its schema; got {first_line(error)}") from error


def _detector_scores(batch: Any) -> list[str]:
    """Return the names of the columns of detectors, which must be few, called as detectors may be, and finite."""
    names = [name for name in batch.schema.names if name.startswith(DETECTOR_SCORE)]
    if len(names) > MOST_DETECTORS or len(set(names)) < len(names):
        raise RecordError(f"columns of detectors must be at most {MOST_DETECTORS}, each once; got {len(names)}")
    for name in names:
        if not DETECTOR_NAME.fullmatch(name.removeprefix(DETECTOR_SCORE)) or batch.column(name).type != pa.float32():
            raise RecordError(f"column {name!r} must be float32, of a detector whose name matches "
                              f"{DETECTOR_NAME.pattern}; got {batch.column(name).type}")  # fmt: skip
        if np.isinf(to_numpy(batch.column(name), math.nan)).any():
            raise RecordError(f"column {name!r} must be finite or NaN; got infinity")
    return names


def _numerics(batch: Any) -> list[str]:
    """Return the names of the numerics that a message has, which may be of any size."""
    names = [name for name in NUMERIC_COLUMNS if name in batch.schema.names]
    for name in names:
        if batch.column(name).type != NUMERIC_COLUMNS[name]:
            raise RecordError(f"column {name!r} must be {NUMERIC_COLUMNS[name]}; got {batch.column(name).type}")
    return names


def _events(batch: Any, event: str) -> Ragged | None:
    """Return the audits, or the pauses, of a message; None: it has none."""
    kinds, bounds = _EVENTS[event]
    names = [f"{event}_{name}" for name in kinds]
    if not set(names) & set(batch.schema.names):
        return None
    lists = [batch.column(name) for name in names]
    for name, one in zip(names, lists, strict=True):
        if one.type != pa.list_(pa.int64()) or one.null_count or one.flatten().null_count:
            raise RecordError(f"column {name!r} must be lists of int64, known in each row; got {one.type}")
    if len({to_numpy(one.offsets).tobytes() for one in lists}) > 1:
        raise RecordError(f"columns of {event}s must be equally long in each row; they are not")
    found = dict(zip(kinds, (one.flatten() for one in lists), strict=True))
    for name, bound in bounds.items():
        _require_bound(found[name], f"{event}_{name}", bound)
    return _entries(lists[0], found)


def _require_values(batch: Any, names: int) -> None:
    """Require that all values which the monitors use as indices are known and within bounds."""
    for name in COLUMNS:
        if name != "phase":
            _require_bound(batch.column(name), name, _BOUNDS[name], may_lack=name in _MAY_LACK)
    phase = to_numpy(batch.column("phase"), PHASE_UNKNOWN)
    if np.any((phase >= len(PHASES)) & (phase != PHASE_UNKNOWN)):
        raise RecordError(f"phase codes must be below {len(PHASES)} or null; got {sorted(set(phase.tolist()))}")
    if _PATTERNS not in batch.schema.names:
        return
    column = batch.column(_PATTERNS)
    if column.type != pa.list_(_PATTERN):
        raise RecordError(f"column {_PATTERNS!r} must be {pa.list_(_PATTERN)}; got {column.type}")
    rows = column.flatten()
    if column.null_count or rows.null_count or any(rows.field(n).null_count for n in PATTERN_COLUMNS):
        raise RecordError(f"column {_PATTERNS!r} must be known in each row; got nulls")
    own = {"communicator": Bound(-1, names - 1), "operator": Bound(-1, len(OPERATORS) - 1)}
    for name in PATTERN_COLUMNS:
        bound = own.get(name) or _BOUNDS[f"{name} of a pattern"]
        _require_bound(rows.field(name), f"{name} of a pattern", bound, may_lack=name not in own)


def _require_bound(column: Any, name: str, bound: Bound, *, may_lack: bool = False) -> None:
    if column.null_count and not may_lack:
        raise RecordError(f"column {name!r} must be known in each row; got {column.null_count} nulls")
    is_float = pa.types.is_floating(column.type)
    # A null counts as a value within the bound.
    values = to_numpy(column, math.nan if is_float else bound.least)
    if is_float and not may_lack and np.isnan(values).any():
        raise RecordError(f"column {name!r} must be known in each row; got NaN")
    if not len(values):
        return
    least, most = np.fmin.reduce(values), np.fmax.reduce(values)  # NaN where all are
    if least < bound.least or most > bound.most:
        raise RecordError(f"{name} must be {bound}; got {least} to {most}")


def _from_wire(column: pa.Array, name: str) -> Column:
    if name == "phase":
        return to_numpy(column, PHASE_UNKNOWN)
    if pa.types.is_floating(column.type):
        return to_numpy(column, math.nan).astype(np.float64, copy=False)
    if not column.null_count:
        return to_numpy(column).astype(np.int64, copy=False)
    # Widened before nulls are filled: the narrow types can't hold `UNKNOWN`.
    return to_numpy(column.cast(pa.int64()), UNKNOWN)


def _entries(lists: Any, columns: Mapping[str, Any]) -> Ragged:
    """Make entries of columns from the wire; `lists`: one column of lists, for how many each row owns."""
    counts = np.diff(to_numpy(lists.offsets)).astype(np.int64)
    wide = {name: np.float64 if pa.types.is_floating(one.type) else np.int64 for name, one in columns.items()}
    return Ragged(counts, {name: to_numpy(column).astype(wide[name]) for name, column in columns.items()})


def no_patterns(rows: int) -> Ragged:
    """Return the behaviour patterns of rows that have none."""
    return no_entries(PATTERN_COLUMNS, rows)


def no_entries(kinds: Mapping[str, Any], rows: int) -> Ragged:
    """Return the entries of rows that own none, with columns of these types on the wire."""
    dtypes = {name: np.float64 if pa.types.is_floating(kind) else np.int64 for name, kind in kinds.items()}
    return Ragged(np.zeros(rows, dtype=np.int64), {name: np.empty(0, dtype=kind) for name, kind in dtypes.items()})
