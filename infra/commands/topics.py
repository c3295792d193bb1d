"""``irregulars topics``: make the Kafka topics, check that they fit together, and say who may use them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars.infra.commands.options import Bootstrap, Json, TopicPrefix, kafka_of, print_json, settings_of

if TYPE_CHECKING:
    from irregulars.kafka.access_roles import Right

topics = typer.Typer(
    help="Make the Kafka topics, check that they fit together, and say who may use them.\n\n"
    "Example: irregulars topics create --bootstrap kafka-0:9092",
    no_args_is_help=True,
)


@topics.command()
def create(
    context: typer.Context,
    partitions: Annotated[
        int | None, typer.Option(help="Of each topic that ranks write, of evidence and of snapshots.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Copies of each partition; 3 in production.")] = None,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    json: Json = False,
) -> None:
    """Create the topics that are missing, and set how existing topics of snapshots are cleaned.

    Example: irregulars topics create --bootstrap kafka-0:9092 --partitions 64 --replicas 3
    """
    from irregulars.kafka.topic_admin import check_topics, create_topics

    settings = settings_of(
        context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix, partitions=partitions, replicas=replicas
    )
    report = create_topics(*kafka_of(settings))
    check_topics(*kafka_of(settings))
    if json:
        names = {"created": report.created, "existing": report.existing, "altered": report.altered}
        print_json({key: list(found) for key, found in names.items()} | {"stale": dict(report.stale)})
        return
    for name in report.created:
        print(f"created   {name}")
    for name in report.existing:
        print(f"{'altered ' if name in report.altered else 'existing'}  {name}")
    for name, config in report.stale.items():
        print(f"to alter  {name}  by: kafka-configs --alter --topic {name} --add-config {config}")


@topics.command()
def check(
    context: typer.Context, bootstrap: Bootstrap = None, topic_prefix: TopicPrefix = None, json: Json = False
) -> None:
    """Say how many partitions each topic has; status 2 where one is missing or they do not fit together.

    Example: irregulars topics check --bootstrap kafka-0:9092
    """
    from irregulars.kafka.topic_admin import check_topics

    settings = settings_of(context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
    counts = check_topics(*kafka_of(settings))
    if json:
        print_json(counts)
        return
    for name, count in counts.items():
        print(f"{settings.topics().name(name):<32} {count:>5} partitions")


@topics.command()
def grant(
    context: typer.Context,
    role: Annotated[
        str, typer.Argument(help="producer, agent, worker, reader, actor, notify, operator, console or admin.")
    ],
    principal: Annotated[str, typer.Argument(help="As the broker knows it: User:NAME.")],
    group: Annotated[str, typer.Option(help="Consumer group of the workers.")] = "irregulars",
    is_printing: Annotated[
        bool, typer.Option("--print", help="Print the calls of kafka-acls.sh that do it, and do nothing.")
    ] = False,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    json: Json = False,
) -> None:
    """Allow a principal what its role needs, and no more; infra/docs/access.md tells of the roles.

    Example: irregulars topics grant worker User:irregulars-worker
    """
    from irregulars.infra.configuration.wiring import kafka_security
    from irregulars.kafka import access_roles

    settings = settings_of(context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
    rights = access_roles.rights_of(role, settings.topics(), group)
    if is_printing:
        print("\n".join(access_roles.shell_commands(settings.kafka_bootstrap, principal, rights)))
        return
    access_roles.grant(settings.kafka_bootstrap, kafka_security(settings), principal, rights)
    _print_rights(rights, f"{principal} may", json)


@topics.command()
def revoke(
    context: typer.Context,
    role: Annotated[str, typer.Argument(help="As it was granted.")],
    principal: Annotated[str, typer.Argument(help="As the broker knows it: User:NAME.")],
    group: Annotated[str, typer.Option(help="Consumer group of the workers.")] = "irregulars",
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    json: Json = False,
) -> None:
    """Take from a principal what `topics grant` gave it; what it may by other rules stays.

    Example: irregulars topics revoke worker User:irregulars-worker
    """
    from irregulars.infra.configuration.wiring import kafka_security
    from irregulars.kafka import access_roles

    settings = settings_of(context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
    rights = access_roles.rights_of(role, settings.topics(), group)
    had = access_roles.revoke(settings.kafka_bootstrap, kafka_security(settings), principal, rights)
    _print_rights(had, f"{principal} may no longer", json)


@topics.command()
def delete(
    context: typer.Context,
    is_doing: Annotated[bool, typer.Option("--do-it", help="Delete them; else only say which ones.")] = False,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    json: Json = False,
) -> None:
    """Say which topics of ours there are; with --do-it delete them, with all that is in them. Stop the workers first.

    Example: irregulars topics delete --topic-prefix trial. --do-it
    """
    from irregulars.infra.configuration.wiring import kafka_security
    from irregulars.kafka.topic_admin import delete_topics, topics_there

    settings = settings_of(context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
    security = kafka_security(settings)
    names = topics_there(settings.kafka_bootstrap, settings.topics(), security)
    if is_doing:
        delete_topics(settings.kafka_bootstrap, names, security)
    if json:
        print_json({"topics": list(names), "is_deleted": is_doing})
        return
    for name in names:
        print(f"{'deleted' if is_doing else 'would delete'}  {name}")


@topics.command("forget-job")
def forget_job(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a training job that has ended.")],
    is_doing: Annotated[bool, typer.Option("--do-it", help="Delete it; else only count.")] = False,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    json: Json = False,
) -> None:
    """Count what the topics jobs, notices and feedback keep of a job for ever; with --do-it delete it there.

    infra/docs/operating.md tells what happens to the rest.

    Example: irregulars topics forget-job llama-7b --do-it
    """
    from collections import Counter

    from irregulars.infra.runs.forgotten_job import TOPICS, erase, kept_of_job

    settings = settings_of(context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
    where = kafka_of(settings)
    kept = kept_of_job(*where, job)
    if is_doing:
        erase(*where, kept)
    counts = Counter({settings.topics().name(topic): 0 for topic in TOPICS})
    counts.update(settings.topics().name(one.topic) for one in kept)
    if json:
        print_json({"job": job, "is_deleted": is_doing, "messages": counts})
        return
    for name, count in counts.items():
        print(f"{'deleted' if is_doing else 'would delete'}  {count:>7,}  {name}")


def _print_rights(rights: Iterable[Right], begin: str, json: bool) -> None:
    if json:
        print_json([{"kind": one.kind, "name": one.name, "operation": one.operation} for one in rights])
        return
    for one in rights:
        print(f"{begin} {one.operation:<8} {one.kind} {one.name}")
