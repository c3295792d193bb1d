"""Reads JSON lines and CSV of a trace directory.

Well-formed files are read by Arrow alone. Only when Arrow refuses one is it read again row by row.

Reads rows of JSON lines and CSV one by one, where Arrow refused a file, to find those that can't be read.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from irregulars.errors import InputError
from irregulars.producers.trace.columns import COLUMNS, Column, TableFile, missing_column, one_line
from irregulars.producers.trace.job_file import is_integer
from irregulars.validation import shown

CSV_NULLS: Final = ("", "null", "NULL", "None", "nan", "NaN", "NA")
"""Words that stand for a value that is missing."""


def arrow_types(columns: tuple[Column, ...], is_lenient: bool) -> dict[str, pa.DataType]:
    """Return the type of each column; the lenient ones take integers that were written as floats."""
    # Many writers turn integers with nulls into floats ("3.0"): the lenient reading takes them.
    integer = pa.float64() if is_lenient else pa.int64()
    types = {"int": integer, "time": pa.int64(), "float": pa.float64(), "text": pa.string()}
    return {column.name: types[column.kind] for column in columns}


def read_rows(
    path: Path,
    schema: str,
    columns: tuple[Column, ...],
    rows: Iterator[Mapping[str, Any] | str],
    convert: Callable[[Any, Column], Any],
) -> TableFile:
    """Convert rows; those that can't be, or that are a reason already, are the unreadable ones."""
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
    return table_of_rows(path, schema, columns, kept, tuple(unreadable))


def table_of_rows(
    path: Path,
    schema: str,
    columns: tuple[Column, ...],
    kept: list[tuple[int, list[Any]]],
    unreadable: tuple[tuple[int, str], ...],
) -> TableFile:
    """Make columns of rows with their numbers in the file; ``unreadable`` as in `TableFile`."""
    types = arrow_types(columns, is_lenient=False)
    arrays = {
        column.name: pa.chunked_array([pa.array([values[i] for _, values in kept], type=types[column.name])])
        for i, column in enumerate(columns)
    }
    return TableFile(str(path), schema, arrays, np.array([number for number, _ in kept], dtype=np.int64), unreadable)


def from_json(value: Any, column: Column) -> Any:
    """Return a value as its column holds it; raises `ValueError` with the rule that it breaks."""
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


def from_csv(value: str, column: Column) -> Any:
    """Do the same with the text of a field."""
    if column.kind == "text":
        return value
    if value in CSV_NULLS:
        return None
    for number in (int, float):
        try:
            return from_json(number(value), column)
        except (ValueError, OverflowError):
            continue
    return _refuse(column, "a number" if column.kind == "float" else "an integer", value)


def _refuse(column: Column, rule: str, value: object) -> Any:
    raise ValueError(f"{column.name} must be {rule}{' or null' if column.nullable else ''}; got {shown(value)}")


def json_rows(stream: IO[bytes]) -> Iterator[Mapping[str, Any] | str]:
    """Yield each row, or why it is none."""
    for line in stream:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield f"must be JSON; got {one_line(error)}"
            continue
        yield row if isinstance(row, dict) else f"must be a JSON object; got {shown(row)}"


def csv_rows(reader: Iterator[list[str]]) -> Iterator[Mapping[str, Any] | str]:
    """Yield each row below the header, or why it is none."""
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


_KEY_SEARCH_BYTES: Final = 1 << 20
# JSON rows may leave out a key where it is null, but a misspelt one of these must not read as "nothing ever ended".
_JSON_MUST_NAME: Final = frozenset({"start_ns", "elapsed_ns"})


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


def read_json(path: Path, schema: str) -> TableFile:
    """Read a file of JSON lines."""
    columns = COLUMNS[schema]
    with _open_lines(path) as stream:
        head = stream.read(_KEY_SEARCH_BYTES)
    if not head.strip():
        return table_of_rows(path, schema, columns, [], ())
    for column in columns:
        is_needed = not column.nullable or column.name in _JSON_MUST_NAME
        if is_needed and f'"{column.name}"'.encode() not in head:
            raise missing_column(path, column, _first_keys(head))
    table = _read_fast(lambda is_lenient: _arrow_json(path, arrow_types(columns, is_lenient)))
    if table is None:
        with _open_lines(path) as stream:
            return read_rows(path, schema, columns, json_rows(stream), from_json)
    return TableFile(str(path), schema, {column.name: table.column(column.name) for column in columns})


def _first_keys(head: bytes) -> list[str]:
    try:
        first = json.loads(head.splitlines()[0])
    except ValueError:
        return ["no JSON object in the first row"]
    return list(first) if isinstance(first, dict) else [shown(first)]


def _arrow_json(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    options = pa.json.ParseOptions(explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore")
    with _open(path) as stream:
        return pa.json.read_json(stream, parse_options=options)


def read_csv(path: Path, schema: str) -> TableFile:
    """Read a CSV file with a header."""
    columns = COLUMNS[schema]
    header = _csv_header(path)
    for column in columns:
        if column.name not in header and not column.can_lack:
            raise missing_column(path, column, header)
    present = tuple(column for column in columns if column.name in header)
    table = _read_fast(lambda is_lenient: _arrow_csv(path, arrow_types(present, is_lenient)))
    if table is None:
        with _text_of(path) as text:
            return read_rows(path, schema, present, csv_rows(csv.reader(text)), from_csv)
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
        raise InputError(f"{path}: columns must have distinct names; got {shown(', '.join(header))}")
    return header


def _arrow_csv(path: Path, types: dict[str, pa.DataType]) -> pa.Table:
    options = pa.csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=CSV_NULLS)
    with _open(path) as stream:
        return pa.csv.read_csv(
            stream, convert_options=options, parse_options=pa.csv.ParseOptions(newlines_in_values=True)
        )
