"""Files of a trace directory as typed Arrow columns: parquet, JSON lines and CSV, each plain or gzipped.

Well-formed files are read by Arrow alone. Only when Arrow refuses a text file is it read again row by row, to find
the rows that can't be read.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from irregulars.errors import InputError
from irregulars.producers.trace.job_file import is_integer, refuse_pipe, shortened

ENDINGS: Final = (".parquet", ".jsonl", ".csv")
_KEY_SEARCH_BYTES: Final = 1 << 20
_PART_ROWS: Final = 1 << 19
"""Rows of a part of a file: of one, what checking needs beside its columns is small against all that is read."""

_CSV_NULLS: Final = ("", "null", "NULL", "None", "nan", "NaN", "NA")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a file: ``kind`` is ``int``, ``time`` (an integer that no float can hold), ``float``, ``text``.

    A column that `can_lack` may be missing from the file; one that is `nullable` may hold nulls.
    """

    name: str
    kind: str
    nullable: bool = False
    can_lack: bool = False


COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "commops": (
        Column("rank", "int"),
        Column("communicator", "text"),
        Column("operator", "text"),
        Column("sequence", "int"),
        Column("peer", "int", nullable=True),
        Column("start_ns", "time", nullable=True),
        Column("elapsed_ns", "int", nullable=True),
        Column("size_bytes", "int", nullable=True),
        Column("iteration", "int", nullable=True),
    ),
    "bandwidth": (
        Column("rank", "int"),
        Column("time_ns", "time"),
        Column("path", "text"),
        Column("device", "text"),
        Column("tx_bytes_per_s", "float", nullable=True),
        Column("rx_bytes_per_s", "float", nullable=True),
    ),
    "iterations": (
        Column("rank", "int"),
        Column("iteration", "int"),
        Column("start_ns", "time"),
        Column("elapsed_ns", "int"),
        Column("phase", "text", nullable=True, can_lack=True),
        Column("loss", "float", nullable=True, can_lack=True),
        Column("grad_norm", "float", nullable=True, can_lack=True),
        Column("tokens", "int", nullable=True, can_lack=True),
    ),
}
# JSON rows may leave out a key where it is null, but a misspelt one of these must not read as "nothing ever ended".
_JSON_MUST_NAME: Final = frozenset({"start_ns", "elapsed_ns"})


@dataclass(frozen=True, slots=True)
class TableFile:
    """Columns of one file, and the rows that could not be read.

    Parameters
    ----------
    name
        The file, as the errors call it.
    schema
        ``commops``, ``bandwidth`` or ``iterations``.
    columns
        Equal lengths; a column that the file lacks is absent.
    row_numbers
        Row number in the file (the first is 1) of each row; `None`: they are 1, 2, 3 ...
    unreadable
        Row number and reason of each row that is in no column.
    rows_before, rows_in_file
        Rows of the file before those of `columns`, and all of them, where this is a part of it.
    """

    name: str
    schema: str
    columns: Mapping[str, pa.ChunkedArray]
    row_numbers: np.ndarray | None = None
    unreadable: tuple[tuple[int, str], ...] = field(default=())
    rows_before: int = 0
    rows_in_file: int = 0

    def parts(self) -> Iterator[TableFile]:
        """Cut the rows into parts, of which each can be judged by itself."""
        if self.row_numbers is not None:  # read row by row: it is not large
            yield self
            return
        for first in range(0, max(len(self), 1), _PART_ROWS):
            columns = {name: column.slice(first, _PART_ROWS) for name, column in self.columns.items()}
            yield replace(self, columns=columns, rows_before=first, rows_in_file=len(self))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def is_nullable(self, name: str) -> bool:
        """Tell whether a column may hold nulls."""
        return next(column.nullable for column in COLUMNS[self.schema] if column.name == name)


def find_file(directory: Path, schema: str) -> Path | None:
    """Find the one file of `schema`; raises `InputError` where several could be meant."""
    names = [schema + ending + packing for ending in ENDINGS for packing in ("", ".gz")]
    found = [directory / name for name in names if (directory / name).exists()]
    if len(found) > 1:
        names = [path.name for path in found]
        raise InputError(f"{directory}: must hold one file of {schema}; got {', '.join(names)}; remove all but one")
    return found[0] if found else None


def read_file(path: Path, schema: str) -> TableFile:
    """Read one file.

    Raises
    ------
    InputError
        If the file is truncated or of another format, lacks a column, or a column has the wrong type.
    """
    refuse_pipe(path)
    reader = {".parquet": _read_parquet, ".jsonl": _read_json, ".csv": _read_csv}[_ending(path)]
    with _complete(path):
        return reader(path, schema)


def read_parts(path: Path, schema: str) -> Iterator[TableFile]:
    """Read one file part by part, where its format lets us: then it is never in memory as a whole.

    Yields at least one part. Raises as `read_file` does.
    """
    if _ending(path) != ".parquet":
        yield from read_file(path, schema).parts()
        return
    refuse_pipe(path)
    with _complete(path):
        yield from _parquet_parts(path, schema)


@contextmanager
def _complete(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: must be a complete {_ending(path)[1:]} file; got {_reason(error)}") from None


def _ending(path: Path) -> str:
    return path.suffixes[-2] if path.suffix == ".gz" else path.suffix


def _reason(error: BaseException) -> str:
    return shortened(" ".join(str(error).split()) or type(error).__name__)


def _missing(path: Path, column: Column, found: list[str]) -> InputError:
    return InputError(f"{path}: columns must include {column.name!r}; got {shortened(', '.join(found))}")


# --- parquet --------------------------------------------------------------------------------------------------------


def _read_parquet(path: Path, schema: str) -> TableFile:
    with _open_parquet(path, schema) as (file, wanted):
        table = file.read(columns=wanted)
    return TableFile(str(path), schema, {name: table.column(name) for name in wanted})


def _parquet_parts(path: Path, schema: str) -> Iterator[TableFile]:
    with _open_parquet(path, schema) as (file, wanted):
        rows_before = 0
        for table in _whole_parts(file.iter_batches(_PART_ROWS, columns=wanted), file.schema_arrow):
            columns = {name: table.column(name) for name in wanted}
            yield TableFile(str(path), schema, columns, None, (), rows_before, file.metadata.num_rows)
            rows_before += len(table)


def _whole_parts(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Join batches to tables of `_PART_ROWS` rows or more, but the last one: they end where a row group ends."""
    waiting: list[pa.RecordBatch] = []
    has_any = False
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= _PART_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting, has_any = [], True
    if waiting or not has_any:
        yield pa.Table.from_batches(waiting) if waiting else schema.empty_table()


@contextmanager
def _open_parquet(path: Path, schema: str) -> Iterator[tuple[pa.parquet.ParquetFile, list[str]]]:
    """Open a file, and name the columns of `schema` that it has."""
    texts = {column.name for column in COLUMNS[schema] if column.kind == "text"}
    try:
        source = pa.BufferReader(gzip.decompress(path.read_bytes())) if path.suffix == ".gz" else pa.OSFile(str(path))
        wanted = _check_schema(path, pa.parquet.read_schema(source), COLUMNS[schema])
        with pa.parquet.ParquetFile(source, read_dictionary=texts.intersection(wanted)) as file:
            yield file, wanted
    except pa.ArrowException as error:
        raise InputError(f"{path}: must be a complete parquet file; got {_reason(error)}") from None


def _check_schema(path: Path, schema: pa.Schema, columns: tuple[Column, ...]) -> list[str]:
    wanted = []
    for column in columns:
        if column.name in schema.names:
            _check_type(path, column, schema.field(column.name).type)
            wanted.append(column.name)
        elif not column.can_lack:
            raise _missing(path, column, schema.names)
    return wanted


def _check_type(path: Path, column: Column, found: pa.DataType) -> None:
    types = pa.types
    value = found.value_type if types.is_dictionary(found) else found
    is_number = types.is_integer(value) or (types.is_floating(value) and column.kind != "time")
    is_text = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
    if not (types.is_null(value) or (is_text if column.kind == "text" else is_number)):
        wanted = {"int": "of integers", "time": "of integers", "float": "of numbers", "text": "of texts"}[column.kind]
        raise InputError(f"{path}: column {column.name!r} must be {wanted}; got {found}")


# --- text -----------------------------------------------------------------------------------------------------------


def _arrow_types(columns: tuple[Column, ...], is_lenient: bool) -> dict[str, pa.DataType]:
    # Many writers turn integers with nulls into floats ("3.0"): the lenient reading takes them.
    integer = pa.float64() if is_lenient else pa.int64()
    types = {"int": integer, "time": pa.int64(), "float": pa.float64(), "text": pa.string()}
    return {column.name: types[column.kind] for column in columns}


def _read_fast(read: Callable[[bool], pa.Table]) -> pa.Table | None:
    for is_lenient in (False, True):
        try:
            return read(is_lenient)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            continue
    return None


def _open(path: Path) -> pa.NativeFile:
    return pa.input_stream(str(path), compression="gzip" if path.suffix == ".gz" else None)


def _open_lines(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _read_json(path: Path, schema: str) -> TableFile:
    columns = COLUMNS[schema]
    with _open_lines(path) as stream:
        head = stream.read(_KEY_SEARCH_BYTES)
    if not head.strip():
        return _table(path, schema, columns, [], ())
    for column in columns:
        is_needed = not column.nullable or column.name in _JSON_MUST_NAME
        if is_needed and f'"{column.name}"'.encode() not in head:
            raise _missing(path, column, _first_keys(head))
    table = _read_fast(lambda is_lenient: _arrow_json(path, _arrow_types(columns, is_lenient)))
    if table is None:
        with _open_lines(path) as stream:
            return _read_rows(path, schema, columns, _json_rows(stream), _from_json)
    return TableFile(str(path), schema, {column.name: table.column(column.name) for column in columns})


def _first_keys(head: bytes) -> list[str]:
    try:
        first = json.loads(head.splitlines()[0])
    except ValueError:
        return ["no JSON object in the first row"]
    return list(first) if isinstance(first, dict) else [shortened(first)]


def _arrow_json(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    options = pa.json.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore")
    with _open(path) as stream:
        return pa.json.read_json(stream, parse_options=options)


def _json_rows(stream: IO[bytes]) -> Iterator[Mapping[str, Any] | str]:
    for line in stream:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield f"must be JSON; got {_reason(error)}"
            continue
        yield row if isinstance(row, dict) else f"must be a JSON object; got {shortened(row)}"


def _read_csv(path: Path, schema: str) -> TableFile:
    columns = COLUMNS[schema]
    header = _csv_header(path)
    for column in columns:
        if column.name not in header and not column.can_lack:
            raise _missing(path, column, header)
    present = tuple(column for column in columns if column.name in header)
    table = _read_fast(lambda is_lenient: _arrow_csv(path, _arrow_types(present, is_lenient)))
    if table is None:
        with _text_of(path) as text:
            return _read_rows(path, schema, present, _csv_rows(csv.reader(text)), _from_csv)
    return TableFile(str(path), schema, {column.name: table.column(column.name) for column in present})


def _text_of(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(_open_lines(path), encoding="utf-8-sig", errors="replace", newline="")


def _csv_header(path: Path) -> list[str]:
    with _text_of(path) as text:
        try:
            header = next(csv.reader(text), [])
        except csv.Error as error:
            raise InputError(f"{path}: row 1 must be the names of the columns; got {error}") from None
    if len(set(header)) < len(header):
        raise InputError(f"{path}: columns must have distinct names; got {shortened(', '.join(header))}")
    return header


def _arrow_csv(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    options = pa.csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=_CSV_NULLS)
    with _open(path) as stream:
        return pa.csv.read_csv(
            stream, convert_options=options, parse_options=pa.csv.ParseOptions(newlines_in_values=True)
        )


def _csv_rows(reader: Iterator[list[str]]) -> Iterator[Mapping[str, Any] | str]:
    header = next(reader, [])
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield f"must be CSV; got {error}"
            continue
        if row is None:
            return
        if row and len(row) != len(header):
            yield f"must have {len(header)} values; got {len(row)}"
        elif row:
            yield dict(zip(header, row, strict=True))


# --- row by row, where Arrow refused --------------------------------------------------------------------------------


def _read_rows(
    path: Path,
    schema: str,
    columns: tuple[Column, ...],
    rows: Iterator[Mapping[str, Any] | str],
    convert: Callable[[Any, Column], Any],
) -> TableFile:
    kept: list[tuple[int, list[Any]]] = []
    unreadable: list[tuple[int, str]] = []
    for number, row in enumerate(rows, start=1):
        if isinstance(row, str):
            unreadable.append((number, row))
            continue
        try:
            kept.append((number, [convert(row.get(column.name), column) for column in columns]))
        except (ValueError, OverflowError) as error:
            unreadable.append((number, str(error)))
    return _table(path, schema, columns, kept, tuple(unreadable))


def _table(
    path: Path,
    schema: str,
    columns: tuple[Column, ...],
    kept: list[tuple[int, list[Any]]],
    unreadable: tuple[tuple[int, str], ...],
) -> TableFile:
    types = _arrow_types(columns, is_lenient=False)
    arrays = {
        column.name: pa.chunked_array([pa.array([values[i] for _, values in kept], type=types[column.name])])
        for i, column in enumerate(columns)
    }
    return TableFile(str(path), schema, arrays, np.array([number for number, _ in kept], dtype=np.int64), unreadable)


def _from_json(value: Any, column: Column) -> Any:
    if value is None:
        return None
    if column.kind == "text":
        # A lone surrogate is legal JSON and no text: as a question mark it becomes an unknown name.
        return value.encode(errors="replace").decode() if isinstance(value, str) else _refuse(column, "a text", value)
    if column.kind == "float":
        return float(value) if is_integer(value) or isinstance(value, float) else _refuse(column, "a number", value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    is_readable = is_integer(value) and abs(value) < 2**63
    return value if is_readable else _refuse(column, "an integer", value)


def _from_csv(value: str, column: Column) -> Any:
    if column.kind == "text":
        return value
    if value in _CSV_NULLS:
        return None
    for number in (int, float):
        try:
            return _from_json(number(value), column)
        except (ValueError, OverflowError):
            continue
    return _refuse(column, "a number" if column.kind == "float" else "an integer", value)


def _refuse(column: Column, rule: str, value: object) -> Any:
    raise ValueError(f"{column.name} must be {rule}{' or null' if column.nullable else ''}; got {shortened(value)}")
