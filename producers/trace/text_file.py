"""Reads JSON lines and CSV of a trace directory.

Well-formed files are read by Arrow alone. Only when Arrow refuses one is it read again row by row.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from irregulars.errors import InputError
from irregulars.producers.trace.columns import COLUMNS, TableFile, missing_column
from irregulars.producers.trace.text_rows import (
    CSV_NULLS,
    arrow_types,
    csv_rows,
    from_csv,
    from_json,
    json_rows,
    read_rows,
    table_of_rows,
)
from irregulars.validation import shown

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
