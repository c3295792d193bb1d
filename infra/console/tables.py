"""Pages that are tables of the questions that ship, and the page of one incident."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
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
from irregulars.infra.console.database import (
    ConsoleDatabase,
    KafkaAddress,
    known_mutes,
    newest_letters,
    say_on_topic,
)
from irregulars.infra.console.jobs import named, seconds
from irregulars.infra.console.rendering import (
    NAME,
    Console,
    Table,
    console_of,
    host_path,
    incident_path,
    job_path,
    read_own_form,
    render,
    table_of,
    visitor_of,
)
from irregulars.infra.showing.found import Screen, gather
from irregulars.infra.showing.from_database import find_verdict, found_in_database
from irregulars.infra.showing.html_page import body_of
from irregulars.infra.showing.text_page import headline
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import DEVICE_KINDS, STANDSTILLS
from irregulars.sinks.alerts import LEAST_SEVERITY, gives_alert
from irregulars.sinks.investigations import NEWEST, THEMES, Answer, Investigation, bind, run, shipped_investigations
from irregulars.sinks.notices.incidents import device_of, host_of
from irregulars.sinks.notices.mutes import WORDS, Mute, mute_span, new_mute
from irregulars.sinks.notices.state_log import StateLog
from irregulars.words import amount, name_kind, percent

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


_KEEP_S: Final = 5.0
_MOST_ROWS: Final = 500  # rows that a page asks for at most; `irregulars sql` gives more

_FIND: Final = """
SELECT kind, name FROM
(
    SELECT DISTINCT 'job' AS kind, toString(job) AS name FROM jobs
    UNION ALL
    SELECT DISTINCT 'host' AS kind, toString(assumeNotNull(host)) AS name FROM jobs WHERE host IS NOT NULL
    UNION ALL
    SELECT DISTINCT 'verdict' AS kind, verdict_id AS name FROM verdicts
)
WHERE positionCaseInsensitive(name, {text:String}) > 0
ORDER BY name != {text:String}, lower(name) != lower({text:String}), kind = 'verdict', length(name), name
LIMIT 50"""

_PATHS: Final[Mapping[str, Callable[[str], str]]] = {"job": job_path, "host": host_path, "verdict": incident_path}


async def questions_page(request: Request) -> Response:
    """List the questions."""
    shipped = sorted(shipped_investigations().values(), key=lambda one: THEMES.index(one.theme))
    themes = [(theme, list(own)) for theme, own in groupby(shipped, lambda one: one.theme)]
    return render(request, "questions.html", themes=themes)


async def question_page(request: Request) -> Response:
    """Ask one question, with the values that were given, and show the answer."""
    question = shipped_investigations().get(request.path_params["name"])
    if question is None:
        raise HTTPException(404, "No such question ships.")
    # A form sends its empty fields too.
    given = {name: value for name, value in request.query_params.items() if value != ""}
    values = _bounded(question, given)
    needs = [one for one in question.parameters if one.is_required and one.name not in values]
    answer, wrong = None, None
    if not needs:
        try:
            bind(question, values)
            key = ("question", question.name, tuple(sorted(values.items())))
            answer = await console_of(request).database.ask(
                key, lambda client: run(client, question.name, values), _KEEP_S
            )
        except InputError as error:
            wrong = str(error)
    return render(
        request, "question.html", 200 if wrong is None else 400, question=question, given=given, needs=needs,
        wrong=wrong, newest=NEWEST, chosen={} if answer is None else answer.chosen,
        table=None if answer is None else table_of(answer),
    )  # fmt: skip


def _bounded(question: Investigation, given: dict[str, str]) -> dict[str, str]:
    """Return the values, with no more rows than a page shows: the question's own limit may be above that too."""
    usual = {one.name: one.default for one in question.parameters}
    try:
        is_long = int(given.get("limit", usual.get("limit") or "0")) > _MOST_ROWS
    except ValueError:  # `bind` raises for it, with a text for people
        return given
    return {**given, "limit": str(_MOST_ROWS)} if is_long else given


async def search_page(request: Request) -> Response:
    """Find jobs, hosts and verdicts by a part of their name; an exact one is shown at once."""
    text = request.query_params.get("q", "").strip()[:500]
    if not text:
        return RedirectResponse("/questions", 303)
    rows = await console_of(request).database.ask(
        ("find", text), lambda client: client.query(_FIND, parameters={"text": text}).result_rows, _KEEP_S
    )
    found = [(kind, name, _PATHS[kind](name)) for kind, name in rows]
    # The question puts an exact name first.
    if found and (found[0][1] == text or len(found) == 1):
        return RedirectResponse(found[0][2], 303)
    return render(request, "search.html", text=text, found=found)


RANGES: Final = (1, 7, 30, 90, 365)  # days that can be chosen
_USUAL_DAYS: Final = 30
_MOST: Final = 1000  # devices that are added up to their hosts
_SHOWN: Final = 50
_SLOW_S: Final = 15.0

_DEVICE_COLUMNS: Final = (
    "device",
    "host",
    "expected_gpu_hours_lost",
    "verdicts",
    "jobs",
    "open_verdicts",
    "last_seen_at",
)


async def devices_page(request: Request) -> Response:
    """Show the devices on which time was lost within a range of days."""
    database, days = console_of(request).database, days_of(request.query_params.get("days"))
    devices, switches, offenders = await asyncio.gather(
        ask(database, "time_lost_by_device", days=days, limit=_MOST),
        ask(database, "cost_by_switch", days=days, limit=_SHOWN),
        ask(database, "repeat_offenders", days=days, limit=_SHOWN),
    )
    shown = Answer(devices.columns, devices.rows[:_SHOWN], devices.chosen, devices.empty)
    return render(
        request, "devices.html", days=days, ranges=RANGES, devices=table_of(shown, _DEVICE_COLUMNS),
        losses=[float(row["expected_gpu_hours_lost"] or 0) for row in named(shown)],
        hosts=hosts_of(named(devices))[:_SHOWN], switches=table_of(switches), offenders=table_of(offenders),
        total=sum(float(row["expected_gpu_hours_lost"] or 0) for row in named(devices)),
        left_out=max(0, len(devices.rows) - _SHOWN),
    )  # fmt: skip


async def device_page(request: Request) -> Response:
    """Show the history of one device, by its place."""
    given = {name: value for name, value in request.query_params.items() if name in ("host", "gpu", "nic", "switch")}
    if not given.get("host") and not given.get("switch"):
        raise HTTPException(404, "A device is found by its host, or is a switch.")
    values: dict[str, Any] = dict(given)
    history = await ask(console_of(request).database, "device_history", **values)
    title = " ".join(f"{'GPU' if name == 'gpu' else name} {value}" for name, value in given.items() if name != "host")
    return render(request, "device.html", title=title or "all devices", host=given.get("host"),
                  history=table_of(history), starts=None)  # fmt: skip


async def host_page(request: Request) -> Response:
    """Show which jobs ran on a host, and which verdicts accuse it or a device on it."""
    host, database = request.path_params["host"], console_of(request).database
    starts, history = await asyncio.gather(
        ask(database, "host_history", host=host), ask(database, "device_history", host=host)
    )
    if not host or not (starts.rows or history.rows):
        raise HTTPException(404, f"No host of the name {host!r} is known: no job ran on it, no verdict accuses it.")
    return render(request, "device.html", title=f"host {host}", host=None, history=table_of(history),
                  starts=table_of(starts))  # fmt: skip


async def ask(database: ConsoleDatabase, question: str, keep_s: float = _SLOW_S, **values: Any) -> Answer:
    """Run a question that ships. Raises `InputError` for values that do not fit, and `ServiceError`."""
    key = (question, tuple(sorted(values.items())))
    return await database.ask(key, lambda client: run(client, question, values), keep_s)


def days_of(text: str | None) -> int:
    """Return the days that were chosen, of `RANGES`.

    >>> days_of("7"), days_of(None), days_of("hostile")
    (7, 30, 30)
    """
    return next((days for days in RANGES if str(days) == text), _USUAL_DAYS)


def hosts_of(devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the loss of each host's devices, the costliest host first; devices without a host are left out. Pure."""
    by_host: dict[str, list[Mapping[str, Any]]] = {}
    for row in devices:
        if row["host"] is not None:
            by_host.setdefault(row["host"], []).append(row)
    found = [
        {"host": host, "gpu_hours": sum(float(one["expected_gpu_hours_lost"] or 0) for one in own),
         "devices": len(own), "open_verdicts": sum(int(one["open_verdicts"]) for one in own)}
        for host, own in by_host.items()
    ]  # fmt: skip
    return sorted(found, key=lambda one: (-one["gpu_hours"], one["host"]))


_LETTERS: Final = 50
_SILENT_JOBS: Final = 3
_HEALTH_KEPT_S: Final = 4.0

Letters = tuple[int, list[dict[str, Any]]]


async def pipeline_page(request: Request) -> Response:
    """Show the pipeline's state; each part reports by itself that its service is away."""
    console = console_of(request)
    (health, silent, database_trouble), (letters, kafka_trouble) = await asyncio.gather(
        _of_database(console), _of_kafka(console)
    )
    return render(
        request, "pipeline.html", 200 if database_trouble is None else 503, health=health, silent=silent,
        database_trouble=database_trouble, letters=letters, kafka_trouble=kafka_trouble,
        alerts_trouble=None if console.alerts is None else console.alerts.trouble, now_s=time.time(),
        shown_letters=_LETTERS,
    )  # fmt: skip


async def _of_database(console: Console) -> tuple[Table | None, list[tuple[str, Table]], str | None]:
    database = console.database
    try:
        answer = await ask(database, "pipeline_health", _HEALTH_KEPT_S)
        jobs = [row["job"] for row in named(answer) if row["silent_ranks"]][:_SILENT_JOBS]
        silent = await asyncio.gather(*(ask(database, "silent_ranks", _HEALTH_KEPT_S, job=job) for job in jobs))
    except ServiceError as error:
        return None, [], str(error)
    return table_of(answer), list(zip(jobs, map(table_of, silent), strict=True)), None


async def _of_kafka(console: Console) -> tuple[Letters | None, str | None]:
    kafka = console.kafka
    if kafka is None:
        return None, "This console was told to leave Kafka alone (--no-kafka)."

    async def read() -> Letters:
        # Kafka's client blocks: in a thread of its own it holds no other page up.
        return await asyncio.to_thread(newest_letters, kafka, _LETTERS)

    try:
        return await console.answers.get("letters", read, _HEALTH_KEPT_S), None
    except ServiceError as error:
        return None, str(error)


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
    AND (rank IN {ranks:Array(UInt32)} OR host IN {hosts:Array(String)})
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
    revisions = sorted(named(history), key=lambda row: row["revision"])
    for revision, rows in groupby(revisions, lambda row: row["revision"]):
        own = list(rows)
        event, severity, lost = (own[0][name] for name in ("event", "severity", "gpu_hours_lost"))
        suspects = [f"{row['device']}, {percent(row['probability'])}" for row in own if row["device"] is not None]
        facts = ["; or ".join(suspects[:_SUSPECTS]) or "no device is accused"]
        facts += [] if lost is None else [f"{amount(lost)} GPU-hours lost until then"]
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


def reported_on(client: Client, screen: Screen) -> Sequence[Sequence[Any]]:
    """Return the reports of the first suspect's ranks and host, from before the incident until it was over."""
    verdict = screen.verdict
    begin_ns = verdict.time_ns if screen.since_ns is None else screen.since_ns
    end_ns = screen.now_ns if verdict.state == "open" else verdict.time_ns
    if begin_ns is None or end_ns is None or not verdict.suspects:
        return ()
    if verdict.state == "closed" and verdict.kind in STANDSTILLS and math.isfinite(verdict.lost_s):
        end_ns += round(verdict.lost_s * 1e9)  # its time is when it began to stand
    first = verdict.suspects[0]
    values = {
        "job": verdict.job, "attempt": verdict.attempt, "ranks": list(first.ranks[:_MOST_RANKS]),
        "hosts": [] if first.host is None else [first.host],
        "begin": begin_ns - _BEFORE_NS, "end": end_ns + _AFTER_NS,
    }  # fmt: skip
    return client.query(_REPORTED, parameters=values).result_rows


async def incident_page(request: Request) -> Response:
    """Show a verdict; a job's name leads to its newest one."""
    which, console = request.path_params["verdict_id"], console_of(request)
    try:
        screen, history, reported = await read_incident(console, which)
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
        timeline=timeline_of(verdict, history, reported, said, console.least_severity),
        thanks=asked if asked in (*WORDS, "muted") else None,
        mutable=mutable_of(verdict), muted_for=MUTED_FOR, mutes=await mutes_on(console, verdict),
        now_s=time.time(),
    )  # fmt: skip


async def read_incident(console: Console, which: str) -> tuple[Screen, Answer, Sequence[Sequence[Any]]]:
    """Return a verdict's screen, its history, and the reports of devices.

    Raises `InputError` where it is not stored, and `ServiceError`.
    """
    verdict = await console.database.ask(("verdict", which), lambda client: find_verdict(client, which))
    if verdict is None:
        raise InputError(f"verdict must be one that is stored; got {which!r}")

    def read(client: Client) -> tuple[Screen, Answer, Sequence[Sequence[Any]]]:
        found = found_in_database(client, verdict, console.database.source, time.time_ns())
        screen = gather(found, console.runbook_url)
        wanted = {"verdict_id": verdict.verdict_id, "limit": _REVISIONS}
        return screen, run(client, "suspicion_history", wanted), reported_on(client, screen)

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
    kind = DEVICE_KINDS.get(verdict.suspects[0].device) if verdict.suspects else None
    # Nobody accuses the host of a switch's first rank.
    host = host_of(alert) if kind is not None and "host" in kind.named_by else None
    where = "all jobs" if kind is not None and kind.named_by else "this job"  # the name of a link holds its job
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
    Route("/devices", devices_page, name="devices"),
    Route("/devices/history", device_page, name="device"),
    Route(f"/hosts/{{host:{NAME}}}", host_page, name="host"),
    Route("/pipeline", pipeline_page, name="pipeline"),
    Route("/questions", questions_page, name="questions"),
    Route("/questions/{name}", question_page, name="question"),
    Route("/search", search_page, name="search"),
)
