"""``irregulars feedback``: say whether a verdict was right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from irregulars.errors import InputError
from irregulars.infra.commands.options import Bootstrap, Json, TopicPrefix, kafka_of, print_json, settings_of
from irregulars.printing import printable

if TYPE_CHECKING:
    from irregulars.messages.opinions import Opinion


def feedback(
    context: typer.Context,
    verdict_id: Annotated[
        str | None, typer.Argument(metavar="[VERDICT]", help="Its id, as alerts and `irregulars show` print it.")
    ] = None,
    word: Annotated[
        str | None, typer.Argument(metavar="[right|wrong|withdraw]", help="Was its first suspect to blame?")
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What was found.")] = "",
    who: Annotated[str | None, typer.Option(metavar="NAME", help="Who says so; default: user and host.")] = None,
    is_listing: Annotated[
        bool, typer.Option("--list", help="What was said so far, and what follows from it.")
    ] = False,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    json: Json = False,
) -> None:
    """Say whether a verdict was right: notices learn how sure they may be here.

    Three wrong verdicts in a row of one kind on one device silence that pattern for 30 days, or until one is called
    right; `irregulars mutes list` shows it. What is said is stored: irregulars sql how_often_right.

    Example: irregulars feedback llama-7b:0:60:0 wrong --note "NIC fine, a job of ours was copying"
    """
    from irregulars.sinks.notices.mutes import this_user
    from irregulars.sinks.notices.opinions import WORDS
    from irregulars.sinks.notices.state_log import opened

    if not is_listing and (verdict_id is None or word not in WORDS):
        got = " ".join(one for one in (verdict_id, word) if one) or "nothing"
        raise InputError(f"feedback must be a verdict's id and one of {', '.join(WORDS)}; got {printable(got)}")
    settings = settings_of(context, kafka_bootstrap=bootstrap, topic_prefix=topic_prefix)
    with opened(*kafka_of(settings), "verdicts", "feedback") as log:
        if not is_listing:
            verdict = log.verdict(str(verdict_id))
            if verdict is None:
                rule = f"verdict must be one on the topic verdicts; got {verdict_id!r}"
                raise InputError(f"{rule}. See: irregulars alerts --from-start --end")
            log.record_opinion(verdict, str(word), who or this_user(), note)
        opinions = log.opinions()
    _show(opinions, None if is_listing else verdict_id, json)


def _show(opinions: list[Opinion], verdict_id: str | None, json: bool) -> None:
    from dataclasses import asdict

    from irregulars.sinks.notices.opinions import silences, track_records

    own = sorted((one for one in opinions if verdict_id in (None, one.verdict_id)), key=lambda one: one.time_ns)
    silenced, records = silences(opinions), track_records(opinions)
    if json:
        print_json({"opinions": [asdict(one) for one in own], "silenced": [asdict(one) for one in silenced],
                    "kinds": {kind: asdict(one) for kind, one in records.items()}})  # fmt: skip
        return
    for one in own:
        note = f": {one.note}" if one.note else ""
        about = f"{one.kind} {one.device or one.job}"
        word = {True: "right", False: "wrong", None: "withdrawn"}[one.is_right]
        print(printable(f"{one.verdict_id} ({about}): {word}, says {one.who}{note}"))
    for kind, record in records.items():
        judged = record.right + record.wrong
        print(printable(f"{kind}: {record.right} of {judged} right; of what is told as 90% sure, "
                        f"{record.probability(0.9):.0%} is expected here"))  # fmt: skip
    for mute in silenced:
        print(printable(f"Silenced: {mute.what()}, {mute.describe()}. A verdict on it that is called right ends it."))
    if not own:
        print("nothing was said so far" if verdict_id is None else f"{printable(verdict_id)}: nothing is said of it")
