"""``irregulars up``: everything on one machine, until Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from irregulars import stopping
from irregulars.infra.commands.options import Json, open_console, plain, print_json, program, settings_of

if TYPE_CHECKING:
    from irregulars.infra.runs.local_services import LocalServices

_LOOK_S = 0.5


def up(
    context: typer.Context,
    is_kept: Annotated[
        bool, typer.Option("--keep-data", help="Keep the database in data_dir for the next time.")
    ] = False,
    json: Json = False,
) -> None:
    """Start a broker, a database and a worker on this machine, print their addresses, run until Ctrl-C.

    For first steps, not for production: the broker keeps its topics in memory.

    Example: irregulars up --keep-data
    """
    from irregulars.infra.doctor.diagnosis import watch
    from irregulars.infra.runs.local_services import GROUP, LocalServices

    console = open_console(is_error=True)
    services = LocalServices(
        settings_of(context), is_kept=is_kept, on_step=lambda step: console.print(step, style="dim")
    )
    try:
        with stopping.held(), services:
            if json:
                print_json(addresses(services))
            else:
                show_addresses(services)
            with watch(services.settings, GROUP, lambda line: console.print(plain(line), style="bold red")):
                while True:
                    services.require_running()
                    stopping.pause(_LOOK_S)
    except stopping.StopAsked:
        console.print("stopped", style="dim")


def addresses(services: LocalServices) -> dict[str, str]:
    """Where everything is; the password stands in the file ``config`` only."""
    settings = services.settings
    return {
        "kafka": settings.kafka_bootstrap,
        "clickhouse": settings.clickhouse_url,
        "clickhouse_user": settings.clickhouse_user,
        "clickhouse_database": settings.clickhouse_database,
        "metrics": f"http://{settings.metrics_listen}/metrics",
        "worker_log": str(services.worker_log),
        "config": str(services.config_file),
    }


def show_addresses(services: LocalServices) -> None:
    """Print all addresses, and commands that use them."""
    found = addresses(services)
    print(
        f"""
Kafka       {found["kafka"]}   in memory: what it holds is gone when this ends
ClickHouse  {found["clickhouse"]}   user {found["clickhouse_user"]}, database {found["clickhouse_database"]}
worker      {found["metrics"]}   log {found["worker_log"]}

In another terminal:
  export IRREGULARS_CONFIG={found["config"]}
  {program()} alerts
  {program()} replay DIR --speed 10
  {program()} show
  {program()} sql blamed

Ctrl-C stops everything.""",
        flush=True,
    )
