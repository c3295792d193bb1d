"""``irregulars topics`` and ``deadletter``: Kafka topics, who may use them, and messages that could not be used."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irregulars.errors import InputError, ServiceError
from irregulars.infra.commands.options import Json, asks, kafka_of, print_result, settings_of

if TYPE_CHECKING:
    from irregulars.infra.runs.dead_letters import DeadLetter, DeadLetterBox
    from irregulars.kafka.access_roles import Right


topics = typer.Typer(
    help="Make the Kafka topics, check that they fit together, and say who may use them.\n\n"
    "Example: irregulars topics create --bootstrap kafka-0:9092",
    no_args_is_help=True,
)


@topics.command()
@asks("kafka")
def create(
    context: typer.Context,
    partitions: Annotated[
        int | None, typer.Option(help="Of each topic that ranks write, of evidence and of snapshots.")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Copies of each partition; 3 in production.")] = None,
    json: Json = False,
) -> None:
    """Create the topics that are missing, and set how existing topics of snapshots are cleaned.

    Example: irregulars topics create --bootstrap kafka-0:9092 --partitions 64 --replicas 3
    """
    from irregulars.kafka.topic_admin import check_topics, create_topics

    settings = settings_of(context, partitions=partitions, replicas=replicas)
    report = create_topics(*kafka_of(settings))
    # Existing topics keep their numbers of partitions, which may differ from each other.
    check_topics(*kafka_of(settings))
    names = {"created": report.created, "existing": report.existing, "altered": report.altered}
    lines = [f"created   {name}" for name in report.created]
    lines += [f"{'altered ' if name in report.altered else 'existing'}  {name}" for name in report.existing]
    lines += [f"to alter  {name}  by: kafka-configs --alter --topic {name} --add-config {config}"
              for name, config in report.stale.items()]  # fmt: skip
    print_result(json, {key: list(found) for key, found in names.items()} | {"stale": dict(report.stale)}, lines)


@topics.command()
@asks("kafka")
def check(
    context: typer.Context,
    json: Json = False,
) -> None:
    """Say how many partitions each topic has; status 2 where one is missing or they do not fit together.

    Example: irregulars topics check --bootstrap kafka-0:9092
    """
    from irregulars.kafka.broker import REFUSED_S
    from irregulars.kafka.topic_admin import check_topics

    settings = settings_of(context)
    counts = check_topics(*kafka_of(settings), refused_s=REFUSED_S)
    lines = [f"{settings.topics().name(name):<32} {count:>5} partitions" for name, count in counts.items()]
    print_result(json, counts, lines)


@topics.command()
@asks("kafka")
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
    json: Json = False,
) -> None:
    """Allow a principal what its role needs, and no more; infra/docs/access.md tells of the roles.

    Example: irregulars topics grant worker User:irregulars-worker
    """
    from irregulars.infra.wiring import kafka_security
    from irregulars.kafka import access_roles

    settings = settings_of(context)
    rights = access_roles.rights_of(role, settings.topics(), group)
    if is_printing:
        print("\n".join(access_roles.shell_commands(settings.kafka_bootstrap, principal, rights)))
        return
    access_roles.grant(settings.kafka_bootstrap, kafka_security(settings), principal, rights)
    _print_rights(rights, f"{principal} may", json)


@topics.command()
@asks("kafka")
def revoke(
    context: typer.Context,
    role: Annotated[str, typer.Argument(help="As it was granted.")],
    principal: Annotated[str, typer.Argument(help="As the broker knows it: User:NAME.")],
    group: Annotated[str, typer.Option(help="Consumer group of the workers.")] = "irregulars",
    json: Json = False,
) -> None:
    """Take from a principal what `topics grant` gave it; what it may by other rules stays.

    Example: irregulars topics revoke worker User:irregulars-worker
    """
    from irregulars.infra.wiring import kafka_security
    from irregulars.kafka import access_roles

    settings = settings_of(context)
    rights = access_roles.rights_of(role, settings.topics(), group)
    had = access_roles.revoke(settings.kafka_bootstrap, kafka_security(settings), principal, rights)
    _print_rights(had, f"{principal} may no longer", json)


@topics.command()
@asks("kafka")
def delete(
    context: typer.Context,
    is_doing: Annotated[bool, typer.Option("--do-it", help="Delete them; else only say which ones.")] = False,
    json: Json = False,
) -> None:
    """Say which topics of ours there are; with --do-it delete them, with all that is in them. Stop the workers first.

    Example: irregulars topics delete --topic-prefix trial. --do-it
    """
    from irregulars.infra.wiring import kafka_security
    from irregulars.kafka.topic_admin import delete_topics, topics_there

    settings = settings_of(context)
    security = kafka_security(settings)
    names = topics_there(settings.kafka_bootstrap, settings.topics(), security)
    if is_doing:
        delete_topics(settings.kafka_bootstrap, names, security)
    lines = [f"{'deleted' if is_doing else 'would delete'}  {name}" for name in names]
    print_result(json, {"topics": list(names), "is_deleted": is_doing}, lines)


@topics.command("forget-job")
@asks("kafka")
def forget_job(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a training job that has ended.")],
    is_doing: Annotated[bool, typer.Option("--do-it", help="Delete it; else only count.")] = False,
    json: Json = False,
) -> None:
    """Count what the topics jobs, notices and feedback keep of a job for ever; with --do-it delete it there.

    infra/docs/operating.md tells what happens to the rest.

    Example: irregulars topics forget-job llama-7b --do-it
    """
    from collections import Counter

    from irregulars.infra.runs.dead_letters import TOPICS, erase, kept_of_job

    settings = settings_of(context)
    where = kafka_of(settings)
    kept = kept_of_job(*where, job)
    if is_doing:
        erase(*where, kept)
    # Zeros first: a topic that keeps nothing of the job is listed too.
    counts = Counter({settings.topics().name(topic): 0 for topic in TOPICS})
    counts.update(settings.topics().name(one.topic) for one in kept)
    lines = [f"{'deleted' if is_doing else 'would delete'}  {count:>7,}  {name}" for name, count in counts.items()]
    print_result(json, {"job": job, "is_deleted": is_doing, "messages": counts}, lines)


def _print_rights(rights: Sequence[Right], begin: str, json: bool) -> None:
    lines = [f"{begin} {one.operation:<8} {one.kind} {one.name}" for one in rights]
    print_result(json, list(map(asdict, rights)), lines)


deadletter = typer.Typer(
    help="See messages that could not be used, and why; send them again.\n\nExample: irregulars deadletter list",
    no_args_is_help=True,
)

_SHOWN_BYTES = 512

Topic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only those of this topic, like commops.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Only those whose reason holds this.")]


@deadletter.command("list")
@asks("kafka")
def list_letters(
    context: typer.Context,
    topic: Topic = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, help="Only this many, the newest.")] = 100,
    json: Json = False,
) -> None:
    """List the newest letters, oldest first: number, time, topic/partition@offset, bytes, key, reason.

    Example: irregulars deadletter list --topic commops

    Example: irregulars deadletter list --json | jq -r '.[].reason' | sort | uniq -c
    """
    with _open(context) as box:
        # Letters come oldest first: a bounded deque keeps the newest.
        found: deque[dict[str, Any]] = deque((one.to_json() for one in _chosen(box, topic, reason)), maxlen=limit)
    lines = []
    for one in found:
        place = f"{one['topic']}/{one['partition']}@{one['offset']}" if one["offset"] is not None else one["topic"]
        cut = " (cut)" if one["is_cut"] else ""
        text = f"{one['letter']}  {one['time'] or '-'}  {place}  {one['value_bytes']} bytes{cut}  {one['key'] or '-'}"
        lines.append(f"{text}  {one['reason']}")
    print_result(json, list(found), lines or ["no dead letters"])


@deadletter.command()
@asks("kafka")
def show(
    context: typer.Context,
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="Its number in the list.")],
    json: Json = False,
) -> None:
    """Show one letter: all that is known of it, and the beginning of its bytes; with --json all of them.

    Example: irregulars deadletter show 17

    Example: irregulars deadletter show 17 --json | jq -r .value_base64 | base64 -d > message.arrow
    """
    with _open(context) as box:
        found = box.letter(letter)
        try:
            value = box.original(found)[1]
        except (InputError, ServiceError):  # gone, or not ours to read: the head alone is kept
            value = found.value
    fields, shown = found.to_json(), (value or b"")[:_SHOWN_BYTES]
    lines = [*(f"{name:<12} {one}" for name, one in fields.items()), ""]
    for at in range(0, len(shown), 16):
        part = shown[at : at + 16]
        text = "".join(chr(code) if 32 <= code < 127 else "." for code in part)
        lines.append(f"{at:06x}  {part.hex(' '):<47}  {text}")
    encoded = None if value is None else base64.b64encode(value).decode()
    print_result(json, {**fields, "headers": dict(found.headers), "value_base64": encoded}, lines)


@deadletter.command()
@asks("kafka")
def replay(
    context: typer.Context,
    letters: Annotated[
        list[str] | None, typer.Argument(metavar="LETTER...", help="Numbers in the list; none: --all.")
    ] = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="All that are kept, or that --topic and --reason leave.")
    ] = False,
    topic: Topic = None,
    reason: Reason = None,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="Say which, and send nothing.")] = False,
    json: Json = False,
) -> None:
    """Send letters to the topics that they came from, as they were; what a worker still can't use comes back here.

    Of a letter that was cut the original is read where it stood; where that is gone, nothing is sent and the status
    is 2. Rows of a job that went on meanwhile come late: they are counted, and no verdict changes.

    Example: irregulars deadletter replay 17 18

    Example: irregulars deadletter replay --all --reason "must be announced"
    """
    if bool(letters) == is_all:
        raise InputError("letters to replay must be named, or all of them with --all; got both or neither")
    with _open(context) as box:
        chosen = [box.letter(one) for one in letters] if letters else list(_chosen(box, topic, reason))
        sent = 0 if is_dry else box.replay(chosen)
    lines = [f"{'would send' if is_dry else 'sent'} {one.place} to {one.topic}" for one in chosen]
    print_result(json, {"chosen": [one.place for one in chosen], "sent": sent}, lines or ["no dead letters"])


def _open(context: typer.Context) -> DeadLetterBox:
    from irregulars.infra.runs.dead_letters import DeadLetterBox

    settings = settings_of(context)
    return DeadLetterBox(*kafka_of(settings))


def _chosen(box: DeadLetterBox, topic: str | None, reason: str | None) -> Iterator[DeadLetter]:
    for one in box.letters():
        # By the end of its name, since the prefix may be left out.
        if (topic is None or one.topic.endswith(topic)) and (reason is None or reason in one.reason):
            yield one
