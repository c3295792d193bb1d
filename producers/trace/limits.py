"""Files that would become far larger in memory than they are: refused before they do.

A parquet file of 5 MB can hold 150,000,000 equal rows, and a packed file a thousand times its size.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, Final

from irregulars.errors import InputError

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
