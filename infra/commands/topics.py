"""``irregulars topics``: make the Kafka topics, and check that they fit together."""

from __future__ import annotations

from typing import Annotated

import typer

from irregulars.infra.commands.options import Bootstrap, Json, TopicPrefix, print_json, settings_of

topics = typer.Typer(help="Make the Kafka topics, and check that they fit together.", no_args_is_help=True)


@topics.command()
def create(
    context: typer.Context,
    partitions: Annotated[int | None, typer.Option(help="Partitions of each topic.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Copies of each partition; 3 in production.")] = None,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    json: Json = False,
) -> None:
    """Create the topics that are missing; those that exist are left as they are.

    Example: irregulars topics create --bootstrap kafka-0:9092 --partitions 64 --replicas 3
    """
    from irregulars.infra.configuration.wiring import kafka_security
    from irregulars.streams.kafka.topic_admin import check_topics, create_topics

    settings = settings_of(
        context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix, partitions=partitions, replicas=replicas
    )
    report = create_topics(settings.kafka_bootstrap, settings.topics(), kafka_security(settings))
    check_topics(settings.kafka_bootstrap, settings.topics(), kafka_security(settings))
    if json:
        print_json({"created": list(report.created), "existing": list(report.existing)})
        return
    for name in report.created:
        print(f"created   {name}")
    for name in report.existing:
        print(f"existing  {name}")


@topics.command()
def check(
    context: typer.Context, bootstrap: Bootstrap = None, topic_prefix: TopicPrefix = None, json: Json = False
) -> None:
    """Say how many partitions each topic has; status 2 where one is missing or they do not fit together."""
    from irregulars.infra.configuration.wiring import kafka_security
    from irregulars.streams.kafka.topic_admin import check_topics

    settings = settings_of(context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
    counts = check_topics(settings.kafka_bootstrap, settings.topics(), kafka_security(settings))
    if json:
        print_json(counts)
        return
    for name, count in counts.items():
        print(f"{settings.topics().name(name):<32} {count:>5} partitions")
