"""``irregulars agent``: the process on a GPU node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from irregulars.infra.commands.options import Bootstrap, TopicPrefix, settings_of, start_log
from irregulars.printing import counted


def agent(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The agent's TOML file; infra/docs/agent.md tells all.")
    ],
    is_checking: Annotated[bool, typer.Option("--check", help="Read the file, and start nothing.")] = False,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
) -> None:
    """Publish what a GPU node's sources give, and sample its GPUs and NICs, until SIGTERM.

    While Kafka is away messages wait on disk, within a bound, and then go out in order.

    Example: irregulars agent infra/node/agent.toml
    """
    from irregulars.infra.configuration.agent_settings import ARRAYS, TABLES, read_agent_file
    from irregulars.infra.configuration.agent_sources import check_source

    tables = read_agent_file(file)
    own = (*TABLES, *ARRAYS)
    settings = settings_of(context, file=file, others=own, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
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
