"""``irregulars alerts``: follow the alerts."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from itertools import islice
from typing import Annotated

import typer

from irregulars.infra.commands.options import Json, asks, kafka_of, settings_of
from irregulars.printing import broken, json_text, printable, say

_HANGING = " " * len("2026-11-22 20:37:14Z  ")  # below what an alert says, behind its time


@asks("kafka")
def alerts(
    context: typer.Context,
    is_from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the oldest alert kept.")] = False,
    is_ending: Annotated[bool, typer.Option("--end", help="Stop at the newest instead of waiting for more.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many alerts.")] = None,
    group: Annotated[str, typer.Option(help="Consumer group of the workers.")] = "irregulars",
    json: Json = False,
) -> None:
    """Follow the alerts: one line each, for people; with --json one object per line, for scripts.

    While it waits it looks now and then why none comes, and says that once on standard error.

    Example: irregulars alerts --from-start --end --json | jq .summary
    """
    from irregulars.errors import RecordError
    from irregulars.infra.doctor.diagnosis import watch
    from irregulars.kafka.alert_feed import follow_alerts

    settings = settings_of(context)
    feed = follow_alerts(*kafka_of(settings), is_from_start=is_from_start, is_ending=is_ending)
    # With --end nothing is waited for, so there is no silence to explain.
    with nullcontext() if is_ending else watch(settings, group, say):
        for message in islice(feed, limit):
            try:
                line = shown_alert(message, json=json)
                print(line if json else broken(line, sys.stdout, _HANGING), flush=True)
            except RecordError as error:
                # One message that can't be read must not end the feed.
                say(f"alert skipped: {error}")


def shown_alert(message: bytes, *, json: bool) -> str:
    """Return the line that shows an alert, without signs that a terminal would obey; raises `RecordError`."""
    from irregulars.sinks.alerts import alert_line, decode_alert

    return json_text(decode_alert(message)) if json else printable(alert_line(message))
