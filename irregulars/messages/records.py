"""The records that travel on the bus. Start reading here.

Columns travel as Arrow IPC batches, so that pyarrow, Polars, DuckDB and ClickHouse read the topics as they are:
``commops``, ``bandwidth``, ``iterations``, ``gpu_health`` (one batch holds rows of one rank) and ``evidence`` (one
row per rank and iteration; `messages.evidence`). Small things travel as JSON with a published JSON Schema
(``irregulars/messages/schemas/``): ``jobs`` and ``heartbeats`` (`messages.announcements`), ``verdicts`` and
``alerts`` (`messages.judgements`).

Inside the process a batch is a `Batch`: a header and plain numpy columns. How an unknown value looks there:

========================  ==================================================================================
column                    unknown is
========================  ==================================================================================
``float64`` columns       ``NaN`` (``elapsed_ns``, ``size_bytes``, rates)
``int64`` columns         `UNKNOWN`, the value that numpy itself prints as ``NaT`` (``start_ns``, ``iteration``,
                          ``peer``); floats can't hold nanoseconds since the epoch
text and dictionaries     ``None``
========================  ==================================================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from irregulars.arrow_numpy import to_arrow
from irregulars.errors import InputError, RecordError
from irregulars.messages.arrow_limits import require_bounded
from irregulars.messages.kinds import REPORT_KINDS
from irregulars.messages.plain_messages import Field, PlainColumns, find_plain, layout_of, note_known
from irregulars.validation import (
    Count,
    Integer,
    JobName,
    Label,
    Name,
    Rank,
    RowCount,
    checked,
    first_line,
    json_object,
)

VERSION: Final = 1  # version of every record: a reader refuses a newer one, and reads all older ones
UNKNOWN: Final = int(np.iinfo(np.int64).min)  # an unknown value in an ``int64`` column
PHASE_UNKNOWN: Final = 255

UNNUMBERED: Final = 1 << 30
"""Sequences from here on count from a call whose number is not known: the same on all ranks, and not for people."""
UNTOLD_CALLS: Final = range(UNNUMBERED, 2 * UNNUMBERED)
"""Sequences of collectives whose operator no source knows: such rows say ``barrier``. They count from the first one;
that one itself stands for a call whose number is not known either."""


def number_of(sequence: int) -> int:
    """Return the number of a collective, whether its operator is known or not.

    >>> number_of(7), number_of(UNTOLD_CALLS[7])
    (7, 7)
    """
    return sequence - UNTOLD_CALLS.start if sequence in UNTOLD_CALLS else sequence


OPERATORS: Final = (
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier",
    "send", "recv",
)  # fmt: skip
"""Operator names; a column ``operator`` holds indices into this tuple."""

OPERATOR_CODES: Final = {name: code for code, name in enumerate(OPERATORS)}
SEND: Final = OPERATOR_CODES["send"]
RECV: Final = OPERATOR_CODES["recv"]
P2P: Final = (SEND, RECV)  # operators of two ranks; all others are collectives
ROOTED: Final = tuple(OPERATOR_CODES[name] for name in ("broadcast", "reduce", "gather", "scatter"))
"""Collectives in which only those wait who depend on others."""

GROUP_KINDS: Final = ("world", "dp", "tp", "pp", "ep", "cp", "unknown")  # kinds of communicators
PHASES: Final = ("train", "eval", "checkpoint", "observed")
"""Phases of an iteration; a column ``phase`` holds indices into this tuple. An ``observed`` one is no turn of the
training loop: the job was observed from outside, was alive, and nothing in it was timed."""

PATHS: Final = ("nic", "pcie", "nvlink")
"""Ways of which bandwidth is sampled; a column ``path`` holds indices into this tuple."""

PAUSES: Final = (
    "garbage_collection", "data_loader", "checkpoint_write", "host_to_device", "synchronization", "compilation",
    "cpu_throttled", "cpu_wait", "memory_pressure", "io_wait", "python", "other", "cpu_time",
    "gpu_kernels", "gpu_idle",
)  # fmt: skip
"""Activities and waits of a rank in its own time; a column ``pause_cause`` holds indices into this tuple.
``cpu_time`` is no pause: how long the thread ran, beside ``cpu_wait``. Who works more waits more where processors are
few. Of a profiled GPU: how long it computed and did not communicate, and how long it had no launch to run."""

COMMOPS: Final = pa.schema(
    [
        pa.field("communicator", pa.uint16(), nullable=False),  # index into the header's `names`
        pa.field("operator", pa.uint8(), nullable=False),  # index into OPERATORS
        pa.field("sequence", pa.uint32(), nullable=False),
        pa.field("peer", pa.int32()),  # global rank at the other end of a send or recv
        pa.field("start_ns", pa.int64()),  # ns since the epoch, the host's own clock
        pa.field("elapsed_ns", pa.int64()),  # null: entered, and not ended
        pa.field("size_bytes", pa.int64()),
        pa.field("iteration", pa.int64()),
    ]
)
BANDWIDTH: Final = pa.schema(
    [
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("path", pa.uint8(), nullable=False),  # index into PATHS
        pa.field("device", pa.uint16(), nullable=False),  # index into the header's `names`
        pa.field("tx_bytes_per_s", pa.float64()),  # mean over the interval since the device's sample before
        pa.field("rx_bytes_per_s", pa.float64()),
    ]
)
ITERATIONS: Final = pa.schema(
    [
        pa.field("iteration", pa.int64(), nullable=False),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("elapsed_ns", pa.int64(), nullable=False),
        pa.field("phase", pa.uint8()),  # index into PHASES
        pa.field("loss", pa.float64()),
        pa.field("grad_norm", pa.float64()),
        pa.field("tokens", pa.int64()),
        pa.field("local_grad_norm", pa.float64()),  # of this rank's gradient before any reduction
        pa.field("update_rms", pa.float64()),  # largest over the parameters
        pa.field("attention_logit", pa.float64()),  # largest of the step, before the softmax
        pa.field("not_finite", pa.int64()),  # elements of loss and gradients that are NaN or infinite
        pa.field("parameters_checksum", pa.int64()),  # after the step; equal on all ranks of a set of replicas
        # A row with these is no iteration's but one audit's, in it: this rank computed the gradients of the
        # micro-batch of `audit_of_rank`, and they have `audit_checksum`
        pa.field("audit_of_rank", pa.int32()),
        pa.field("audit_checksum", pa.int64()),
        # A row with these is one pause's, in this iteration: the rank's activity in its own time, from when, how long
        pa.field("pause_cause", pa.int32()),  # index into PAUSES
        pa.field("pause_start_ns", pa.int64()),
        pa.field("pause_elapsed_ns", pa.int64()),
    ]
)
NUMERICS: Final = (
    "loss", "grad_norm", "local_grad_norm", "update_rms", "attention_logit", "not_finite", "parameters_checksum",
)  # fmt: skip
"""Columns of an iteration with results of its computation, not times; any of them may be unknown."""

AUDIT: Final = ("audit_of_rank", "audit_checksum")
PAUSE: Final = ("pause_cause", "pause_start_ns", "pause_elapsed_ns")
"""Columns of the rows of ``iterations`` that are of something in an iteration: an audit, or a pause. Such a row has
the times of its iteration, and goes before the iteration's own."""


_ADDED: Final[Mapping[str, tuple[str, ...]]] = {"iterations": (*NUMERICS[2:], *AUDIT, *PAUSE)}
"""Columns that messages of older producers lack: they are unknown then."""

GPU_HEALTH: Final = pa.schema(
    [
        pa.field("time_ns", pa.int64(), nullable=False),  # end of the interval that means and new errors are of
        pa.field("device", pa.uint16(), nullable=False),  # index into the header's `names`
        pa.field("sm_clock_mhz", pa.float64()),  # at `time_ns`, like the next one, temperature and reasons
        pa.field("memory_clock_mhz", pa.float64()),
        pa.field("power_w", pa.float64()),  # mean
        pa.field("temperature_c", pa.float64()),
        pa.field("sm_active_ratio", pa.float64()),  # mean share of the SMs that were busy
        pa.field("throttle_reasons", pa.int64()),  # bits of THROTTLE_REASONS
        pa.field("ecc_corrected", pa.int64()),  # new errors
        pa.field("ecc_uncorrected", pa.int64()),
        pa.field("xid", pa.int64()),  # NVIDIA's number of a critical error; such a row says nothing else
    ]
)
THROTTLE_REASONS: Final = (
    "gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost", "thermal", "hw_thermal",
    "hw_power_brake", "display_clocks", "board_limit", "reliability",
)  # fmt: skip
"""Reasons for which a GPU's clocks are below their highest; bit n of NVML's mask is reason n."""

LOOKS: Final = ("stack", "function")
"""Events that agents make of a process, because a verdict asks for it: they are evidence against no device."""

EVENT_KINDS: Final = (*REPORT_KINDS, *LOOKS, "metric")
"""Events that nodes and devices report; a column ``kind`` holds indices into this tuple."""

EVENTS: Final = pa.schema(
    [
        pa.field("time_ns", pa.int64(), nullable=False),
        pa.field("kind", pa.uint8(), nullable=False),  # index into EVENT_KINDS
        # host, device, detail: Indices into the header's `names`; an empty name: not known, or the host itself
        pa.field("host", pa.uint16(), nullable=False),
        pa.field("device", pa.uint16(), nullable=False),
        # An XID's number, a counter's growth, an exit status, a frame's depth, a function's share in thousandths.
        # Of a metric its iteration: its name stands as the device, and the detail is its distribution.
        pa.field("code", pa.int64()),
        pa.field("detail", pa.uint16(), nullable=False),
    ]
)

SCHEMAS: Final[Mapping[str, pa.Schema]] = {"commops": COMMOPS, "bandwidth": BANDWIDTH, "iterations": ITERATIONS}
"""The batches that a trace directory holds, and judgement reads."""

TRACE_SCHEMAS: Final = (*SCHEMAS, "events")
"""The files of a trace directory, without those whose rows are put among the iterations."""

BATCH_SCHEMAS: Final[Mapping[str, pa.Schema]] = {**SCHEMAS, "gpu_health": GPU_HEALTH, "events": EVENTS}
"""All that travels as batches: no iteration waits for ``gpu_health``, which is for people, and ``events``."""


# How nullable integers become numpy: `float` where arithmetic is done on the value itself, `int` where it is a name
# or a time since the epoch.
_AS_FLOAT: Final = frozenset({"elapsed_ns", "size_bytes", "tokens", "not_finite"})


def _field(one: pa.Field) -> Field:
    kind = np.dtype(one.type.to_pandas_dtype())
    limits = np.iinfo(kind) if kind.kind != "f" else np.iinfo(np.int64)
    in_numpy: np.dtype[Any] = np.dtype(np.int64) if kind.itemsize >= 4 else kind
    unknown: float = UNKNOWN
    if one.name == "phase":
        in_numpy, unknown = kind, PHASE_UNKNOWN
    elif one.name in _AS_FLOAT or kind.kind == "f":
        in_numpy, unknown = np.dtype(np.float64), math.nan
    return Field(one.name, one.type, kind, (int(limits.min), int(limits.max)), one.nullable, in_numpy, unknown)


CODED: Final = ("communicator", "device", "host", "detail")  # columns that hold indices into the names of a header
_NOT_SENT: Final = ("schema", "group")  # the one stands beside the header, the other in that of a bundle

_LIMITS: Final = {
    "operator": len(OPERATORS),
    "path": len(PATHS),
    "kind": len(EVENT_KINDS),
    **dict.fromkeys(CODED, None),
}
_CODES: Final[Mapping[str, tuple[tuple[str, int | None], ...]]] = {
    name: tuple((column, _LIMITS[column]) for column in schema.names if column in _LIMITS)
    for name, schema in BATCH_SCHEMAS.items()
}
"""Columns of codes, and their limits; None: as many as the header has names."""

_FIELDS: Final = {name: tuple(_field(one) for one in schema) for name, schema in BATCH_SCHEMAS.items()}
FIELDS: Final = {name: {field.name: field for field in fields} for name, fields in _FIELDS.items()}
_LAYOUTS: Final = {name: layout_of(fields) for name, fields in _FIELDS.items()}


@dataclass(frozen=True, slots=True)
class Header:
    """Whose rows a batch holds, and how far its source is complete with it."""

    schema: str  # a name in `BATCH_SCHEMAS`
    # job, attempt, rank: The training job, its start number, the global rank
    job: JobName
    attempt: Count
    rank: Rank
    # Rows of this schema that this rank published in this attempt before this batch: shows loss, and lets a heartbeat
    # say "all rows up to here are yours"
    rows_before: RowCount = 0
    # Event time (end of an operator or iteration, time of a sample; ns since the epoch) up to which this source is
    # complete with this batch; `None` if the source does not know
    watermark_ns: Integer | None = None
    names: tuple[Label, ...] = ()  # dictionary of the batch: communicator ids (commops) or device names (bandwidth)
    # The group with whose bundles the batch travels (`messages.bundles`); None: it travels by itself
    group: Name | None = None
    start: Name | None = None  # as in the rank's announcement; None: of whichever start of this attempt is heard
    since_ns: Count | None = None  # as in the announcement of the rank's place from which the rows come


BATCH_HEADERS: Final = msgspec.json.Decoder(Header)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one rank as numpy columns of equal length.

    ``columns`` has exactly the columns of the schema. ``communicator``, ``operator``, ``device``, ``path`` are codes;
    see the module's table for unknown values; ``phase`` is 255 where unknown.
    """

    header: Header
    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return rows_of(self.columns)


def rows_of(columns: Mapping[str, np.ndarray]) -> int:
    """Return how many rows columns have."""
    return columns.rows if isinstance(columns, PlainColumns) else len(next(iter(columns.values())))


def iteration_columns(
    iteration: np.ndarray, start_ns: np.ndarray, elapsed_ns: np.ndarray, phase: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the columns of iterations whose `NUMERICS` and tokens are unknown, and that hold no audit or pause."""
    columns = dict.fromkeys(("tokens", *NUMERICS[:-1]), np.full(len(iteration), math.nan))
    columns |= {name: np.full(len(iteration), UNKNOWN) for name in (NUMERICS[-1], *AUDIT, *PAUSE)}
    return columns | {"iteration": iteration, "start_ns": start_ns, "elapsed_ns": elapsed_ns, "phase": phase}


def encode_batch(batch: Batch) -> bytes:
    """Encode a batch as one Arrow IPC stream, without compression (the Kafka producer compresses)."""
    header = {name: getattr(batch.header, name) for name in Header.__slots__ if name not in _NOT_SENT}
    return encode_arrow(
        batch.header.schema, without_unknown_start(header), to_record_batch(batch.header.schema, batch.columns)
    )


def to_record_batch(schema: str, columns: Mapping[str, np.ndarray]) -> pa.RecordBatch:
    """Turn the columns of a batch into Arrow."""
    rows = rows_of(columns)
    arrays = [_to_arrow(column_of(columns, field, rows), field) for field in _FIELDS[schema]]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCH_SCHEMAS[schema])


def decode_batch(value: bytes | None, expected: str) -> Batch:
    """Decode one message of the topic of schema `expected`.

    Raises `RecordError` if the bytes are no Arrow stream, declare more rows or bytes than a worker can hold, the
    schema or its version is another, a header value is missing, or a code lies outside its dictionary.
    """
    header, columns = decode_table(value, expected, read_header)
    return Batch(header, columns)


T = TypeVar("T")
H = TypeVar("H", bound=Any)  # has `names`, into which codes are indices


def decode_table(
    value: bytes | None, expected: str, read: Callable[[bytes | None, str], H]
) -> tuple[H, Mapping[str, np.ndarray]]:
    """Decode the header and the columns of a message; raises as `decode_batch` does.

    `read`: makes the header from the metadata and the expected schema; raises `RecordError`.
    """
    if not value:
        raise RecordError(f"message must be an Arrow IPC stream; got {'no value' if value is None else 'zero bytes'}")
    layout = _LAYOUTS[expected]
    plain = find_plain(value, layout)
    columns: Mapping[str, np.ndarray]
    if plain is not None and plain.structure in layout.known:
        header, columns = read(plain.metadata, expected), plain.columns
    else:
        header, columns = _decode_with_arrow(value, expected, read)
        if plain is not None:  # Arrow took it: all that follow of this structure are read as it is from here on
            note_known(plain, layout)
            columns = plain.columns
    _check_codes(expected, columns, len(header.names))
    return header, columns


def _decode_with_arrow(
    value: bytes, expected: str, read: Callable[[bytes | None, str], H]
) -> tuple[H, Mapping[str, np.ndarray]]:
    require_bounded(value)
    try:
        with pa.ipc.open_stream(value) as reader:
            header = read((reader.schema.metadata or {}).get(b"irregulars"), expected)
            is_ours = reader.schema.equals(BATCH_SCHEMAS[expected])
            if not is_ours:
                _require_fields(reader.schema, BATCH_SCHEMAS[expected], _ADDED.get(expected, ()))
            record_batch = reader.read_next_batch()
            record_batch.validate()
            if next(iter(reader), None) is not None:
                raise RecordError("message must be an Arrow IPC stream with one batch; got more")
    except (pa.ArrowException, StopIteration, OSError, UnicodeDecodeError) as error:  # the last: a column's name
        raise RecordError(f"message must be an Arrow IPC stream with one batch; got {first_line(error)}") from error
    columns = {
        field.name: _to_numpy(record_batch.column(place if is_ours else field.name), field)
        for place, field in enumerate(_FIELDS[expected])
        if is_ours or field.name in record_batch.schema.names
    }
    return header, {one.name: column_of(columns, one, record_batch.num_rows) for one in _FIELDS[expected]}


def column_of(columns: Mapping[str, np.ndarray], field: Field, rows: int) -> np.ndarray:
    """Return a column, or unknown values where a source does not know of it yet."""
    found = columns.get(field.name)
    if found is None and field.name in (*NUMERICS, *AUDIT, *PAUSE):
        return np.full(rows, field.unknown, field.in_numpy)
    return columns[field.name] if found is None else found


def read_header(metadata: bytes | None, expected: str) -> Header:
    """Read the header of a batch; raises `RecordError`."""
    header: Header | None = quick_header(metadata, expected, VERSION, BATCH_HEADERS)
    return header_of(header_values(metadata, expected)) if header is None else header


def header_of(values: Mapping[str, Any]) -> Header:
    """Make the header of a batch of its values; raises `RecordError`."""
    # Both have defaults in the class and none on the wire: a header without them is refused.
    header: Header = checked({"rows_before": None, "names": None, **values}, Header, "", "header", RecordError)
    return header


def quick_header(metadata: bytes | None, expected: str, version: int, decoder: Any) -> Any:
    """Return a header as our own producers write it; None: it is another one, or something is wrong with it."""
    is_ours = metadata is not None and metadata.startswith(
        b'{"schema":"%b","version":%d,' % (expected.encode(), version)
    )
    if metadata is None or not is_ours or b'"rows_before":' not in metadata or b'"names":' not in metadata:
        return None
    # JSON may name a key twice, with escapes as well, and then the last one counts.
    if metadata.count(b'"schema":') != 1 or metadata.count(b'"version":') != 1 or b"\\u" in metadata:
        return None
    try:
        return decoder.decode(metadata)
    # No error yet: the caller reads it again with `checked`, which words the reason.
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def header_values(metadata: bytes | None, expected: str, newest: int = VERSION) -> dict[str, Any]:
    """Decode a message's metadata, and check schema and version; raises `RecordError`."""
    values = json_object(metadata, "metadata `irregulars`")
    check_version(values, expected, newest)
    return values


def _require_fields(found: pa.Schema, wanted: pa.Schema, added: Collection[str]) -> None:
    for wanted_field in wanted:
        index = found.get_field_index(wanted_field.name)
        # pyarrow has -1 for a name that comes twice as well: only one that is missing may be left out.
        if index < 0 and wanted_field.name in added and wanted_field.name not in found.names:
            continue
        if index < 0:
            raise RecordError(f"batch must have a column {wanted_field.name!r}; got {found.names}")
        if found.field(index).type != wanted_field.type:
            raise RecordError(
                f"column {wanted_field.name!r} must be {wanted_field.type}; got {found.field(index).type}"
            )


def _check_codes(schema: str, columns: Mapping[str, np.ndarray], names: int) -> None:
    for name, known in _CODES[schema]:
        limit = names if known is None else known
        if isinstance(columns, PlainColumns):
            highest = columns.highest(name)
        else:
            highest = int(columns[name].max()) if len(columns[name]) else -1
        if highest >= limit:
            raise RecordError(f"{name} codes must be below {limit}; got {highest}")
    # Not in `_CODES`: it may be unknown, which is a code above all others.
    if schema == "iterations":
        phase = columns["phase"]
        if np.any((phase >= len(PHASES)) & (phase != PHASE_UNKNOWN)):
            raise RecordError(f"phase codes must be below {len(PHASES)} or null; got {sorted(set(phase.tolist()))}")


def _to_arrow(column: np.ndarray, field: Field) -> pa.Array:
    """Turn into Arrow, from buffers: ``pa.array`` loads pandas where there is one, 40 MiB of a node's memory."""
    if not field.is_nullable:
        return to_arrow(column, field.type, field.kind)
    if column.dtype.kind == "f":
        is_unknown = np.isnan(column)
    else:
        is_unknown = column == (PHASE_UNKNOWN if field.name == "phase" else UNKNOWN)
    if not is_unknown.any():
        return to_arrow(_narrowed(column, field), field.type, field.kind)
    # 0 below the nulls: `_narrowed` would refuse `UNKNOWN` as out of range.
    return to_arrow(_narrowed(np.where(is_unknown, 0, column), field), field.type, field.kind, is_unknown)


def _narrowed(column: np.ndarray, field: Field) -> np.ndarray:
    """Bring known values to the field's type; a part of a unit is cut off, a value out of range is an error."""
    kind = field.kind
    if column.dtype == kind or kind.kind == "f":
        return column
    if (len(column) and column.dtype.kind != kind.kind) or column.dtype.itemsize > kind.itemsize:
        (lowest, highest), least, most = field.limits, column.min(initial=0), column.max(initial=0)
        if least < lowest or most > highest:
            rule = f"{lowest} to {highest}"
            raise pa.ArrowInvalid(f"{field.name} must be {rule}; got {least if least < lowest else most}")
    return column


def _to_numpy(column: pa.Array, field: Field) -> np.ndarray:
    """Turn into numpy; from the buffers, and without copies where nothing is null, since this runs for every batch.

    Raises `RecordError` if a value is null that must be known.
    """
    nulls, count, first = column.null_count, len(column), column.offset
    if nulls and not field.is_nullable:
        raise RecordError(f"column {field.name!r} must be known in each row; got {nulls} nulls")
    validity, values = column.buffers()
    array = np.frombuffer(values, field.kind, first + count)[first:] if count else np.empty(0, field.kind)
    if not nulls:
        return array if array.dtype == field.in_numpy else array.astype(field.in_numpy)
    array = array.astype(field.in_numpy)
    is_known = np.unpackbits(np.frombuffer(validity, np.uint8), count=first + count, bitorder="little")[first:]
    array[is_known == 0] = field.unknown
    return array


_JSON: Final = json.JSONEncoder(separators=(",", ":"))
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"


# --- every record ---------------------------------------------------------------------------------------------------


def decode_json(value: bytes | None, expected: str) -> dict[str, Any]:
    """Decode a JSON record of schema `expected` and check its version; raises `RecordError`."""
    values = json_object(value, "message")
    check_version(values, expected)
    return values


def decode_as(value: bytes | None, expected: str, kind: type[T]) -> T:
    """Decode a JSON record of schema `expected` as a dataclass; raises `RecordError`, also for checks of its own."""
    try:
        found: T = checked(decode_json(value, expected), kind, "", error=RecordError)
    except RecordError:
        raise
    except InputError as error:
        raise RecordError(str(error)) from error
    return found


def without_unknown_start(values: dict[str, Any]) -> dict[str, Any]:
    """Leave the id of the start, and since when a place holds, out of a record that has none."""
    for name in ("start", "since_ns"):
        if values[name] is None:
            del values[name]
    return values


def encode_json(schema: str, values: Mapping[str, Any], version: int = VERSION) -> bytes:
    """Encode a JSON record of `schema`, in the version that we write."""
    return _JSON.encode({"schema": schema, "version": version, **values}).encode()


def encode_arrow(
    schema: str, header: Mapping[str, Any], batch: pa.RecordBatch, options: Any = None, version: int = VERSION
) -> bytes:
    """Encode a batch of `schema` as an Arrow IPC stream, with the header as JSON in its metadata.

    `options`: `pyarrow.ipc.IpcWriteOptions`: compression, for example.
    """
    batch = batch.replace_schema_metadata({"irregulars": encode_json(schema, header, version)})
    if options is None:  # these three messages are the whole stream, and pyarrow's writer takes twice as long
        return b"".join((batch.schema.serialize(), batch.serialize(), _END_OF_STREAM))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def check_version(values: Mapping[str, Any], expected: str, newest: int = VERSION) -> None:
    """Raise `RecordError` unless `values` are of schema `expected`, in a version that we read."""
    if values.get("schema") != expected:
        raise RecordError(f"schema must be {expected!r}; got {values.get('schema')!r}")
    version = values.get("version")
    if not isinstance(version, int) or not 1 <= version <= newest:
        raise RecordError(f"version must be 1 to {newest}; got {version!r} (a newer producer? upgrade the worker)")
