"""``irregulars worker``: the process that judges."""

from __future__ import annotations

from contextlib import closing, nullcontext
from typing import Annotated

import typer

from irregulars.infra.commands.options import Bootstrap, ClickHouseUrl, Database, TopicPrefix, settings_of


def worker(
    context: typer.Context,
    group: Annotated[str, typer.Option(help="Consumer group; workers of one group share the work.")] = "irregulars",
    is_storing: Annotated[
        bool, typer.Option("--store/--no-store", help="Store results in ClickHouse; without: Kafka alone has them.")
    ] = True,
    metrics_listen: Annotated[
        str | None, typer.Option(help="host:port of /metrics, /healthz and /readyz; port 0: any free one; or off.")
    ] = None,
    web_port: Annotated[int | None, typer.Option(help="Port of Faust's own pages on 127.0.0.1; 0: none.")] = None,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    clickhouse_url: ClickHouseUrl = None,
    database: Database = None,
) -> None:
    """Read what the ranks send, judge it, publish verdicts and alerts, and store the evidence.

    Start as many as you like: they share the partitions, and take over from one that dies.

    Example: irregulars worker --bootstrap kafka-0:9092 --clickhouse-url http://clickhouse:8123
    """
    from irregulars.infra.configuration.wiring import database_settings, keep_days, worker_settings
    from irregulars.sinks.clickhouse import ClickHouseSink
    from irregulars.streams.worker.running import run_worker

    settings = settings_of(
        context,
        kafka_bootstrap=bootstrap,
        topic_prefix=topic_prefix,
        clickhouse_url=clickhouse_url,
        clickhouse_database=database,
        metrics_listen=metrics_listen,
        web_port=web_port,
    )
    own = worker_settings(settings, group)  # first: a wrong plug-in shows before a broker or database is waited for
    # It asks once each time that it is opened: how long a database that is away is waited for, the worker decides.
    target = database_settings(settings, wait_s=0.0)
    sink = ClickHouseSink(target, keep_days=keep_days(settings)) if is_storing else None
    with closing(sink) if sink is not None else nullcontext():
        raise typer.Exit(run_worker(own, sink))
