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
from irregulars.infra.commands.options import ClickHouseUrl, Database, Json, open_console, print_json, settings_of

if TYPE_CHECKING:
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
    is_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait for the database.")] = 10,
    clickhouse_url: ClickHouseUrl = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Ask the database: any SQL, or one of the investigations that ship.

    Examples: irregulars sql --list;  irregulars sql blamed job=llama-7b;
    irregulars sql "SELECT count() FROM verdicts FINAL WHERE kind = {kind:String}" -p kind=slow_nic --json
    """
    if is_listing:
        _list(json)
        return
    if question is None:
        raise InputError("question must be SQL or the name of an investigation; got none. See: irregulars sql --list")
    from irregulars.infra.configuration.wiring import database_settings

    settings = settings_of(context, clickhouse_url=clickhouse_url, clickhouse_database=database)
    answer = _ask(database_settings(settings, wait_s), question, _pairs([*(values or []), *(parameters or [])]))
    if json:
        print_json([dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows])
    elif is_csv:
        _write_csv(answer)
    else:
        show_answer(answer)


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
    writer.writerows([_plain(value) for value in row] for row in answer.rows)


def show_answer(answer: Answer) -> None:
    """Print an answer as a table for people."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in answer.columns:
        table.add_column(column, overflow="fold")
    for row in answer.rows:
        table.add_row(*(Text("" if value is None else str(_plain(value))) for value in row))
    open_console().print(table)
    if not answer.rows:
        print("no rows")
