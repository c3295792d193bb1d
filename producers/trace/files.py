"""Files of a trace directory as typed Arrow columns: parquet, JSON lines and CSV, each plain or gzipped."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from irregulars.errors import InputError
from irregulars.producers.trace.columns import TableFile, one_line
from irregulars.producers.trace.job_file import refuse_pipe
from irregulars.producers.trace.limits import require_plausible_gzip
from irregulars.producers.trace.parquet_file import read_parquet, read_parquet_parts
from irregulars.producers.trace.text_file import read_csv, read_json

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
