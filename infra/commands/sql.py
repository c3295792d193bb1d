"""``irregulars sql``: ask the database, and print its answer as table, records, CSV or JSON."""

from __future__ import annotations

import csv
import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from irregulars.errors import InputError
from irregulars.infra.commands.options import Json, asks, open_console, print_json, print_result, settings_of
from irregulars.printing import broken, counted, printable, printable_lines

if TYPE_CHECKING:
    from irregulars.infra.settings import Settings
    from irregulars.sinks.investigations import Answer


def _question_names(incomplete: str) -> list[tuple[str, str]]:
    """Complete names of questions in a shell."""
    from irregulars.sinks.investigations import shipped_investigations

    shipped = shipped_investigations().values()
    return [(one.name, one.title) for one in shipped if one.name.startswith(incomplete)]


@asks("database")
def sql(
    context: typer.Context,
    question: Annotated[
        str | None,
        typer.Argument(
            help="SQL, or the name of a question that ships (see --list).", autocompletion=_question_names
        ),
    ] = None,
    values: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Parameters.")] = None,
    is_listing: Annotated[bool, typer.Option("--list", help="List the questions and their parameters.")] = False,
    is_creating: Annotated[
        bool, typer.Option("--create-tables", help="Make missing tables as clickhouse_user, and set what they keep.")
    ] = False,
    is_printing: Annotated[
        bool, typer.Option("--print-access", help="Print the SQL that makes the users reader, writer and admin.")
    ] = False,
    deleted_job: Annotated[
        str | None,
        typer.Option("--delete-job", metavar="JOB", help="Count a job's rows; with --write delete them for good."),
    ] = None,
    is_writing: Annotated[
        bool, typer.Option("--write", help="Let the SQL change what clickhouse_user may; otherwise it only reads.")
    ] = False,
    is_vertical: Annotated[bool, typer.Option("--vertical", help="Print one record after the other.")] = False,
    is_table: Annotated[bool, typer.Option("--table", help="Print a table, however wide.")] = False,
    is_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait for the database.")] = 2,
    json: Json = False,
) -> None:
    """Ask the database: any SQL that only reads, or one of the questions that ship.

    What is too wide for the terminal is printed one record after the other, or as a table that says what it leaves
    out.

    Examples: irregulars sql --list;  irregulars sql open_now;  irregulars sql blamed job=llama-7b;
    irregulars sql "SELECT count() FROM verdicts FINAL WHERE kind = {kind:String}" kind=slow_nic --json
    """
    if is_listing:
        _list(json)
        return
    settings = settings_of(context)
    if is_printing:
        from irregulars.sinks.migrate import access_sql

        print(access_sql(settings.clickhouse_database), end="")
        return
    if is_creating:
        _create_tables(settings, wait_s)
        return
    if deleted_job is not None:
        _delete_job(settings, wait_s, deleted_job, is_writing=is_writing, json=json)
        return
    if question is None or not question.strip():
        got = "none" if question is None else "an empty text"
        raise InputError(f"question must be SQL or the name of a question; got {got}. See: irregulars sql --list")
    flags = {"--json": json, "--csv": is_csv, "--vertical": is_vertical, "--table": is_table}
    given = [flag for flag, is_given in flags.items() if is_given]
    if len(given) > 1:
        raise InputError(f"form must be one of {', '.join(flags)}; got {' '.join(given)}")
    answer = _ask(settings, wait_s, question, values or (), is_writing)
    if json:
        print_json([dict(zip(answer.columns, map(plain_value, row), strict=True)) for row in answer.rows])
    elif is_csv:
        write_csv(answer)
    else:
        if answer.chosen:
            chosen = " ".join(f"{name}={value}" for name, value in answer.chosen.items())
            open_console(is_error=True).print(f"{chosen} (the newest)", style="dim", markup=False)
        show_answer(answer, "vertical" if is_vertical else "table" if is_table else "fitting")
    sys.stdout.flush()
    if answer.cut_at is not None:  # last, where it is still to be seen; on standard error, for scripts as well
        text = f"irregulars: the first {counted(answer.cut_at, 'row')}, there are more: limit=… shows them"
        open_console(is_error=True).print(text, style="dim", markup=False)


def _create_tables(settings: Settings, wait_s: float) -> None:
    from irregulars.infra.wiring import database_settings, keep_days
    from irregulars.sinks.connection import connected
    from irregulars.sinks.migrate import keep, migrate

    target = database_settings(settings, wait_s)
    with connected(target, is_creating=True) as client:
        applied = migrate(client)
        changed = keep(client, keep_days(settings))
    done = [f"{counted(len(applied), 'migration')} applied"] if applied else []
    done += [f"retention changed of {', '.join(changed)}"] if changed else []
    print(f"{target.database}: {'; '.join(done) or 'up to date'}")


def _delete_job(settings: Settings, wait_s: float, job: str, *, is_writing: bool, json: bool) -> None:
    from irregulars.infra.wiring import database_settings
    from irregulars.sinks.connection import connected
    from irregulars.sinks.migrate import delete_job, rows_of_job

    # Without --write the connection only reads, so that nothing can be deleted by mistake.
    target = database_settings(settings, wait_s, is_reading=not is_writing)
    with connected(target) as client:
        found = delete_job(client, job) if is_writing else rows_of_job(client, job)
    done = "deleted" if is_writing else "nothing is deleted; --write deletes them, as clickhouse_user"
    lines = [f"{count:>15,}  {table}" for table, count in found.items()]
    lines.append(f"{sum(found.values()):>15,}  rows of {job} in {target.database}: {done}")
    print_result(json, {"job": job, "is_deleted": is_writing, "rows": found}, lines)


def _ask(settings: Settings, wait_s: float, question: str, pairs: Sequence[str], is_writing: bool) -> Answer:
    from irregulars.infra.wiring import database_settings
    from irregulars.sinks.connection import connected
    from irregulars.sinks.investigations import bind, find_investigation, run, run_sql

    for text in pairs:
        if not text.partition("=")[0].isidentifier() or "=" not in text:
            raise InputError(f"parameter must be key=value; got {text!r}")
    values = {name: value for name, _, value in (text.partition("=") for text in pairs)}
    is_name = question.isidentifier()
    if is_name:
        bind(find_investigation(question), values)  # a wrong name or parameter shows before we ask for a connection
    target = database_settings(settings, wait_s, is_reading=not is_writing)
    with connected(target) as client:
        return run(client, question, values) if is_name else run_sql(client, question, values)


def _list(json: bool) -> None:
    from irregulars.sinks.investigations import THEMES, shipped_investigations

    shipped = sorted(shipped_investigations().values(), key=lambda one: THEMES.index(one.theme))
    if json:
        names = ("name", "title", "theme", "description", "empty")
        print_json([{name: getattr(one, name) for name in names} | {"parameters": list(map(asdict, one.parameters))}
                    for one in shipped])  # fmt: skip
        return
    console = open_console()
    for theme, questions in groupby(shipped, lambda one: one.theme):
        console.print(f"\n[bold]{theme.upper()}[/bold]")
        for one in questions:
            stop = "" if one.title.endswith("?") else "."
            console.print(f"\n[bold]{one.name}[/bold]: {one.title}{stop} {one.description}")
            for p in one.parameters:
                default = "" if p.is_required or p.default in ("''", "NULL", "NEWEST") else f" = {p.default}"
                name = f"    {p.name}{default}  "
                console.print(broken(f"{name}{p.description}", sys.stdout, " " * len(name)), markup=False)


# ``fitting``: a table if the width suffices and no value has several lines; else vertical if the height does, or
# there are one or two rows; else a table with long texts cut, and of the first columns
Shape = Literal["fitting", "table", "vertical"]

NULL: Final = "-"
_GAP: Final = "  "
_UNITS: Final = ("seconds", "milliseconds", "microseconds")
_FEW: Final = 2  # rows that are shown as records however few lines a terminal has

# Letters of a text that are shown in a table which is too wide for the terminal; `…` stands for the others
_LONGEST: Final = 32
_LONG_NUMBER: Final = 14  # letters of a number from which on it is shown with 7 digits

_NARROWEST: Final = 20  # least letters of a value on a line, however long the names of the columns are


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
    """Yield the lines of an answer, each with whether it is a heading; without a `width` it is as wide as it must."""
    head = [printable(name) for name in answer.columns]
    cells = list(zip(*(_texts(column) for column in zip(*answer.rows, strict=True)), strict=True))
    widths = [max(map(_width, [name, *(row[at] for row in cells)])) for at, name in enumerate(head)]
    is_wide = width is not None and sum(widths) + len(_GAP) * (len(widths) - 1) > width
    has_lines = any("\n" in cell for row in cells for cell in row)
    kinds = [{type(value) for value in column if value is not None} for column in zip(*answer.rows, strict=True)]
    rightward = [bool(own) and all(issubclass(one, int | float | Decimal) and one is not bool for one in own)
                 for own in kinds]  # fmt: skip
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
    """Shorten long texts, show the columns for which there is room, and name those left out."""
    short = [[_shortened(cell, min(_LONGEST, width)) for cell in row] for row in cells]
    widths = [max(map(_width, column)) for column in zip(head, *short, strict=True)]
    ends = accumulate(one + len(_GAP) for one in widths)
    # One column at least, however wide: a table without any would show nothing.
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
    # Less than `most`, since the … takes a cell as well.
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
            lines = cell.split("\n")
            if room is not None:  # between words where that is possible
                lines = [part for line in lines for part in textwrap.wrap(line, room, break_on_hyphens=False) or [""]]
            first, *others = lines
            yield f"{name}{' ' * (indent - _width(name))}{first}", False
            yield from ((" " * indent + line, False) for line in others)


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
    if isinstance(value, float) and len(str(value)) > _LONG_NUMBER:  # a Float32 of 1.53 comes as 1.5299999713897705
        return f"{value:.7g}"
    return printable_lines(value)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def plain_value(value: Any) -> Any:
    """Return a value as JSON has it: times in ISO 8601 with their zone, NaN as null."""
    if isinstance(value, datetime):
        # A time without a zone is UTC, as in all our columns.
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
