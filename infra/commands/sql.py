"""``irregulars sql``: ask the database, in SQL or with a question that ships."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irregulars.errors import InputError
from irregulars.infra.commands.options import (
    ClickHouseUrl,
    Database,
    Json,
    open_console,
    plain,
    print_json,
    settings_of,
)
from irregulars.printing import printable, printable_lines

if TYPE_CHECKING:
    from irregulars.infra.configuration.settings import Settings
    from irregulars.sinks.connection import DatabaseSettings
    from irregulars.sinks.investigations import Answer


def sql(
    context: typer.Context,
    question: Annotated[
        str | None, typer.Argument(help="SQL, or the name of an investigation that ships (see --list).")
    ] = None,
    values: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Parameters.")] = None,
    parameters: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", metavar="KEY=VALUE", help="The same, as a flag.")
    ] = None,
    is_listing: Annotated[bool, typer.Option("--list", help="List the investigations and their parameters.")] = False,
    is_creating: Annotated[
        bool, typer.Option("--create-tables", help="Make missing tables as clickhouse_user, and set what they keep.")
    ] = False,
    is_printing: Annotated[
        bool, typer.Option("--print-access", help="Print the SQL that makes the users reader, writer and admin.")
    ] = False,
    is_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait for the database.")] = 10,
    clickhouse_url: ClickHouseUrl = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Ask the database: any SQL that only reads, or one of the investigations that ship.

    Examples: irregulars sql --list;  irregulars sql blamed job=llama-7b;
    irregulars sql "SELECT count() FROM verdicts FINAL WHERE kind = {kind:String}" -p kind=slow_nic --json
    """
    if is_listing:
        _list(json)
        return
    settings = settings_of(context, clickhouse_url=clickhouse_url, clickhouse_database=database)
    if is_printing:
        _print_access(settings.clickhouse_database)
        return
    if is_creating:
        _create_tables(settings, wait_s)
        return
    if question is None:
        raise InputError("question must be SQL or the name of an investigation; got none. See: irregulars sql --list")
    from irregulars.infra.configuration.wiring import database_settings

    target = database_settings(settings, wait_s, is_reading=True)
    answer = _ask(target, question, _pairs([*(values or []), *(parameters or [])]))
    if json:
        print_json([dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows])
    elif is_csv:
        _write_csv(answer)
    else:
        show_answer(answer)


def _print_access(database: str) -> None:
    from irregulars.sinks.access import access_sql

    print(access_sql(database), end="")


def _create_tables(settings: Settings, wait_s: float) -> None:
    from irregulars.infra.configuration.wiring import database_settings, keep_days
    from irregulars.sinks.connection import connect, translated
    from irregulars.sinks.migrate import migrate
    from irregulars.sinks.retention import keep

    target = database_settings(settings, wait_s)
    client = connect(target, is_creating=True)
    try:
        with translated(target):
            applied = migrate(client)
            changed = keep(client, keep_days(settings))
    finally:
        client.close()
    done = [f"{len(applied)} migrations applied"] if applied else []
    done += [f"retention changed of {', '.join(changed)}"] if changed else []
    print(f"{target.database}: {'; '.join(done) or 'up to date'}")


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    for text in texts:
        if not text.partition("=")[0].isidentifier() or "=" not in text:
            raise InputError(f"parameter must be key=value; got {text!r}")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _ask(target: DatabaseSettings, question: str, values: dict[str, str]) -> Answer:
    from irregulars.sinks.connection import connect, translated
    from irregulars.sinks.investigations import Answer, bind, find_investigation, run

    is_name = question.isidentifier()
    if is_name:
        bind(find_investigation(question), values)  # a wrong name or parameter shows before we ask for a connection
    client = connect(target)
    try:
        with translated(target):
            if is_name:
                return run(client, question, values)
            result = client.query(question, parameters=values)
            return Answer(tuple(result.column_names), tuple(tuple(row) for row in result.result_rows))
    finally:
        client.close()


def _list(json: bool) -> None:
    from irregulars.sinks.investigations import shipped_investigations

    shipped = shipped_investigations().values()
    if json:
        print_json([{"name": one.name, "title": one.title, "description": one.description,
                     "parameters": [{"name": p.name, "type": p.type, "default": p.default,
                                     "description": p.description} for p in one.parameters]}
                    for one in shipped])  # fmt: skip
        return
    console = open_console()
    for one in shipped:
        console.print(f"[bold]{one.name}[/bold]: {one.title}. {one.description}")
        for p in one.parameters:
            default = "" if p.is_required or p.default in ("''", "NULL") else f" = {p.default}"
            console.print(f"    {p.name}{default}  {p.description}", markup=False)


def _plain(value: Any) -> Any:
    """As JSON has it: times in ISO 8601 with their zone, NaN as null."""
    if isinstance(value, datetime):
        return value.isoformat() + ("Z" if value.tzinfo is None else "")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | str | None) else str(value)


def _write_csv(answer: Answer) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(answer.columns)
    is_shown = sys.stdout.isatty()  # a file gets the values as they are
    for row in map(_csv_row, answer.rows):
        writer.writerow([printable(one) if is_shown and isinstance(one, str) else one for one in row])


def _csv_row(row: Sequence[Any]) -> list[Any]:
    return [_plain(value) for value in row]


def show_answer(answer: Answer) -> None:
    """Print an answer as a table for people."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in answer.columns:
        table.add_column(plain(column), overflow="fold")
    for row in answer.rows:
        table.add_row(*(Text("" if value is None else printable_lines(_plain(value))) for value in row))
    open_console().print(table)
    if not answer.rows:
        print("no rows")
