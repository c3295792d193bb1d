"""``irregulars notify``: the process that delivers notices of alerts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars import stopping
from irregulars.errors import InputError
from irregulars.infra.commands.options import Bootstrap, TopicPrefix, settings_of, start_log
from irregulars.printing import counted, printable

if TYPE_CHECKING:
    from irregulars.infra.configuration.settings import Settings
    from irregulars.sinks.notices.settings import NotifySettings


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
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
) -> None:
    """Notify people of alerts over channels (Alertmanager, PagerDuty, Slack, …), until Ctrl-C or SIGTERM.

    Its records are on the topic notices: after a restart it goes on from there. A second process stands by.

    Example: irregulars notify notify.toml --dry-run
    """
    from irregulars.sinks.notices.process import Notifier, preview, send_test
    from irregulars.sinks.notices.settings import OWN, open_channel, read_notify_file, rules_of

    entries = read_notify_file(file)
    settings = settings_of(context, file=file, others=OWN, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
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
    from irregulars.infra.configuration.wiring import kafka_security
    from irregulars.sinks.notices.policy import Rules
    from irregulars.sinks.notices.settings import NotifySettings

    return NotifySettings(
        bootstrap=settings.kafka_bootstrap,
        topics=settings.topics(),
        security=kafka_security(settings, is_asking=False),
        give_up_s=settings.notify_give_up_s,
        listen=settings.notify_listen,
        session_s=settings.session_s,
        stop_s=settings.stop_s,
        rules=Rules(
            hold_s=settings.notify_hold_s,
            least_gpu_hours=settings.notify_least_gpu_hours,
            jobs=settings.notify_jobs,
            console_url=settings.console_url,
            runbook_url=settings.runbook_url,
        ),
    )
