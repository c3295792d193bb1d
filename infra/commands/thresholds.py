"""``irregulars thresholds``: change by what jobs are judged, while workers run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from irregulars.errors import InputError
from irregulars.infra.commands.options import Json, asks, print_result, settings_of, state_log

if TYPE_CHECKING:
    from irregulars.messages.threshold_changes import ThresholdChange

# Seconds of silence below which `set` asks whether it is meant: jobs are silent for longer while they save
LEAST_SILENCE_S: Final = 60.0

thresholds = typer.Typer(
    help="Change thresholds of all jobs or of one, while workers run.\n\n"
    'Example: irregulars thresholds set delta=1.3 --job llama-7b --reason "noisy"',
    no_args_is_help=True,
)

Job = Annotated[str | None, typer.Option(metavar="NAME", help="This job alone; default: all jobs.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why.")]
Who = Annotated[str | None, typer.Option(metavar="NAME", help="Who says so; default: user and host.")]
Begin = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="For iterations from 2026-11-25T22:00Z on; default: in 5 s."),
]


@thresholds.command("set")
@asks("kafka")
def set_thresholds(
    context: typer.Context,
    assignments: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Names are those of settings.")],
    reason: Reason,
    job: Job = None,
    begin: Begin = None,
    who: Who = None,
    is_forced: Annotated[bool, typer.Option("--force", help="Even a silence_s that tells pauses as hangs.")] = False,
    json: Json = False,
) -> None:
    """Judge iterations by other thresholds, from a time on; nothing is judged again.

    What is said of one job beats what is said of all, and both beat the settings of the workers.

    Example: irregulars thresholds set delta=1.3 --job llama-7b --reason "its iterations are short and noisy"
    """
    from irregulars.messages.threshold_changes import LIVE, require_live
    from irregulars.validation import checked, shown

    values: dict[str, Any] = {}
    for text in assignments:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not sign or not name:
            raise InputError(f"threshold must be NAME=VALUE; got {shown(text)}")
        require_live(name)
        if name in values:
            raise InputError(f"threshold must be given once; got {name} twice")
        number: int | float | str = value  # a text that is no number is refused as a text
        with suppress(ValueError):
            # An int, where the text is one, stays an int: thresholds that count take no float.
            number = float(value)
            number = int(value)
        values[name] = checked(number, LIVE[name], name, "change of thresholds")
    if not is_forced:
        silence_s = values.get("silence_s")
        if silence_s is not None and silence_s < LEAST_SILENCE_S:
            rule = f"silence_s must be {LEAST_SILENCE_S:g} or more, since jobs pause for a checkpoint"
            raise InputError(f"{rule}; got {silence_s:g}. If you mean it: --force")
    _change(context, values, reason, job, begin, who, json)


@thresholds.command()
@asks("kafka")
def unset(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Of the list.")],
    reason: Reason,
    job: Job = None,
    begin: Begin = None,
    who: Who = None,
    json: Json = False,
) -> None:
    """Judge as before somebody changed these thresholds: one job as all, all as the settings say.

    Example: irregulars thresholds unset delta --job llama-7b --reason "network repaired"
    """
    values = dict.fromkeys(names)
    _change(context, values, reason, job, begin, who, json)


@thresholds.command("list")
@asks("kafka")
def list_thresholds(
    context: typer.Context,
    job: Annotated[str | None, typer.Option(metavar="NAME", help="All by which this job is judged.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Every change that was ever made.")] = False,
    json: Json = False,
) -> None:
    """List the thresholds that are in force now and not as set: value, who, when and why.

    Of a job also those that are as set, by the settings of this call: give it those of the workers.

    Example: irregulars thresholds list --job llama-7b
    """
    from irregulars.messages.threshold_changes import LIVE

    settings, now_ns = settings_of(context), time.time_ns()
    with state_log(context, "thresholds") as log:
        changes = log.changes()
    if is_all:
        own = [one for one in changes if job is None or one.job in (None, job)]
        print_result(json, list(map(asdict, own)), list(map(_words, own)) or ["nobody changed anything"])
        return
    found = in_force(changes, now_ns, job)
    later = [one for one in changes if one.values_at(now_ns) != one.values]
    changed = {one.name for one in found}
    as_set = {} if job is None else {name: getattr(settings, name) for name in LIVE if name not in changed}
    lines = []
    for one in found:
        by = one.change
        told = f"{_when(by)} by {by.who}: {by.reason} [{by.change_id}]"
        lines.append(f"{one.job or 'all jobs'}: {one.name} = {one.value:g}, {told}")
    lines += [f"as set: {name} = {value:g}" for name, value in as_set.items()]
    lines += [f"later: {_words(change)}" for change in later]
    values = {"in_force": list(map(asdict, found)), "as_set": as_set, "planned": list(map(asdict, later))}
    print_result(json, values, lines or ["all thresholds are as set"])


def _change(
    context: typer.Context, values: dict[str, Any], reason: str, job: str | None, begin: str | None, who: str | None,
    json: bool,
) -> None:  # fmt: skip
    import secrets

    from irregulars.messages.threshold_changes import ThresholdChange
    from irregulars.sinks.notices.mutes import this_user, time_ns_of
    from irregulars.validation import checked

    now_ns = time.time_ns()
    fields = {
        # The random end keeps changes of one second apart.
        "change_id": f"t-{datetime.fromtimestamp(now_ns // 10**9, UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        "values": values,
        "who": who or this_user(),
        "reason": " ".join(reason.split()),
        "time_ns": now_ns,
        "job": job,
        "from_ns": None if begin is None else time_ns_of(begin, "--from"),
    }
    change: ThresholdChange = checked(fields, ThresholdChange, "change")
    with state_log(context, "thresholds") as log:
        log.change(change)
    print_result(json, asdict(change), [_words(change)])


def _words(change: ThresholdChange) -> str:
    where = change.job or "all jobs"
    return f"{change.change_id}: {where}: {change.describe()}, {_when(change)} by {change.who}: {change.reason}"


def _when(change: ThresholdChange) -> str:
    from irregulars.words import moment

    begin = "" if change.values.keys() <= {"silence_s"} else f", for iterations from {moment(change.begin_ns)} on"
    return f"said {moment(change.time_ns)}{begin}"


@dataclass(frozen=True, slots=True)
class InForce:
    """One threshold that is not as set."""

    # name, value: of the setting, and by which is judged
    name: str
    value: float
    job: str | None  # where; None: in all jobs that have no value of their own
    change: ThresholdChange  # with author, time and reason


def in_force(changes: Iterable[ThresholdChange], now_ns: int, job: str | None = None) -> list[InForce]:
    """Return the thresholds that are not as set for an iteration that starts now; by job and name.

    `job`: those by which this job is judged; None: those of all jobs, and of each that has some of its own.
    """
    newest: dict[tuple[str | None, str], ThresholdChange] = {}
    for change in changes:
        if job is None or change.job in (None, job):
            # Changes come in the order in which they were made: of two of one threshold the later one stays.
            newest |= dict.fromkeys(((change.job, name) for name in change.values_at(now_ns)), change)
    found = [
        InForce(name, value, own, change)
        for (own, name), change in newest.items()
        if (value := change.values[name]) is not None
    ]
    if job is not None:  # a change for the job beats one for all jobs
        own_names = {one.name for one in found if one.job is not None}
        found = [one for one in found if one.job is not None or one.name not in own_names]
    return sorted(found, key=lambda one: (one.job is not None, one.job or "", one.name))
