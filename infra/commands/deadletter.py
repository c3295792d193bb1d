"""``irregulars deadletter``: messages that could not be used, why, and once more."""

from __future__ import annotations

import base64
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irregulars.errors import InputError, ServiceError
from irregulars.infra.commands.options import Bootstrap, Json, TopicPrefix, kafka_of, print_json, settings_of
from irregulars.printing import printable

if TYPE_CHECKING:
    from irregulars.infra.runs.dead_letters import DeadLetterBox

deadletter = typer.Typer(
    help="See messages that could not be used, and why; send them again.\n\nExample: irregulars deadletter list",
    no_args_is_help=True,
)

_SHOWN_BYTES = 512

Topic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="Only those of this topic, like commops.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Only those whose reason holds this.")]


@deadletter.command("list")
def list_letters(
    context: typer.Context,
    topic: Topic = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, help="Only this many, the newest.")] = 100,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    json: Json = False,
) -> None:
    """List the newest letters, oldest first: number, time, topic/partition@offset, bytes, key, reason.

    Example: irregulars deadletter list --topic commops

    Example: irregulars deadletter list --json | jq -r '.[].reason' | sort | uniq -c
    """
    with _open(context, bootstrap, topic_prefix) as box:
        found: deque[dict[str, Any]] = deque((one.to_json() for one in _chosen(box, topic, reason)), maxlen=limit)
    if json:
        print_json(list(found))
        return
    for one in found:
        place = f"{one['topic']}/{one['partition']}@{one['offset']}" if one["offset"] is not None else one["topic"]
        cut = " (cut)" if one["is_cut"] else ""
        text = f"{one['letter']}  {one['time'] or '-'}  {place}  {one['value_bytes']} bytes{cut}  {one['key'] or '-'}"
        print(printable(f"{text}  {one['reason']}"))
    if not found:
        print("no dead letters")


@deadletter.command()
def show(
    context: typer.Context,
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="Its number in the list.")],
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    json: Json = False,
) -> None:
    """Show one letter: all that is known of it, and the beginning of its bytes; with --json all of them.

    Example: irregulars deadletter show 17

    Example: irregulars deadletter show 17 --json | jq -r .value_base64 | base64 -d > message.arrow
    """
    with _open(context, bootstrap, topic_prefix) as box:
        found = box.letter(letter)
        try:
            value = box.original(found)[1]
        except (InputError, ServiceError):  # gone, or not ours to read: the head alone is kept
            value = found.value
    fields = found.to_json()
    if json:
        encoded = None if value is None else base64.b64encode(value).decode()
        print_json({**fields, "headers": dict(found.headers), "value_base64": encoded})
        return
    for name, one in fields.items():
        print(f"{name:<12} {printable(one)}")
    print()
    for line in _dump((value or b"")[:_SHOWN_BYTES]):
        print(line)


@deadletter.command()
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
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
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
    with _open(context, bootstrap, topic_prefix) as box:
        chosen = [box.letter(one) for one in letters] if letters else list(_chosen(box, topic, reason))
        sent = 0 if is_dry else box.replay(chosen)
    if json:
        print_json({"chosen": [one.place for one in chosen], "sent": sent})
        return
    for one in chosen:
        print(printable(f"{'would send' if is_dry else 'sent'} {one.place} to {one.topic}"))
    if not chosen:
        print("no dead letters")


def _open(context: typer.Context, bootstrap: str | None, topic_prefix: str | None) -> DeadLetterBox:
    from irregulars.infra.runs.dead_letters import DeadLetterBox

    settings = settings_of(context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
    return DeadLetterBox(*kafka_of(settings))


def _chosen(box: DeadLetterBox, topic: str | None, reason: str | None) -> Any:
    for one in box.letters():
        if (topic is None or one.topic.endswith(topic)) and (reason is None or reason in one.reason):
            yield one


def _dump(value: bytes) -> list[str]:
    """Return bytes for people: offset, hexadecimal, ASCII."""
    lines = []
    for at in range(0, len(value), 16):
        part = value[at : at + 16]
        text = "".join(chr(code) if 32 <= code < 127 else "." for code in part)
        lines.append(f"{at:06x}  {part.hex(' '):<47}  {text}")
    return lines
