"""``irregulars notify``: the process that tells people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars import stopping
from irregulars.infra.commands.options import Bootstrap, TopicPrefix, settings_of
from irregulars.printing import counted

if TYPE_CHECKING:
    from irregulars.infra.configuration.notify_settings import ChannelEntry
    from irregulars.infra.configuration.settings import Settings
    from irregulars.infra.notifying.process import NotifySettings
    from irregulars.sinks.notices.notice import Channel


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
    """Tell people of alerts over channels (Alertmanager, PagerDuty, Slack, …), until Ctrl-C or SIGTERM.

    What was told stands on the topic notices: after a restart it goes on there. A second process stands by.

    Example: irregulars notify notify.toml --dry-run
    """
    from irregulars.infra.configuration.notify_settings import OWN, read_notify_file

    entries = read_notify_file(file)
    settings = settings_of(context, file=file, others=OWN, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
    _start_log(settings)
    channels = _open(entries, settings)
    try:
        if is_checking:
            print(f"{file}: {counted(len(channels), 'channel')}; nothing is wrong with it")
        elif tested is not None:
            _test(channels, tested)
        elif is_dry:
            _preview(entries, channels, settings)
        else:
            _run(entries, channels, settings)
    finally:
        for channel in channels:
            channel.close()


def _start_log(settings: Settings) -> None:
    import logging.config

    from irregulars.streams.telemetry.log_format import logging_config

    levels = {"warning": "warn", "critical": "crit"}
    logging.config.dictConfig(logging_config(levels.get(settings.log_level, settings.log_level)))


def _open(entries: tuple[ChannelEntry, ...], settings: Settings) -> list[Channel]:
    from irregulars.infra.configuration.notify_channels import open_channel

    return [open_channel(entry, settings) for entry in entries]


def _run(entries: tuple[ChannelEntry, ...], channels: list[Channel], settings: Settings) -> None:
    from irregulars.infra.configuration.notify_channels import rules_of
    from irregulars.infra.notifying.process import Notifier

    rules = {one.name: rules_of(entry, settings, one) for entry, one in zip(entries, channels, strict=True)}
    notifier = Notifier(_process_settings(settings), channels, rules)
    with stopping.on_stop(notifier.stop):
        notifier.run()


def _preview(entries: tuple[ChannelEntry, ...], channels: list[Channel], settings: Settings) -> None:
    from irregulars.infra.configuration.notify_channels import rules_of
    from irregulars.infra.notifying.preview import preview
    from irregulars.printing import printable

    rules = {one.name: rules_of(entry, settings, one) for entry, one in zip(entries, channels, strict=True)}
    count = 0
    for line in preview(_process_settings(settings), rules):
        count += 1
        print(printable(line))
    if not count:
        print("nothing would be told now")


def _test(channels: list[Channel], name: str) -> None:
    from irregulars.errors import InputError
    from irregulars.infra.notifying.preview import send_test

    found = next((one for one in channels if one.name == name), None)
    if found is None:
        raise InputError(f"channel must be one of {', '.join(one.name for one in channels)}; got {name!r}")
    incident = send_test(found)
    print(f"{name} took the test incident {incident}, and its end")


def _process_settings(settings: Settings) -> NotifySettings:
    from irregulars.infra.configuration.wiring import kafka_security
    from irregulars.infra.notifying.process import NotifySettings

    return NotifySettings(
        bootstrap=settings.kafka_bootstrap,
        topics=settings.topics(),
        security=kafka_security(settings, is_asking=False),
        give_up_s=settings.notify_give_up_s,
        listen=settings.notify_listen,
        session_s=settings.session_s,
        stop_s=settings.stop_s,
    )
