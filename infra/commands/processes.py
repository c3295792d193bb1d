"""Processes that run until they are stopped: ``irregulars worker``, ``agent`` and ``notify``."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars import stopping
from irregulars.errors import InputError
from irregulars.infra.commands.options import asks, settings_of, start_log
from irregulars.printing import counted, printable

if TYPE_CHECKING:
    from irregulars.infra.settings import Settings
    from irregulars.sinks.notices.settings import NotifySettings


@asks("kafka", "database")
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
) -> None:
    """Read what the ranks send, judge it, publish verdicts and alerts, and store the evidence.

    Start as many as you like: they share the partitions, and take over from one that dies.

    Example: irregulars worker --bootstrap kafka-0:9092 --clickhouse-url http://clickhouse:8123
    """
    from irregulars.infra.wiring import database_settings, keep_days, worker_settings
    from irregulars.sinks.clickhouse import ClickHouseSink
    from irregulars.streams.worker.running import run_worker

    settings = settings_of(context, metrics_listen=metrics_listen, web_port=web_port)
    own = worker_settings(settings, group)  # first: a wrong plug-in shows before a broker or database is waited for
    # It asks once each time that it is opened: how long a database that is away is waited for, the worker decides.
    target = database_settings(settings, wait_s=0.0)
    sink = ClickHouseSink(target, keep_days=keep_days(settings)) if is_storing else None
    with closing(sink) if sink is not None else nullcontext():
        raise typer.Exit(run_worker(own, sink))


@asks("kafka")
def agent(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The agent's TOML file; infra/docs/agent.md tells all.")
    ],
    is_checking: Annotated[bool, typer.Option("--check", help="Read the file, and start nothing.")] = False,
) -> None:
    """Publish what a GPU node's sources give, and sample its GPUs and NICs, until SIGTERM.

    While Kafka is away messages wait on disk, within a bound, and then go out in order.

    Example: irregulars agent infra/node/agent.toml
    """
    from irregulars.infra.agent_settings import ARRAYS, TABLES, check_source, read_agent_file

    tables = read_agent_file(file)
    own = (*TABLES, *ARRAYS)
    settings = settings_of(context, file=file, others=own)
    if is_checking:
        for source in tables.sources:
            check_source(source)
        print(
            f"{file}: {counted(len(tables.sources), 'source')}, {counted(len(tables.ranks), 'rank')}; "
            "nothing is wrong with it"
        )
        return
    start_log(settings)
    from irregulars.infra.runs.node_agent import run_node_agent

    run_node_agent(settings, tables)


@asks("kafka")
def notify(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="The channels (TOML); infra/docs/notifying.md tells all.")
    ] = Path("notify.toml"),
    is_checking: Annotated[bool, typer.Option("--check", help="Read the file, and start nothing.")] = False,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent now; send nothing.")] = False,
    tested: Annotated[
        str | None, typer.Option("--test", metavar="CHANNEL", help="Send a test notice and its end, and stop.")
    ] = None,
) -> None:
    """Notify people of alerts over channels (Alertmanager, PagerDuty, Slack, …), until Ctrl-C or SIGTERM.

    Its records are on the topic notices: after a restart it goes on from there. A second process stands by.

    Example: irregulars notify notify.toml --dry-run
    """
    from irregulars.sinks.notices.process import Notifier, preview, send_test
    from irregulars.sinks.notices.settings import OWN, open_channel, read_notify_file, rules_of

    entries = read_notify_file(file)
    settings = settings_of(context, file=file, others=OWN)
    start_log(settings)
    own = notify_settings(settings)
    channels = {entry.table.name: open_channel(entry, own) for entry in entries}
    rules = {entry.table.name: rules_of(entry, own, channels[entry.table.name]) for entry in entries}
    try:
        if is_checking:
            print(f"{file}: {counted(len(channels), 'channel')}; nothing is wrong with it")
        elif tested is not None:
            if tested not in channels:
                raise InputError(f"channel must be one of {', '.join(channels)}; got {tested!r}")
            print(f"{tested} took the test incident {send_test(channels[tested])}, and its end")
        elif is_dry:
            lines = [printable(line) for line in preview(own, rules)]
            print("\n".join(lines) or "nothing would be told now")
        else:
            notifier = Notifier(own, list(channels.values()), rules)
            with stopping.on_stop(notifier.stop):
                notifier.run()
    finally:
        for channel in channels.values():
            channel.close()


def notify_settings(settings: Settings) -> NotifySettings:
    """Return the part of the settings that the process needs."""
    from irregulars.infra.wiring import kafka_security, runbook_url
    from irregulars.sinks.notices.policy import Rules
    from irregulars.sinks.notices.settings import NotifySettings

    rules = Rules(
        hold_s=settings.notify_hold_s, least_gpu_hours=settings.notify_least_gpu_hours, jobs=settings.notify_jobs,
        console_url=settings.console_url, runbook_url=runbook_url(settings),
    )  # fmt: skip
    return NotifySettings(
        bootstrap=settings.kafka_bootstrap, topics=settings.topics(),
        security=kafka_security(settings, is_asking=False), give_up_s=settings.notify_give_up_s,
        listen=settings.notify_listen, session_s=settings.session_s, stop_s=settings.stop_s, rules=rules,
    )  # fmt: skip
