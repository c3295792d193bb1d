"""How an answer of the database is printed: as a table where it fits, else as records or with fewer columns.

`lay_out` is pure: an answer and the size of a terminal in, lines out.
"""

from __future__ import annotations

import csv
import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal

from irregulars.infra.commands.options import open_console
from irregulars.printing import printable, printable_lines

if TYPE_CHECKING:
    from irregulars.sinks.investigations import Answer

# ``fitting``: a table if the width suffices and no value has several lines; else vertical if the height does, or
# there are one or two rows; else a table with long texts cut, and of the first columns
Shape = Literal["fitting", "table", "vertical"]

NULL: Final = "-"
_GAP: Final = "  "
_UNITS: Final = ("seconds", "milliseconds", "microseconds")
_FEW: Final = 2  # rows that are shown as records however few lines a terminal has

# Letters of a text that stand in a table which is too wide for the terminal; `…` stands for the others
_LONGEST: Final = 32

_NARROWEST: Final = 20  # letters of a value that stand on a line at least, however long the names of the columns are


def show_answer(answer: Answer, shape: Shape = "fitting") -> None:
    """Print an answer for people: fitted to a terminal; into a file or pipe as a table that is as wide as it must."""
    console = open_console()
    size = (console.width, console.height) if console.is_terminal else (None, None)
    if not answer.rows:
        print(f"no rows. {answer.empty}".rstrip(" ."), end=".\n" if answer.empty else "\n")
        return
    for line, is_head in lay_out(answer, *size, shape=shape):
        console.print(line, style="bold" if is_head else None, markup=False, soft_wrap=True)


def lay_out(
    answer: Answer, width: int | None, height: int | None = None, *, shape: Shape = "fitting"
) -> Iterator[tuple[str, bool]]:
    """Yield the lines of an answer, each with whether it is a heading.

    Parameters
    ----------
    width
        Columns of the terminal; None: as wide as the answer.
    height
        Lines of the terminal; None: any number.
    """
    head = [printable(name) for name in answer.columns]
    cells = list(zip(*(_texts(column) for column in zip(*answer.rows, strict=True)), strict=True))
    widths = [max(map(_width, [name, *(row[at] for row in cells)])) for at, name in enumerate(head)]
    is_wide = width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width
    has_lines = any("\n" in cell for row in cells for cell in row)
    rightward = [_is_number(column) for column in zip(*answer.rows, strict=True)]
    # The first record, which matters most, must still be on the screen when all are printed.
    is_short = height is None or len(cells) <= _FEW or len(cells) * (len(head) + 1) < height
    if shape == "vertical" or (shape == "fitting" and (is_wide or has_lines) and is_short):
        yield from _records(head, cells, width)
    elif shape == "fitting" and is_wide and width is not None:
        yield from _narrow_table(head, cells, rightward, width)
    else:
        yield from _table(head, cells, widths, rightward)


def _narrow_table(
    head: Sequence[str], cells: Sequence[Sequence[str]], rightward: Sequence[bool], width: int
) -> Iterator[tuple[str, bool]]:
    """Shorten long texts, show the columns for which there is room, and say which are left out."""
    short = [[_shortened(cell, min(_LONGEST, width)) for cell in row] for row in cells]
    widths = [max(map(_width, column)) for column in zip(head, *short, strict=True)]
    ends = accumulate(one + len(_GAP) for one in widths)
    shown = max(1, sum(end - len(_GAP) <= width for end in ends))
    yield from _table(head[:shown], [row[:shown] for row in short], widths[:shown], rightward[:shown])
    others = [f"not shown: {', '.join(head[shown:])}"] if head[shown:] else []
    others += ["texts are cut (…)"] if short != [list(row) for row in cells] else []
    text = f"Too wide for this terminal: {'; '.join(others)}. Whole: --vertical, --table, --json"
    yield from ((line, False) for line in textwrap.wrap(text, width, break_on_hyphens=False))


def _shortened(cell: str, most: int) -> str:
    cell = cell.replace("\n", " ")
    if _width(cell) <= most:
        return cell
    kept = accumulate(map(_width, cell))
    return cell[: sum(end < most for end in kept)] + "…"


def _table(
    head: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], rightward: Sequence[bool]
) -> Iterator[tuple[str, bool]]:
    for number, row in enumerate([head, *cells]):
        flat = [cell.replace("\n", " ") for cell in row]
        padded = [
            " " * (width - _width(cell)) + cell if is_right else cell + " " * (width - _width(cell))
            for cell, width, is_right in zip(flat, widths, rightward, strict=True)
        ]
        yield _GAP.join(padded).rstrip(), number == 0


def _records(head: Sequence[str], cells: Sequence[Sequence[str]], width: int | None) -> Iterator[tuple[str, bool]]:
    indent = max(map(_width, head)) + len(_GAP)
    room = None if width is None else max(_NARROWEST, width - indent)
    for number, row in enumerate(cells, 1):
        yield f"{number} of {len(cells)}" if len(cells) > 1 else "1 row", True
        for name, cell in zip(head, row, strict=True):
            first, *others = _wrapped(cell, room)
            yield f"{name}{' ' * (indent - _width(name))}{first}", False
            yield from ((" " * indent + line, False) for line in others)


def _wrapped(cell: str, room: int | None) -> list[str]:
    """Break a text into lines of at most `room`, between words where that is possible."""
    lines = cell.split("\n")
    if room is None:
        return lines
    return [part for line in lines for part in textwrap.wrap(line, room, break_on_hyphens=False) or [""]]


def _texts(column: Sequence[Any]) -> list[str]:
    """Return the values of one column as people read them; times are as short as tells them apart."""
    known = {value for value in column if isinstance(value, datetime)}
    unit = next(
        (one for one in _UNITS if len({value.isoformat(" ", one) for value in known}) == len(known)), _UNITS[-1]
    )
    return [_text(value, unit) for value in column]


def _text(value: Any, unit: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        utc = value if value.tzinfo is None else value.astimezone(UTC)  # a column may have a zone of its own
        return utc.replace(tzinfo=None).isoformat(" ", unit) + "Z"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(one, unit) for one in value)}]"
    return printable_lines(value)


def _is_number(column: Sequence[Any]) -> bool:
    kinds = {type(value) for value in column if value is not None}
    return bool(kinds) and all(issubclass(kind, int | float | Decimal) and kind is not bool for kind in kinds)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def plain_value(value: Any) -> Any:
    """Return a value as JSON has it: times in ISO 8601 with their zone, NaN as null."""
    if isinstance(value, datetime):
        return value.isoformat() + ("Z" if value.tzinfo is None else "")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return value if isinstance(value, bool | int | str | None) else str(value)


def write_csv(answer: Answer) -> None:
    """Print an answer as CSV with a header."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(answer.columns)
    is_shown = sys.stdout.isatty()  # a file gets the values as they are
    for row in answer.rows:
        values = [plain_value(value) for value in row]
        writer.writerow([printable(one) if is_shown and isinstance(one, str) else one for one in values])
