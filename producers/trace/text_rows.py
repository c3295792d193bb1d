"""Reads rows of JSON lines and CSV one by one, where Arrow refused a file, to find those that can't be read."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from irregulars.producers.trace.columns import Column, TableFile, one_line
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
