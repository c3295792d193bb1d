"""``irregulars node-check``: a plug-in of node-problem-detector."""

from __future__ import annotations

import os
import socket
import time
from typing import Annotated

import typer

from irregulars.infra.commands.options import Bootstrap, TopicPrefix, kafka_of, settings_of


def node_check(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="The host, as verdicts name it; default: NODE_NAME, else the machine's name.")
    ] = None,
    within_s: Annotated[float, typer.Option(min=0.1, max=60.0, help="Seconds that it may take.")] = 5.0,
    days: Annotated[float, typer.Option(min=0.01, max=36_500, help="Alerts of so many days are read.")] = 7.0,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
) -> None:
    """Check whether an open verdict accuses this host, in the form that node-problem-detector reads.

    One line of at most 80 characters. Status 0: none does; 1: one is sure enough to cordon it; 2: nobody knows.

    Example: irregulars node-check --host node-3
    """
    from irregulars.errors import IrregularsError
    from irregulars.sinks.notices.actions.node_check import UNKNOWN, check_host, recent_verdicts, short_line

    name = host or os.environ.get("NODE_NAME") or socket.gethostname()
    try:
        settings = settings_of(context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
        since_ns = time.time_ns() - int(days * 86_400 * 10**9)
        found = recent_verdicts(*kafka_of(settings), since_ns, within_s)
        status, line = check_host(found, name)
    except IrregularsError as error:
        status, line = UNKNOWN, short_line(f"not known: {error}")
    except Exception as error:  # a traceback ends with status 1, by which the monitor would set its condition
        status, line = UNKNOWN, short_line(f"not known: {type(error).__name__}: {error}")
    print(line)
    raise typer.Exit(status)
