"""Reads parquet files of a trace directory, whole or part by part."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from irregulars.errors import InputError
from irregulars.producers.trace.columns import COLUMNS, PART_ROWS, Column, TableFile, missing_column, one_line
from irregulars.producers.trace.limits import require_plausible_rows


def read_parquet(path: Path, schema: str) -> TableFile:
    """Read a file as a whole."""
    with _open_parquet(path, schema) as (file, wanted):
        table = file.read(columns=wanted)
        _require_sound(table)
    return TableFile(str(path), schema, {name: table.column(name) for name in wanted})


def read_parquet_parts(path: Path, schema: str) -> Iterator[TableFile]:
    """Read a file that need not fit into memory; yields at least one part."""
    with _open_parquet(path, schema) as (file, wanted):
        rows_before = 0
        for table in _whole_parts(file.iter_batches(PART_ROWS, columns=wanted), file.schema_arrow):
            _require_sound(table)
            columns = {name: table.column(name) for name in wanted}
            yield TableFile(str(path), schema, columns, None, (), rows_before, file.metadata.num_rows)
            rows_before += len(table)


def _require_sound(table: pa.Table) -> None:
    """Raise Arrow's error for texts whose codes lie outside of their dictionary: Arrow reads them unchecked."""
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            column.validate(full=True)


def _whole_parts(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Join batches to tables of `PART_ROWS` rows or more, but the last one: they end where a row group ends."""
    waiting: list[pa.RecordBatch] = []
    has_any = False
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= PART_ROWS:
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
            require_plausible_rows(path, file.metadata)
            yield file, wanted
    except (pa.ArrowException, UnicodeDecodeError) as error:  # the second: a column's name
        raise InputError(f"{path}: must be a complete parquet file; got {one_line(error)}") from None


def _check_schema(path: Path, schema: pa.Schema, columns: tuple[Column, ...]) -> list[str]:
    wanted = []
    for column in columns:
        if column.name in schema.names:
            _check_type(path, column, schema.field(column.name).type)
            wanted.append(column.name)
        elif not column.can_lack:
            raise missing_column(path, column, schema.names)
    return wanted


def _check_type(path: Path, column: Column, found: pa.DataType) -> None:
    types = pa.types
    value = found.value_type if types.is_dictionary(found) else found
    is_number = types.is_integer(value) or (types.is_floating(value) and column.kind != "time")
    is_text = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
    if not (types.is_null(value) or (is_text if column.kind == "text" else is_number)):
        wanted = {"int": "of integers", "time": "of integers", "float": "of numbers", "text": "of texts"}[column.kind]
        raise InputError(f"{path}: column {column.name!r} must be {wanted}; got {found}")
