"""``irregulars act``: consumers of the topic ``actions``; ``node-check``: a plug-in of node-problem-detector."""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars.infra.commands.options import asks, kafka_of, settings_of
from irregulars.printing import printable

if TYPE_CHECKING:
    from irregulars.sinks.notices.actions.actor import Nodes
    from irregulars.sinks.notices.actions.feed import ActionFeed


act = typer.Typer(
    help="Cordon the nodes that verdicts accuse, and give them back; without --do-it no node is touched."
    "\n\n"
    "Example: irregulars act slurm --do-it",
    no_args_is_help=True,
)

DoIt = Annotated[bool, typer.Option("--do-it", help="Act. Without it: only say what would be done.")]
MostNodes = Annotated[int, typer.Option(min=0, help="Nodes that may be cordoned by us at the same time.")]
LeastProbability = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Below this probability a node is left to people.")
]
End = Annotated[bool, typer.Option("--end", help="Act once on what stands there now, and end.")]
Group = Annotated[
    str | None,
    typer.Option(help="Consumer group, of whose members one acts; default: prefix and act-slurm, for example."),
]


@act.command()
@asks("kafka")
def slurm(
    context: typer.Context,
    is_acting: DoIt = False,
    most_nodes: MostNodes = 1,
    least_probability: LeastProbability = 0.9,
    is_ending: End = False,
    folder: Annotated[
        Path | None, typer.Option("--slurm-bin", metavar="DIR", help="Where scontrol and sinfo are; default: PATH.")
    ] = None,
    group: Group = None,
) -> None:
    """Drain the node of an accused device, with a reason, and take the drain off when the proposal is withdrawn.

    Jobs on the node go on. A node that carries somebody else's reason is never touched.

    Example: irregulars act slurm --do-it --most-nodes 2
    """
    from irregulars.sinks.notices.actions.slurm import SlurmNodes

    feed = _open(context, group, "slurm", is_acting)
    _run(feed, SlurmNodes(folder), most_nodes, least_probability, is_acting, is_ending)


@act.command()
@asks("kafka")
def kubernetes(
    context: typer.Context,
    is_acting: DoIt = False,
    most_nodes: MostNodes = 1,
    least_probability: LeastProbability = 0.9,
    is_ending: End = False,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="The API server; default: that of the pod's service account.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Bearer token, read anew for each call.")
    ] = None,
    ca_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate authority of the server.")] = None,
    group: Group = None,
) -> None:
    """Cordon the node of an accused device, show it as a condition, and undo both when the proposal is withdrawn.

    Pods on the node go on. A node that somebody else cordoned stays cordoned. The rights that it needs are in
    infra/kit/kubernetes/components/actor.

    Example: irregulars act kubernetes --do-it
    """
    from irregulars.sinks.notices.actions.kubernetes import KubernetesApi, KubernetesNodes, api_access

    access = api_access(os.environ, server, token_file, ca_file)
    feed = _open(context, group, "kubernetes", is_acting)
    _run(feed, KubernetesNodes(KubernetesApi(access)), most_nodes, least_probability, is_acting, is_ending)


@act.command()
@asks("kafka")
def nvsentinel(
    context: typer.Context,
    output: Annotated[
        str,
        typer.Option("--output", metavar="FILE|URL|-", help="Where events go: a file, an HTTP endpoint, or stdout."),
    ] = "-",
    cluster: Annotated[str, typer.Option(help="Name of the cluster, in the events' source.")] = "default",
    is_acting: Annotated[
        bool, typer.Option("--do-it", help="EXECUTE_REMEDIATION: NVSentinel may act. Without it: STORE_ONLY.")
    ] = False,
    least_probability: LeastProbability = 0.9,
    is_ending: End = False,
    group: Group = None,
) -> None:
    """Give NVSentinel's health events, as CloudEvents in JSON: a device is unhealthy, and healthy again.

    Example: irregulars act nvsentinel --output https://events.example/health
    """
    from irregulars.sinks.notices.actions.nvsentinel import open_output, run_health_events

    with open_output(output) as write:
        feed = _open(context, group, "nvsentinel", True)
        with closing(feed):
            run_health_events(feed, write, cluster, least_probability, is_executed=is_acting, is_ending=is_ending)


def _open(context: typer.Context, group: str | None, orchestrator: str, is_member: bool) -> ActionFeed:
    """Open the topic at its beginning."""
    from irregulars.sinks.notices.actions.feed import ActionFeed

    settings = settings_of(context)
    group = group or f"{settings.topic_prefix}act-{orchestrator}"
    # A dry run is no member: it would take the topic from the member that acts.
    return ActionFeed(
        *kafka_of(settings), group, is_member=is_member,
        tell=lambda line: print(printable(line), file=sys.stderr, flush=True),
    )  # fmt: skip


def _run(
    feed: ActionFeed, nodes: Nodes, most_nodes: int, least_probability: float, is_acting: bool, is_ending: bool
) -> None:
    from irregulars.sinks.notices.actions.actor import ActingLimits, Actor, run_actor

    if not is_acting:
        _say("dry run    nothing is changed; --do-it acts")
    with closing(feed):
        actor = Actor(nodes, ActingLimits(most_nodes, least_probability), is_acting, _say)
        run_actor(feed, actor, is_ending=is_ending)


def _say(line: str) -> None:
    print(printable(line), flush=True)


@asks("kafka")
def node_check(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option(help="The host, as verdicts name it; default: NODE_NAME, else the machine's name.")
    ] = None,
    within_s: Annotated[float, typer.Option(min=0.1, max=60.0, help="Seconds that it may take.")] = 5.0,
    days: Annotated[float, typer.Option(min=0.01, max=36_500, help="Alerts of so many days are read.")] = 7.0,
) -> None:
    """Check whether an open verdict accuses this host, in the form that node-problem-detector reads.

    One line of at most 80 characters. Status 0: none does; 1: one is sure enough to cordon it; 2: nobody knows.

    Example: irregulars node-check --host node-3
    """
    from irregulars.errors import IrregularsError
    from irregulars.sinks.notices.actions.feed import UNKNOWN, check_host, recent_verdicts, short_line

    name = host or os.environ.get("NODE_NAME") or socket.gethostname()
    try:
        settings = settings_of(context)
        since_ns = time.time_ns() - int(days * 86_400 * 10**9)
        found = recent_verdicts(*kafka_of(settings), since_ns, within_s)
        status, line = check_host(found, name)
    except IrregularsError as error:
        status, line = UNKNOWN, short_line(f"not known: {error}")
    except Exception as error:  # a traceback ends with status 1, by which the monitor would set its condition
        status, line = UNKNOWN, short_line(f"not known: {type(error).__name__}: {error}")
    # One line on standard output and a status are all that node-problem-detector reads.
    print(line)
    raise typer.Exit(status)
