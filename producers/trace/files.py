"""Files of a trace directory as typed Arrow columns: parquet, JSON lines and CSV, each plain or gzipped.

Files that would become far larger in memory than they are: refused before they do.

A parquet file of 5 MB can hold 150,000,000 equal rows, and a packed file a thousand times its size.

Reads parquet files of a trace directory, whole or part by part.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet

from irregulars.errors import InputError
from irregulars.producers.trace.columns import COLUMNS, PART_ROWS, Column, TableFile, missing_column, one_line
from irregulars.producers.trace.job_file import refuse_pipe
from irregulars.producers.trace.text_file import read_csv, read_json

FREE_ROWS: Final = 1 << 24
"""Rows that any file may have: they take some 1.5 GB in memory."""

MOST_ROWS_PER_BYTE: Final = 8
"""Of a file with more rows than that. Operators begin at different times, so that a row takes some bytes, whatever
the encoding: files of ours have 0.05 to 0.2 rows a byte."""

FREE_BYTES: Final = 1 << 30
"""Bytes that any file may have once it is unpacked."""

MOST_EXPANSION: Final = 200
"""Of a file with more: unpacked over packed size. Logs of text are packed to a tenth or a fiftieth."""

_PIECE_BYTES: Final = 1 << 20


def require_plausible_rows(path: Path, metadata: Any) -> None:
    """Check what the footer of a parquet file declares.

    Parameters
    ----------
    metadata
        `pyarrow.parquet.FileMetaData`.

    Raises
    ------
    InputError
        If it has more rows, or takes more memory, than a file of its size can have.
    """
    size, rows = path.stat().st_size, metadata.num_rows
    if not 0 <= rows <= max(FREE_ROWS, MOST_ROWS_PER_BYTE * size):
        most = f"at most {MOST_ROWS_PER_BYTE} rows a byte"
        raise InputError(f"{path}: must have {most}, or {FREE_ROWS} in all; got {rows} rows in {size} bytes")
    expanded = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    _require_expansion(path, expanded, size)


def require_plausible_gzip(path: Path) -> None:
    """Check how large a packed file becomes, by unpacking it piece by piece; raises as `require_plausible_rows`.

    Raises also what `gzip` does where the file is cut off or damaged.
    """
    size, expanded = path.stat().st_size, 0
    with gzip.open(path) as stream:
        while piece := stream.read(_PIECE_BYTES):
            expanded += len(piece)
            _require_expansion(path, expanded, size)


def _require_expansion(path: Path, expanded: int, size: int) -> None:
    if expanded > max(FREE_BYTES, MOST_EXPANSION * size):
        most = f"at most {MOST_EXPANSION} times its size"
        raise InputError(f"{path}: must unpack to {most}, or {FREE_BYTES} bytes; got {expanded} bytes of {size}")


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


_READERS: Final = {".parquet": read_parquet, ".jsonl": read_json, ".csv": read_csv}
ENDINGS: Final = tuple(_READERS)


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
    with _complete(path):
        _require_plausible(path)
        return _READERS[_ending(path)](path, schema)


def read_parts(path: Path, schema: str) -> Iterator[TableFile]:
    """Read one file part by part. Parquet is never in memory as a whole; text files are.

    Yields at least one part. Raises as `read_file` does.
    """
    if _ending(path) != ".parquet":
        yield from read_file(path, schema).parts()
        return
    refuse_pipe(path)
    with _complete(path):
        _require_plausible(path)
        yield from read_parquet_parts(path, schema)


def _require_plausible(path: Path) -> None:
    if path.suffix == ".gz":
        require_plausible_gzip(path)


@contextmanager
def _complete(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: must be a complete {_ending(path)[1:]} file; got {one_line(error)}") from None


def _ending(path: Path) -> str:
    return path.suffixes[-2] if path.suffix == ".gz" else path.suffix
