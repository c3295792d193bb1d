"""``irregulars sql``: ask the database, in SQL or with a question that ships."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars.errors import InputError
from irregulars.infra.commands.answers import Shape, plain_value, show_answer, write_csv
from irregulars.infra.commands.options import ClickHouseUrl, Database, Json, open_console, print_json, settings_of
from irregulars.printing import broken, counted, printable

if TYPE_CHECKING:
    from rich.console import Console

    from irregulars.infra.configuration.settings import Settings
    from irregulars.sinks.investigations import Answer, Investigation


def _question_names(incomplete: str) -> list[tuple[str, str]]:
    """Complete names of questions in a shell."""
    from irregulars.sinks.investigations import shipped_investigations

    shipped = shipped_investigations().values()
    return [(one.name, one.title) for one in shipped if one.name.startswith(incomplete)]


def sql(
    context: typer.Context,
    question: Annotated[
        str | None,
        typer.Argument(
            help="SQL, or the name of a question that ships (see --list).", autocompletion=_question_names
        ),
    ] = None,
    values: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Parameters.")] = None,
    parameters: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", metavar="KEY=VALUE", help="The same, as a flag.")
    ] = None,
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
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait for the database.")] = 10,
    clickhouse_url: ClickHouseUrl = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Ask the database: any SQL that only reads, or one of the questions that ship.

    What is too wide for the terminal is printed one record after the other, or as a table that says what it leaves
    out.

    Examples: irregulars sql --list;  irregulars sql open_now;  irregulars sql blamed job=llama-7b;
    irregulars sql "SELECT count() FROM verdicts FINAL WHERE kind = {kind:String}" -p kind=slow_nic --json
    """
    if is_listing:
        _list(json)
        return
    settings = settings_of(context, clickhouse_url=clickhouse_url, clickhouse_database=database)
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
    shape = _shape(json, is_csv, is_vertical, is_table)
    answer = _ask(settings, wait_s, question, _pairs([*(values or []), *(parameters or [])]), is_writing)
    if json:
        print_json([dict(zip(answer.columns, map(plain_value, row), strict=True)) for row in answer.rows])
    elif is_csv:
        write_csv(answer)
    else:
        if answer.chosen:
            chosen = " ".join(f"{name}={value}" for name, value in answer.chosen.items())
            open_console(is_error=True).print(f"{chosen} (the newest)", style="dim", markup=False)
        show_answer(answer, shape)
    sys.stdout.flush()
    _print_cut(answer)  # last, where it is still to be seen


def _shape(json: bool, is_csv: bool, is_vertical: bool, is_table: bool) -> Shape:
    flags = {"--json": json, "--csv": is_csv, "--vertical": is_vertical, "--table": is_table}
    given = [flag for flag, is_given in flags.items() if is_given]
    if len(given) > 1:
        raise InputError(f"form must be one of {', '.join(flags)}; got {' '.join(given)}")
    return "vertical" if is_vertical else "table" if is_table else "fitting"


def _print_cut(answer: Answer) -> None:
    """Say on standard error, for scripts as well, that there are more rows."""
    if answer.cut_at is not None:
        text = f"irregulars: the first {counted(answer.cut_at, 'row')}, there are more: limit=… shows them"
        open_console(is_error=True).print(text, style="dim", markup=False)


def _create_tables(settings: Settings, wait_s: float) -> None:
    from irregulars.infra.configuration.wiring import database_settings, keep_days
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
    from irregulars.infra.configuration.wiring import database_settings
    from irregulars.sinks.connection import connected
    from irregulars.sinks.migrate import delete_job, rows_of_job

    target = database_settings(settings, wait_s, is_reading=not is_writing)
    with connected(target) as client:
        found = delete_job(client, job) if is_writing else rows_of_job(client, job)
    if json:
        print_json({"job": job, "is_deleted": is_writing, "rows": found})
        return
    for table, count in found.items():
        print(f"{count:>15,}  {table}")
    done = "deleted" if is_writing else "nothing is deleted; --write deletes them, as clickhouse_user"
    print(printable(f"{sum(found.values()):>15,}  rows of {job} in {target.database}: {done}"))


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    for text in texts:
        if not text.partition("=")[0].isidentifier() or "=" not in text:
            raise InputError(f"parameter must be key=value; got {text!r}")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _ask(settings: Settings, wait_s: float, question: str, values: dict[str, str], is_writing: bool) -> Answer:
    from irregulars.infra.configuration.wiring import database_settings
    from irregulars.sinks.connection import connected
    from irregulars.sinks.investigations import bind, find_investigation, run, run_sql

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
        print_json([{"name": one.name, "title": one.title, "theme": one.theme, "description": one.description,
                     "empty": one.empty, "parameters": [{"name": p.name, "type": p.type, "default": p.default,
                                                         "description": p.description} for p in one.parameters]}
                    for one in shipped])  # fmt: skip
        return
    console = open_console()
    for theme, questions in groupby(shipped, lambda one: one.theme):
        console.print(f"\n[bold]{theme.upper()}[/bold]")
        for one in questions:
            _list_one(console, one)


def _list_one(console: Console, one: Investigation) -> None:
    stop = "" if one.title.endswith("?") else "."
    console.print(f"\n[bold]{one.name}[/bold]: {one.title}{stop} {one.description}")
    for p in one.parameters:
        default = "" if p.is_required or p.default in ("''", "NULL", "NEWEST") else f" = {p.default}"
        name = f"    {p.name}{default}  "
        console.print(broken(f"{name}{p.description}", sys.stdout, " " * len(name)), markup=False)
