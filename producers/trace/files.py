"""Files of a trace directory as typed Arrow columns: parquet, JSON lines and CSV, each plain or gzipped.

Text files are read by Arrow; only where Arrow refuses one is it read again row by row, to find the rows that can't be
read. A parquet file of 5 MB can hold 150,000,000 equal rows, and a packed file a thousand times its size: files that
would become far larger in memory than they are on disk are refused before they do.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from irregulars.errors import InputError
from irregulars.producers.trace.job_file import is_integer, refuse_pipe
from irregulars.validation import shown

# Rows of a part of a file: few enough that checking one needs little memory beside all the columns.
PART_ROWS: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a file: ``kind`` is ``int``, ``time`` (an integer that no float can hold), ``float``, ``text``.

    A column that `can_lack` may be missing from the file; one that is `nullable` may hold nulls.
    """

    name: str
    kind: str
    nullable: bool = False
    can_lack: bool = False

    @property
    def is_checksum(self) -> bool:
        """Whether its integers only need to be equal: floats will do, which pandas makes of integers with nulls."""
        return self.kind == "time" and self.can_lack


# Behind a kind, "?": it is nullable; "??": it can lack as well
_KINDS: Final = {
    "commops": "rank int, communicator text, operator text, sequence int, peer int?, start_ns time?, elapsed_ns int?,"
               "size_bytes int?, iteration int?",
    "bandwidth": "rank int, time_ns time, path text, device text, tx_bytes_per_s float?, rx_bytes_per_s float?",
    "iterations": "rank int, iteration int, start_ns time, elapsed_ns int, phase text??, loss float??,"
                  "grad_norm float??, tokens int??, local_grad_norm float??, update_rms float??,"
                  "attention_logit float??, not_finite int??, parameters_checksum time??",
    "events": "time_ns time, host text?, rank int??, device text??, kind text, code int??, detail text??",
    "audits": "rank int, iteration int, of_rank int, checksum time",
    "pauses": "rank int, cause text, start_ns time, elapsed_ns int, iteration int??, detail text??",
}  # fmt: skip
COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    schema: tuple(
        Column(name, kind.rstrip("?"), nullable="?" in kind, can_lack="??" in kind)
        for name, kind in (text.split() for text in texts.split(","))
    )
    for schema, texts in _KINDS.items()
}


@dataclass(frozen=True, slots=True)
class TableFile:
    """Columns of one file, and the rows that could not be read."""

    name: str  # the file, as the errors call it
    schema: str  # a key of `COLUMNS`
    columns: Mapping[str, pa.ChunkedArray]  # equal lengths; a column that the file lacks is absent
    # Row number in the file (the first is 1) of each row; `None`: they are 1, 2, 3 ..
    row_numbers: np.ndarray | None = None
    # Row number and reason of each row that is in no column
    unreadable: tuple[tuple[int, str], ...] = field(default=())
    rows_before: int = 0  # of the file before those of `columns`, where this is a part of it
    rows_in_file: int = 0  # all of them

    def parts(self) -> Iterator[TableFile]:
        """Cut the rows into parts, of which each can be judged by itself."""
        if self.row_numbers is not None:  # read row by row: it is not large
            yield self
            return
        for first in range(0, max(len(self), 1), PART_ROWS):
            columns = {name: column.slice(first, PART_ROWS) for name, column in self.columns.items()}
            yield replace(self, columns=columns, rows_before=first, rows_in_file=len(self))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def is_nullable(self, name: str) -> bool:
        """Whether a column may hold nulls."""
        return next(column.nullable for column in COLUMNS[self.schema] if column.name == name)


def missing_column(path: Path, column: Column, found: list[str]) -> InputError:
    """Return the error to raise where a file lacks a column."""
    return InputError(f"{path}: columns must include {column.name!r}; got {shown(', '.join(found))}")


def one_line(error: BaseException) -> str:
    """Return the text of a reader's error, in one line."""
    return shown(" ".join(str(error).split()) or type(error).__name__)


_CHUNK_ROWS: Final = 1 << 16  # rows read row by row that are Python's objects at once: these take some 30 MiB
CSV_NULLS: Final = ("", "null", "NULL", "None", "nan", "NaN", "NA")  # words that stand for a value that is missing
_CSV_NANS: Final = ("nan", "NaN")  # of these, what a trainer computed where a loss or a norm is asked for


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
    """Convert rows; those that can't be converted, and texts (reasons) in their place, are the unreadable ones."""
    numbers = array("q")
    unreadable: list[tuple[int, str]] = []

    def converted() -> Iterator[dict[str, Any]]:
        for number, row in enumerate(rows, start=1):
            try:
                if isinstance(row, str):
                    raise ValueError(row)
                values = {column.name: convert(row.get(column.name), column) for column in columns}
            except (ValueError, OverflowError) as error:
                unreadable.append((number, str(error)))
                continue
            numbers.append(number)
            yield values

    types, good = pa.schema(list(arrow_types(columns, is_lenient=False).items())), converted()
    chunks = iter(lambda: list(islice(good, _CHUNK_ROWS)), [])
    table = pa.Table.from_batches([pa.RecordBatch.from_pylist(chunk, types) for chunk in chunks], types)
    arrays = {column.name: table.column(column.name) for column in columns}
    return TableFile(str(path), schema, arrays, np.array(numbers, dtype=np.int64), tuple(unreadable))


def from_json(value: Any, column: Column) -> Any:
    """Return a value as its column holds it; raises `ValueError` with the rule that it breaks."""
    if value is None:
        return None
    if column.kind == "text":
        # A lone surrogate is legal JSON and no text: as a question mark it becomes an unknown name.
        return value.encode(errors="replace").decode() if isinstance(value, str) else _refuse(column, "a text", value)
    if column.kind == "float":
        return float(value) if is_integer(value) or isinstance(value, float) else _refuse(column, "a number", value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2 ** (63 if column.is_checksum else 53):
        value = int(value)
    is_readable = is_integer(value) and abs(value) < 2**63
    return value if is_readable else _refuse(column, "an integer", value)


def from_csv(value: str, column: Column) -> Any:
    """Return a field's text as its column holds it; raises as `from_json`."""
    if column.kind == "text":
        return value
    if value in CSV_NULLS and not (column.kind == "float" and value in _CSV_NANS):
        return None
    # An integer first: as a float, one of more than 53 bits would lose its last digits.
    for number in (int, float):
        try:
            return from_json(number(value), column)
        except (ValueError, OverflowError):
            continue
    return _refuse(column, "a number" if column.kind == "float" else "an integer", value)


def _refuse(column: Column, rule: str, value: object) -> Any:
    raise ValueError(f"{column.name} must be {rule}{' or null' if column.nullable else ''}; got {shown(value)}")


def json_rows(stream: IO[bytes]) -> Iterator[Mapping[str, Any] | str]:
    """Yield each row, or the reason why it is none."""
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
    """Yield each row below the header, or the reason why it is none."""
    header = next(reader, [])
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            # The reader goes on behind the row that it can't read.
            yield f"must be CSV; got {error}"
            continue
        if row is None:
            return
        if row and len(row) != len(header):
            yield f"must have {len(header)} values; got {len(row)}"
        elif row:
            yield dict(zip(header, row, strict=True))


_KEY_SEARCH_BYTES: Final = 1 << 20  # of a file's begin, in which each key that it needs must occur
# JSON rows may leave out a key where it is null, but a misspelt one of these must not read as "nothing ever ended".
_JSON_MUST_NAME: Final = frozenset({"start_ns", "elapsed_ns"})


def _read_fast(path: Path, read: Callable[[pa.NativeFile, bool], pa.Table]) -> pa.Table | None:
    # Strictly first, then with integers as floats. None: Arrow refuses the file, and the caller reads row by row.
    packing = "gzip" if path.suffix == ".gz" else None
    for is_lenient in (False, True):
        with (
            suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError),
            pa.input_stream(str(path), compression=packing) as stream,
        ):
            return read(stream, is_lenient)
    return None


def _open_lines(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def read_json(path: Path, schema: str) -> TableFile:
    """Read a file of JSON lines."""
    columns = COLUMNS[schema]
    with _open_lines(path) as stream:
        head = stream.read(_KEY_SEARCH_BYTES)
    if not head.strip():
        return read_rows(path, schema, columns, iter(()), from_json)
    for column in columns:
        is_needed = not column.nullable or column.name in _JSON_MUST_NAME
        if is_needed and f'"{column.name}"'.encode() not in head:
            try:
                first = json.loads(head.splitlines()[0])
            except ValueError:
                raise missing_column(path, column, ["no JSON object in the first row"]) from None
            raise missing_column(path, column, list(first) if isinstance(first, dict) else [shown(first)])

    def read(stream: pa.NativeFile, is_lenient: bool) -> pa.Table:
        wanted = pa.schema(list(arrow_types(columns, is_lenient).items()))
        options = pa.json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
        return pa.json.read_json(stream, parse_options=options)

    table = _read_fast(path, read)
    if table is None:
        with _open_lines(path) as stream:
            return read_rows(path, schema, columns, json_rows(stream), from_json)
    return TableFile(str(path), schema, {column.name: table.column(column.name) for column in columns})


def read_csv(path: Path, schema: str) -> TableFile:
    """Read a CSV file with a header."""
    columns = COLUMNS[schema]
    with _text_of(path) as text:
        try:
            header = next(csv.reader(text), [])
        except csv.Error as error:
            raise InputError(f"{path}: row 1 must be the names of the columns; got {error}") from None
    if len(set(header)) < len(header):
        raise InputError(f"{path}: columns must have distinct names; got {shown(', '.join(header))}")
    for column in columns:
        if column.name not in header and not column.can_lack:
            raise missing_column(path, column, header)
    present = tuple(column for column in columns if column.name in header)
    # In a column of integers it is null all the same: they are read as floats then, or row by row.
    nulls = [word for word in CSV_NULLS if schema != "iterations" or word not in _CSV_NANS]

    def read(stream: pa.NativeFile, is_lenient: bool) -> pa.Table:
        types = arrow_types(present, is_lenient)
        options = pa.csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=nulls)
        # Else Arrow would take a line break inside of a quoted text for the end of the row.
        parsing = pa.csv.ParseOptions(newlines_in_values=True)
        return pa.csv.read_csv(stream, convert_options=options, parse_options=parsing)

    table = _read_fast(path, read)
    if table is None:
        with _text_of(path) as text:
            return read_rows(path, schema, present, csv_rows(csv.reader(text)), from_csv)
    return TableFile(str(path), schema, {column.name: table.column(column.name) for column in present})


def _text_of(path: Path) -> io.TextIOWrapper:
    # "-sig": a table that was saved by Excel begins with a mark of its order of bytes, which is no part of a name.
    return io.TextIOWrapper(_open_lines(path), encoding="utf-8-sig", errors="replace", newline="")


FREE_ROWS: Final = 1 << 24  # rows that any file may have: they take some 1.5 GB in memory
# Of a file with more rows than that. Operators begin at different times, so that a row takes some bytes, whatever the
# encoding: files of ours have 0.05 to 0.2 rows a byte.
MOST_ROWS_PER_BYTE: Final = 8
FREE_BYTES: Final = 1 << 30  # bytes that any file may have once it is unpacked
# Of a file with more: unpacked over packed size. Logs of text are packed to a tenth or a fiftieth.
MOST_EXPANSION: Final = 200
_PIECE_BYTES: Final = 1 << 20


def require_plausible_rows(path: Path, metadata: Any) -> None:
    """Check the sizes in the footer of a parquet file.

    Raises InputError if it has more rows, or takes more memory, than a file of its size can have.
    """
    size, rows = path.stat().st_size, metadata.num_rows
    if not 0 <= rows <= max(FREE_ROWS, MOST_ROWS_PER_BYTE * size):
        most = f"at most {MOST_ROWS_PER_BYTE} rows a byte"
        raise InputError(f"{path}: must have {most}, or {FREE_ROWS} in all; got {rows} rows in {size} bytes")
    expanded = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    _require_expansion(path, expanded, size)


def require_plausible_gzip(path: Path) -> None:
    """Check how large a packed file becomes, by unpacking it piece by piece; raises as `require_plausible_rows`.

    Raises also the errors of `gzip` where the file is cut off or damaged.
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
    wanted, types = [], pa.types
    for column in columns:
        if column.name not in schema.names:
            if not column.can_lack:
                raise missing_column(path, column, schema.names)
            continue
        found = schema.field(column.name).type
        value = found.value_type if types.is_dictionary(found) else found
        may_float = column.kind != "time" or column.is_checksum
        is_number = types.is_integer(value) or (types.is_floating(value) and may_float)
        is_text = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
        if not (types.is_null(value) or (is_text if column.kind == "text" else is_number)):
            rule = {"float": "numbers", "text": "texts"}.get(column.kind, "integers")
            raise InputError(f"{path}: column {column.name!r} must be of {rule}; got {found}")
        wanted.append(column.name)
    return wanted


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

    Raises InputError if the file is truncated or of another format, lacks a column, or a column has the wrong type.
    """
    with _checked(path):
        return _READERS[_ending(path)](path, schema)


def read_parts(path: Path, schema: str) -> Iterator[TableFile]:
    """Read one file part by part. Parquet is never in memory as a whole; text files are.

    Yields at least one part. Raises as `read_file` does.
    """
    if _ending(path) != ".parquet":
        yield from read_file(path, schema).parts()
        return
    with _checked(path):
        yield from read_parquet_parts(path, schema)


@contextmanager
def _checked(path: Path) -> Iterator[None]:
    """Refuse a file that can't be read as a whole before it is read, or once that shows."""
    refuse_pipe(path)
    try:
        if path.suffix == ".gz":
            require_plausible_gzip(path)
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: must be a complete {_ending(path)[1:]} file; got {one_line(error)}") from None


def _ending(path: Path) -> str:
    return path.suffixes[-2] if path.suffix == ".gz" else path.suffix
