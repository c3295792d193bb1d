"""Columns of the files of a trace directory, and the table of one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from irregulars.errors import InputError
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
    # rows_before, rows_in_file: Rows of the file before those of `columns`, and all of them, where this is a part of
    # it
    rows_before: int = 0
    rows_in_file: int = 0

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
