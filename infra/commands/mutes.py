"""``irregulars mutes`` and ``feedback``: maintenance windows, and opinions on verdicts, which may silence faults."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars.errors import InputError
from irregulars.infra.commands.options import Json, asks, print_result, state_log
from irregulars.printing import printable

if TYPE_CHECKING:
    from irregulars.messages.opinions import Opinion


mutes = typer.Typer(
    help="Hold notices back for a while: maintenance windows per host, job, device or kind.\n\n"
    'Example: irregulars mutes add --host node-3 --for 2h --reason "firmware"',
    no_args_is_help=True,
)


@mutes.command()
@asks("kafka")
def add(
    context: typer.Context,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is told when the mute is over.")],
    host: Annotated[str | None, typer.Option(metavar="PATTERN", help="Host of the first suspect.")] = None,
    job: Annotated[str | None, typer.Option(metavar="PATTERN", help="Training job.")] = None,
    device: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Device: nic:node-3/mlx5_1, gpu:node-3/2.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="PATTERN", help="Kind of the verdict: imbalance.")] = None,
    lasting: Annotated[str | None, typer.Option("--for", metavar="TIME", help="How long: 90m, 2h, 3d, 1w.")] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="2026-11-25T22:00Z; default: now.")
    ] = None,
    end: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Instead of --for.")] = None,
    who: Annotated[str | None, typer.Option(metavar="NAME", help="Who says so; default: user and host.")] = None,
    json: Json = False,
) -> None:
    """Tell nobody of incidents that all given patterns match (shell patterns), while the mute holds.

    What is still open when it ends is told then, and said to have been muted. Ends of incidents are always told.

    Example: irregulars mutes add --host node-3 --for 2h --reason "new firmware"
    """
    from irregulars.sinks.notices.mutes import mute_span, new_mute

    span = mute_span(time.time_ns(), lasting, begin, end)
    mute = new_mute(span, reason, who, host=host, job=job, device=device, kind=kind)
    with state_log(context, "mutes", "feedback") as log:
        log.set_mute(mute)
    print_result(json, asdict(mute), [f"{mute.mute_id}: {mute.what()} {mute.describe()}"])


@mutes.command("list")
@asks("kafka")
def list_mutes(
    context: typer.Context,
    is_all: Annotated[bool, typer.Option("--all", help="Those that are over, too.")] = False,
    json: Json = False,
) -> None:
    """List mutes that hold or will, by their end: id, what, until when, who and why.

    Those of `feedback` follow from verdicts that were called wrong, and end when one is called right.

    Example: irregulars mutes list --json | jq -r '.[].mute_id'
    """
    from irregulars.sinks.notices.mutes import silences
    from irregulars.words import moment

    now_ns = time.time_ns()
    with state_log(context, "mutes", "feedback") as log:
        known = [*log.mutes(), *silences(log.opinions())]
    found = sorted(known, key=lambda one: (one.until_ns, one.mute_id))
    shown = [one for one in found if is_all or one.until_ns > now_ns]
    lines = []
    for one in shown:
        later = " (over)" if one.until_ns <= now_ns else f" (from {moment(one.from_ns)} on)"
        lines.append(f"{one.mute_id}: {one.what()} {one.describe()}{'' if one.is_active(now_ns) else later}")
    print_result(json, [asdict(one) for one in shown], lines or ["no mutes"])


@mutes.command()
@asks("kafka")
def remove(
    context: typer.Context,
    mute_id: Annotated[str, typer.Argument(metavar="ID", help="Of the list.")],
) -> None:
    """End a mute now: what it held back and still goes on is told.

    Example: irregulars mutes remove m-20261125-0312-4f1c
    """
    from irregulars.sinks.notices.mutes import KEPT_NS

    now_ns = time.time_ns()
    with state_log(context, "mutes", "feedback") as log:
        known = {one.mute_id: one for one in log.mutes()}
        if mute_id not in known:
            raise InputError(f"mute must be one that is kept; got {mute_id!r}. See: irregulars mutes list --all")
        found = known[mute_id]
        if found.from_ns >= now_ns or found.until_ns < now_ns - KEPT_NS:  # it held nothing back that is remembered
            log.erase_mute(mute_id)
        elif found.until_ns > now_ns:
            log.set_mute(replace(found, until_ns=now_ns))
        # The compacted topic keeps every mute for ever: each removal clears those that nothing needs any more.
        for one in known.values():
            if one.until_ns < now_ns - KEPT_NS and one is not found:
                log.erase_mute(one.mute_id)
    print(printable(f"{mute_id} is over"))


@asks("kafka")
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
    json: Json = False,
) -> None:
    """Say whether a verdict was right: notices learn how sure they may be here.

    Three wrong verdicts in a row of one kind on one device silence that pattern for 30 days, or until one is called
    right; `irregulars mutes list` shows it. What is said is stored: irregulars sql how_often_right.

    Example: irregulars feedback llama-7b:0:60:0 wrong --note "NIC fine, a job of ours was copying"
    """
    from irregulars.sinks.notices.mutes import WORDS, this_user

    if not is_listing and (verdict_id is None or word not in WORDS):
        got = " ".join(one for one in (verdict_id, word) if one) or "nothing"
        raise InputError(f"feedback must be a verdict's id and one of {', '.join(WORDS)}; got {printable(got)}")
    with state_log(context, "verdicts", "feedback") as log:
        if not is_listing:
            verdict = log.verdict(str(verdict_id))
            if verdict is None:
                rule = f"verdict must be one on the topic verdicts; got {verdict_id!r}"
                raise InputError(f"{rule}. See: irregulars alerts --from-start --end")
            log.record_opinion(verdict, str(word), who or this_user(), note)
        opinions = log.opinions()
    _show(opinions, None if is_listing else verdict_id, json)


def _show(opinions: list[Opinion], verdict_id: str | None, json: bool) -> None:
    from irregulars.sinks.notices.mutes import silences, track_records

    own = sorted((one for one in opinions if verdict_id in (None, one.verdict_id)), key=lambda one: one.time_ns)
    silenced, records = silences(opinions), track_records(opinions)
    lines = []
    for one in own:
        note = f": {one.note}" if one.note else ""
        about = f"{one.kind} {one.device or one.job}"
        word = {True: "right", False: "wrong", None: "withdrawn"}[one.is_right]
        lines.append(f"{one.verdict_id} ({about}): {word}, says {one.who}{note}")
    for kind, record in records.items():
        judged = f"{kind}: {record.right} of {record.right + record.wrong} right"
        lines.append(f"{judged}; of what is told as 90% sure, {record.probability(0.9):.0%} is expected here")
    lines += [f"Silenced: {one.what()}, {one.describe()}. A verdict on it that is called right ends it."
              for one in silenced]  # fmt: skip
    if not own:
        lines.append("nothing was said so far" if verdict_id is None else f"{verdict_id}: nothing is said of it")
    print_result(json, {"opinions": [asdict(one) for one in own], "silenced": [asdict(one) for one in silenced],
                        "kinds": {kind: asdict(one) for kind, one in records.items()}}, lines)  # fmt: skip
