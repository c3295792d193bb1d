"""The page of one incident: what is known of it, its timeline, and what people say of it: opinions and mutes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from glob import escape
from hashlib import blake2b
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from irregulars.errors import InputError, ServiceError, ServiceRefused, TopicMismatch
from irregulars.infra.console.database import KafkaAddress, known_mutes, say_on_topic
from irregulars.infra.console.rendering import (
    NAME,
    Console,
    console_of,
    incident_path,
    named,
    read_own_form,
    render,
    seconds,
    visitor_of,
)
from irregulars.infra.showing.found import Screen, gather
from irregulars.infra.showing.from_database import find_verdict, found_in_database
from irregulars.infra.showing.html_page import body_of
from irregulars.infra.showing.text_page import headline
from irregulars.messages.device_events import ONE_LOOK_NS
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import STANDSTILLS
from irregulars.messages.records import LOOKS
from irregulars.sinks.advice import least_text
from irregulars.sinks.alerts import LEAST_SEVERITY, gives_alert
from irregulars.sinks.investigations import Answer, run
from irregulars.sinks.notices.incidents import device_of, host_of
from irregulars.sinks.notices.mutes import WORDS, Mute, mute_span, new_mute
from irregulars.sinks.notices.state_log import StateLog
from irregulars.words import amount, name_kind, percent

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


_OPEN_S: Final = 4.0
_CLOSED_S: Final = 60.0  # a closed verdict gets nothing new but opinions
_REVISIONS: Final = 200
_SUSPECTS: Final = 3  # of a revision that its line names

_SAID: Final = """
SELECT who, is_right, said_at, note
FROM feedback FINAL
WHERE job = {job:String} AND verdict_id = {verdict_id:String}
ORDER BY said_at DESC
LIMIT 50"""

# Reports of a device, and of its host: a burst of the same is one line. A code is the growth of a counter
# or the number of a process as well: it tells XIDs apart, and the name of its counter errors of a link.
_REPORTED: Final = """
SELECT min(reported_at) AS first_at, max(reported_at) AS newest_at, count() AS times, host, device, kind,
    if(kind = 'xid', code, NULL) AS xid, argMax(detail, reported_at) AS newest_detail
FROM events FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64}
    AND kind NOT IN {looks:Array(String)} AND (rank IN {ranks:Array(UInt32)} OR host IN {hosts:Array(String)})
    AND reported_at >= fromUnixTimestamp64Nano({begin:Int64}, 'UTC')
    AND reported_at <= fromUnixTimestamp64Nano({end:Int64}, 'UTC')
GROUP BY host, device, kind, xid, if(kind = 'link_errors', detail, '')
ORDER BY newest_at DESC
LIMIT 50"""

_BEFORE_NS: Final = 3600 * 10**9  # a report so long before an incident may be of its cause
_AFTER_NS: Final = 600 * 10**9
_MOST_RANKS: Final = 500  # they stand in the question's address


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of an incident's timeline."""

    time_s: float | None  # seconds since the epoch; None: not known
    kind: str  # ``alert``, ``verdict`` (a revision that gave no alert), ``device`` or ``person``
    text: str


def timeline_of(
    verdict: Verdict,
    history: Answer,
    reported: Sequence[Sequence[Any]],
    said: Sequence[Mapping[str, Any]],
    least_severity: str = LEAST_SEVERITY,
) -> list[Moment]:
    """Return an incident's moments, in their order: revisions, reports of devices, people's words. Pure.

    `history`: of the question `suspicion_history`; `reported`: as `_REPORTED` answers; `least_severity`: less
    urgent revisions gave no alert.
    """
    found = [Moment(one["said_s"], "person", f"{one['who']}: {one['word']}{_behind(one['note'])}") for one in said]
    for first_at, newest_at, times, host, device, kind, code, detail in reported:
        what = f"{kind.replace('_', ' ')}{'' if code is None else f' {code}'}{_behind(detail)}"
        again = f" ({times:,} times until {newest_at:%H:%M:%S})" if times > 1 else ""
        where = " on ".join(one for one in (device, host) if one)
        found.append(Moment(seconds(first_at), "device", f"{where}: {what}{again}"))
    revisions, before = sorted(named(history), key=lambda row: row["revision"]), ("", "", "")
    for revision, rows in groupby(revisions, lambda row: row["revision"]):
        own = list(rows)
        event, severity, lost = (own[0][name] for name in ("event", "severity", "gpu_hours_lost"))
        suspects = [f"{row['device']}, {percent(row['probability'])}" for row in own if row["device"] is not None]
        facts = ["; or ".join(suspects[:_SUSPECTS]) or "no device is accused"]
        if (event, severity, facts[0]) == before:  # it goes on as before: the newest says it
            found.pop()
        before = event, severity, facts[0]
        least = least_text(verdict.kind, is_closed=event == "closed")
        facts += [] if lost is None else [f"{least}{amount(lost)} GPU-hours lost until then"]
        head = ", ".join(one for one in (event or f"revision {revision}", severity) if one)
        kind = "alert" if gives_alert(event, severity, least_severity) else "verdict"
        seen_at, stored_at = own[0]["seen_at"], own[0]["stored_at"]
        # All revisions of a standstill have seen the beginning of its iteration, and nothing newer.
        at = (stored_at or seen_at) if verdict.kind in STANDSTILLS else (seen_at or stored_at)
        found.append(Moment(seconds(at), kind, f"{head}: {'; '.join(facts)}"))
    found.sort(key=lambda one: (one.time_s is None, one.time_s or 0.0))
    if history.cut_at is not None and (left_out := revisions[0]["revision"] - 1):
        found.insert(0, Moment(None, "verdict", f"earlier revisions that are left out: {left_out:,}"))
    return found


def _behind(text: str) -> str:
    return f": {text}" if text else ""


def span_of(screen: Screen) -> tuple[int, int] | None:
    """Return from when to when an incident lasted, until now where it is open, ns; None: not known."""
    verdict = screen.verdict
    begin_ns = verdict.time_ns if screen.since_ns is None else screen.since_ns
    end_ns = screen.now_ns if verdict.state == "open" else verdict.time_ns
    if begin_ns is None or end_ns is None:
        return None
    if verdict.state == "closed" and verdict.kind in STANDSTILLS and math.isfinite(verdict.lost_s):
        end_ns += round(verdict.lost_s * 1e9)  # its time is when it began to stand
    return begin_ns, end_ns


def reported_on(client: Client, screen: Screen) -> Sequence[Sequence[Any]]:
    """Return the reports of the first suspect's ranks and host, from before the incident until it was over."""
    verdict, span = screen.verdict, span_of(screen)
    if span is None or not verdict.suspects:
        return ()
    (begin_ns, end_ns), first = span, verdict.suspects[0]
    values = {
        "job": verdict.job, "attempt": verdict.attempt, "ranks": list(first.ranks[:_MOST_RANKS]),
        "looks": [*LOOKS, "metric"],
        "hosts": [] if first.host is None else [first.host],
        "begin": begin_ns - _BEFORE_NS, "end": end_ns + _AFTER_NS,
    }  # fmt: skip
    return client.query(_REPORTED, parameters=values).result_rows


_SEEN: Final = """
SELECT rank, host, kind, toUnixTimestamp64Nano(reported_at) AS time_ns, device, code, detail
FROM events FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND kind IN {kinds:Array(String)}
    AND reported_at >= fromUnixTimestamp64Nano({begin:Int64}, 'UTC')
    AND reported_at <= fromUnixTimestamp64Nano({end:Int64}, 'UTC')
ORDER BY rank NOT IN {accused:Array(UInt32)}, time_ns DESC
LIMIT 400 BY rank, host, kind
LIMIT 5000"""


@dataclass(frozen=True, slots=True)
class Look:
    """The newest look into one rank's process."""

    rank: int
    host: str
    is_accused: bool
    threads: tuple[tuple[str, tuple[str, ...]], ...]  # name of each, and its lines


def looks_of(verdict: Verdict, rows: Iterable[Sequence[Any]]) -> list[Look]:
    """Return the newest look at each rank, those at accused ranks first. Pure.

    `rows`: as `_SEEN` answers: rank, host, kind, ns since the epoch, thread, code, detail.
    """
    accused = verdict.suspects[0].ranks if verdict.suspects else ()
    found = []
    for (rank, host, kind), own in groupby(sorted(rows, key=lambda row: (row[:3], row[3])), lambda row: row[:3]):
        told = list(own)
        newest = [row for row in told if row[3] > told[-1][3] - ONE_LOOK_NS]
        threads: dict[str, list[str]] = {}
        for *_, thread, code, detail in newest:
            share = f"{code / 10:.0f} % " if kind == "function" and code is not None else ""
            threads.setdefault(thread, []).append(share + detail)
        lines = tuple((thread, tuple(own_lines)) for thread, own_lines in threads.items())
        found.append(Look(rank, host, rank in accused, lines))
    return sorted(found, key=lambda one: (not one.is_accused, one.rank))


def read_looks(client: Client, verdict: Verdict, begin_ns: int, end_ns: int) -> list[Look]:
    """Return the looks into processes of a verdict's job that were taken in a span of time."""
    values = {
        "job": verdict.job, "attempt": verdict.attempt, "kinds": list(LOOKS), "begin": begin_ns, "end": end_ns,
        "accused": list(verdict.suspects[0].ranks[:1000]) if verdict.suspects else [],
    }  # fmt: skip
    return looks_of(verdict, client.query(_SEEN, parameters=values).result_rows)


async def incident_page(request: Request) -> Response:
    """Show a verdict; a job's name leads to its newest one."""
    which, console = request.path_params["verdict_id"], console_of(request)
    try:
        screen, history, reported, looks = await read_incident(console, which)
    except InputError:
        raise HTTPException(404, f"No verdict of the name {which!r} is stored.") from None
    verdict = screen.verdict
    if verdict.verdict_id != which:
        return RedirectResponse(incident_path(verdict.verdict_id), 303)
    said = await console.database.ask(("said", which), lambda client: words_on(client, verdict.job, which))
    asked = request.query_params.get("said")
    return render(
        request, "incident.html", verdict=verdict, title=headline(screen),
        body=Markup(body_of(screen)),  # as `irregulars show --html` has it; its texts are escaped
        timeline=timeline_of(verdict, history, reported, said, console.least_severity), looks=looks,
        thanks=asked if asked in (*WORDS, "muted") else None,
        mutable=mutable_of(verdict), muted_for=MUTED_FOR, mutes=await mutes_on(console, verdict),
        now_s=time.time(),
    )  # fmt: skip


Incident = tuple[Screen, Answer, Sequence[Sequence[Any]], Sequence[Look]]


async def read_incident(console: Console, which: str) -> Incident:
    """Return a verdict's screen, its history, the reports of devices, and the looks into its processes.

    Raises `InputError` where it is not stored, and `ServiceError`.
    """
    verdict = await console.database.ask(("verdict", which), lambda client: find_verdict(client, which))
    if verdict is None:
        raise InputError(f"verdict must be one that is stored; got {which!r}")

    def read(client: Client) -> Incident:
        found = found_in_database(client, verdict, console.database.source, time.time_ns())
        screen = gather(found, console.runbook_url)
        wanted = {"verdict_id": verdict.verdict_id, "limit": _REVISIONS}
        span = span_of(screen)
        looks = [] if span is None else read_looks(client, verdict, span[0], span[1] + _AFTER_NS)
        return screen, run(client, "suspicion_history", wanted), reported_on(client, screen), looks

    keep_s = _CLOSED_S if verdict.state == "closed" else _OPEN_S
    # The revision is part of the key, so that a new one is read at once.
    return await console.database.ask(("incident", verdict.verdict_id, verdict.revision), read, keep_s)


def words_on(client: Client, job: str, verdict_id: str) -> Sequence[Mapping[str, Any]]:
    """Return the opinions on a verdict, the newest first."""
    rows = client.query(_SAID, parameters={"job": job, "verdict_id": verdict_id}).result_rows
    words = {None: "withdrawn", True: "right", False: "wrong"}
    return [
        {"who": who, "word": words[is_right], "said_s": seconds(said_at), "note": note}
        for who, is_right, said_at, note in rows
    ]


MUTED_FOR: Final = ("1h", "4h", "1d", "1w")  # how long a mute may last that is made on a page
_MUTES_S: Final = 1.0  # how long a page waits for the mutes: without Kafka it is shown without them
_MUTES_KEPT_S: Final = 30.0  # both topics are read from their beginning


def mutable_of(verdict: Verdict) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the mutes that a verdict offers, by a word for forms: a name for people, and the patterns."""
    alert = verdict.to_json()
    names = verdict.suspects[0].traits.identity if verdict.suspects else ()
    # Nobody accuses the host of a switch's first rank.
    host = host_of(alert) if "host" in names else None
    where = "all jobs" if names else "this job"  # the name of a link holds its job
    found: dict[str, tuple[str, Mapping[str, str | None]]] = {
        "device": (f"this device in {where}: {device_of(alert)}", {"device": device_of(alert)}),
        "host": (f"all that is accused on {host}", {"host": host}),
        "job": (f"{name_kind(verdict.kind)} in this job", {"job": verdict.job, "kind": verdict.kind}),
    }
    return {
        word: (text, {name: escape(value) for name, value in patterns.items() if value is not None})
        for word, (text, patterns) in found.items()
        if None not in patterns.values()
    }


async def mutes_on(console: Console, verdict: Verdict) -> list[Mute] | None:
    """Return the mutes that hold a verdict's notices back now; None: Kafka did not say in time."""
    kafka = console.kafka
    if kafka is None or not console.takes_feedback:  # else we may not read them
        return []
    try:
        async with asyncio.timeout(_MUTES_S):
            read = partial(asyncio.to_thread, known_mutes, kafka)
            known = await console.answers.get("mutes", read, _MUTES_KEPT_S)
    except (ServiceError, TimeoutError):
        return None
    now_ns, alert = time.time_ns(), verdict.to_json()
    return [one for one in known if one.is_active(now_ns) and one.matches(alert)]


async def feedback(request: Request) -> Response:
    """Record an opinion on a verdict, and redirect to its page."""
    kafka, who, verdict, fields = await _said_by(request)
    word, note = fields.get("word", ""), fields.get("note", "")
    await _publish(kafka, "feedback", lambda log: log.record_opinion(verdict, word, who, note))
    console_of(request).answers.forget("mutes")  # it may begin or end a silence
    return RedirectResponse(f"{incident_path(verdict.verdict_id)}?said={word}#said", 303)


async def mute(request: Request) -> Response:
    """Mute the notices of a verdict's device, host or kind, and redirect to its page."""
    kafka, who, verdict, fields = await _said_by(request)
    lasting, mutable = fields.get("lasting", ""), mutable_of(verdict)
    # Patterns are made of the stored verdict: a form names one of them, and can't mute everything.
    if fields.get("about") not in mutable or lasting not in MUTED_FOR:
        raise InputError(f"mute must be of {', '.join(mutable)}, for {', '.join(MUTED_FOR)}; got another one")
    span = mute_span(time.time_ns(), lasting, None, None)
    made = new_mute(span, fields.get("reason", ""), who, **mutable[fields["about"]][1])
    # Made of its content and not by chance: a form that is sent twice makes one mute, and its id ends all of it.
    key = repr((verdict.verdict_id, fields["about"], who)).encode()
    made = replace(made, mute_id=f"m-{blake2b(key, digest_size=8).hexdigest()}")
    await _publish(kafka, "mutes", lambda log: log.set_mute(made))
    console_of(request).answers.forget("mutes")
    return RedirectResponse(f"{incident_path(verdict.verdict_id)}?said=muted#said", 303)


async def _said_by(request: Request) -> tuple[KafkaAddress, str, Verdict, dict[str, str]]:
    """Return where a person's word on a verdict goes, who says it, on which one, and the form's fields."""
    console, visitor = console_of(request), visitor_of(request)
    fields = await read_own_form(request)
    if not console.takes_feedback or console.kafka is None or visitor is None:
        raise HTTPException(403, "This console only reads. It takes feedback where console_feedback is true.")
    who = visitor.name if visitor.is_sure else fields.get("who", "").strip()
    if not who:
        raise InputError("name must be given with feedback; got none. Others read who said it")
    verdict_id = fields.get("verdict_id", "")
    verdict = (await read_incident(console, verdict_id))[0].verdict
    # A job's name finds its newest verdict, which need not be the one that the author has seen.
    if verdict.verdict_id != verdict_id:
        raise InputError(f"verdict must be given by its id; got {verdict_id!r}")
    return console.kafka, who, verdict, fields


async def _publish(kafka: KafkaAddress, topic: str, say: Callable[[StateLog], None]) -> None:
    try:
        await asyncio.to_thread(say_on_topic, kafka, topic, say)
    except (ServiceRefused, TopicMismatch) as error:  # a topic that we may not describe looks like none
        raise HTTPException(
            403, f"{error}. Whoever runs the console can grant it: irregulars topics grant operator User:NAME"
        ) from None


ROUTES: Final[Sequence[BaseRoute]] = (
    Route(f"/incidents/{{verdict_id:{NAME}}}", incident_page, name="incident"),
    Route("/feedback", feedback, methods=["POST"], name="feedback"),
    Route("/mutes", mute, methods=["POST"], name="mute"),
)
