"""The first page, with all jobs and open incidents, and the page of one job: times, heat map, verdicts, attempts."""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from irregulars.errors import ServiceError
from irregulars.infra.console.rendering import NAME, Console, console_of, is_part, named, render, seconds, table_of
from irregulars.infra.showing.found import BINS, WORK_KINDS, Cell, Iteration, median_of
from irregulars.infra.showing.from_database import CELLS, read_cells
from irregulars.infra.showing.html_page import (
    extremes_of,
    heat_map,
    numerics_charts,
    small_line,
    times_chart,
    ways_chart,
)
from irregulars.infra.showing.numerics import BANDS, NUMERIC_KINDS, ROWS, Band
from irregulars.infra.showing.numerics import SHOWN as SHOWN_NUMERICS
from irregulars.infra.showing.transfers import Way, communicators_of, matrix_of
from irregulars.messages.kinds import STANDSTILLS
from irregulars.printing import counted
from irregulars.sinks.investigations import Answer, run
from irregulars.words import duration, rate

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

NEWEST: Final = 120  # iterations of a job's small line: a minute or two of most jobs
SHOWN: Final = 1_800  # iterations of a job's page, as the server draws it: three a bar
_HEAT_ITERATIONS: Final = 60

JobStart = tuple[str, int]  # a job and its attempt

_NEWEST: Final = """
SELECT job, attempt, iteration, toUnixTimestamp64Nano(started_at), elapsed_ns, reference_ns, is_irregular,
    toBool(notEmpty(verdict_ids))
FROM judged_iterations
WHERE (job, attempt) IN {starts:Array(Tuple(String, Int64))} AND phase = 'train'
ORDER BY job, attempt, iteration DESC
LIMIT {each:UInt32} BY job, attempt"""

_ATTEMPTS: Final = """
SELECT places.attempt, places.world_size, places.hosts, times.first_at, times.last_at, times.iterations,
    times.irregular, times.newest
FROM
(
    SELECT attempt, max(world_size) AS world_size, uniqExact(host) AS hosts
    FROM jobs FINAL
    WHERE job = {job:String}
    GROUP BY attempt
) AS places
LEFT JOIN
(
    SELECT attempt, toNullable(min(started_at)) AS first_at, toNullable(max(started_at)) AS last_at,
        count() AS iterations, countIf(is_irregular) AS irregular, toNullable(max(iteration)) AS newest
    FROM iterations FINAL
    WHERE job = {job:String}
    GROUP BY attempt
) AS times ON times.attempt = places.attempt
ORDER BY places.attempt DESC
LIMIT 50"""


_WANTED: Final = """(
    SELECT iteration FROM iterations FINAL WHERE job = {job:String} AND attempt = {attempt:Int64} AND phase = 'train'
    ORDER BY iteration DESC LIMIT {limit:UInt32})"""

_DOUBTS: Final = """
SELECT first_iteration, kind FROM verdicts FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND kind IN {kinds:Array(String)}
ORDER BY first_iteration"""


def newest_iterations(
    client: Client, starts: Sequence[JobStart], each: int = NEWEST
) -> Mapping[JobStart, list[Iteration]]:
    """Return the newest iterations of each job, in their order."""
    found: dict[JobStart, list[Iteration]] = defaultdict(list)
    if not starts:
        return found
    rows = client.query(_NEWEST, parameters={"starts": list(starts), "each": each}).result_rows
    for job, attempt, *values in reversed(rows):
        found[job, attempt].append(Iteration(*values))
    return found


def attempts_of(client: Client, job: str) -> list[dict[str, Any]]:
    """Return the starts of a job, the newest first; times are None where no iteration of it is judged."""
    names = ("attempt", "gpus", "hosts", "first_s", "last_s", "iterations", "irregular", "newest")
    rows = client.query(_ATTEMPTS, parameters={"job": job}).result_rows
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [one | {name: seconds(one[name]) for name in ("first_s", "last_s")} for one in found]


def cells_of(client: Client, job: str, attempt: int, around: int, gpus: int) -> tuple[list[Cell], int]:
    """Return the heat map of the iterations around one, and how many ranks share one of its rows."""
    bin_ranks = -(-gpus // BINS) or 1
    first = max(0, around - _HEAT_ITERATIONS // 2)
    wanted = list(range(first, first + _HEAT_ITERATIONS))
    values = {"job": job, "attempt": attempt, "bin_ranks": bin_ranks, "wanted": wanted}
    return read_cells(client.query(CELLS, parameters=values).result_rows), bin_ranks


_IRREGULAR: Final = 50
_VERDICTS: Final = 50
_SLOW_S: Final = 10.0  # how long an answer that changes slowly is shared
_NUMERICS_S: Final = 30.0  # of 10,000 ranks they take two seconds to read
_NOW: Final = 5  # iterations whose median is called the time now: one alone may be a hiccup


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a job is."""

    now_ns: float  # median of the newest iterations
    usual_ns: float  # mean of the window before; NaN where not known
    line: Markup  # the drawing
    text: str  # both in words, for people who do not see it
    stands: bool  # its newest iteration does not end

    @property
    def ratio(self) -> float:
        """Now over usual; NaN where one of them is not known."""
        return self.now_ns / self.usual_ns if self.usual_ns > 0 else math.nan


def pace_of(iterations: Sequence[Iteration], *, stands: bool = False) -> Pace | None:
    """Return how fast a job is, by its newest iterations; None: it has none. `stands`: a hang is open."""
    if not iterations:
        return None
    ended = iterations
    if stands and iterations[-1].has_cause:  # it is stored as far as it came: the shortest of all
        ended = iterations[:-1] or iterations
        iterations = [*iterations[:-1], iterations[-1]._replace(elapsed_ns=max(one.elapsed_ns for one in ended))]
    now_ns = median_of([one.elapsed_ns for one in ended[-_NOW:]])
    known = [one.reference_ns for one in iterations if one.reference_ns is not None]
    usual_ns = known[-1] if known else math.nan
    irregular = sum(one.is_irregular is True for one in iterations)
    newest = f"of the newest {len(iterations)}, {irregular} irregular"
    text = f"{'stands still' if stands else f'{duration(now_ns)} now'}, usual {duration(usual_ns)}; {newest}"
    return Pace(now_ns, usual_ns, Markup(small_line(iterations, usual_ns, text)), text, stands)


async def _attempts(request: Request) -> tuple[Sequence[Row], Row]:
    """Return the starts of a request's job, and the one that is wanted."""
    job, wanted = request.path_params["job"], request.query_params.get("attempt")
    attempts = await console_of(request).database.ask(("attempts", job), lambda client: attempts_of(client, job))
    for one in attempts:
        if wanted is None or str(one["attempt"]) == wanted:
            return attempts, one
    raise HTTPException(404, f"No job of the name {job!r} is stored, or no such attempt of it.")


async def job_page(request: Request) -> Response:
    """Show a job, or one attempt of it; or only the parts that change while it runs."""
    job, console = request.path_params["job"], console_of(request)
    attempts, chosen = await _attempts(request)
    shown = NEWEST if is_part(request) else SHOWN
    ask, start = console.database.ask, (job, chosen["attempt"])
    values = {"job": job, "attempt": start[1], "limit": _IRREGULAR}
    times, irregular, blamed = await asyncio.gather(
        ask(("times", start, shown), lambda client: newest_iterations(client, [start], shown)[start]),
        ask(("irregular", start), lambda client: run(client, "irregular_iterations", values)),
        ask(("blamed", start), lambda client: run(client, "blamed", {**values, "limit": _VERDICTS}), _SLOW_S),
    )
    opened = [one for one in named(blamed) if one["state"] == "open"]
    charts = {} if is_part(request) else await _charts(console, start, times, chosen["gpus"])
    charts["numerics"] = await _numerics(console, start, chosen["gpus"])
    return render(
        request, "job.html", job=job, attempt=chosen, attempts=attempts,
        pace=pace_of(times[-NEWEST:], stands=any(one["kind"] in STANDSTILLS for one in opened)),
        verdicts=table_of(blamed, _VERDICT_COLUMNS),
        # Changes when a verdict comes or is revised: charts then ask for their marks again.
        blamed=f"{zlib.crc32(repr(blamed.rows).encode()):08x}",
        # A verdict has a row for each of its suspects.
        verdict_count=len({row[blamed.columns.index("verdict_id")] for row in blamed.rows}),
        irregular=table_of(irregular, _IRREGULAR_COLUMNS),
        # Of these the heat map would point at innocents.
        elsewhere=[one for one in opened if one["kind"] not in WORK_KINDS][:1],
        is_running=chosen is attempts[0]
        and (chosen["last_s"] is None or time.time() - chosen["last_s"] < console.silence_s), **charts,
    )  # fmt: skip


async def _charts(console: Console, start: JobStart, times: list[Iteration], gpus: int) -> dict[str, Any]:
    """Return the charts that the page shows until the browser has drawn its own, or in their place."""
    around = _around(times)
    cells, bin_ranks = await console.database.ask(
        ("cells", start, around), lambda client: cells_of(client, *start, around, gpus), _SLOW_S
    )
    return {
        "around": around, "times": times, "chart": Markup(times_chart(times)) if times else None,
        "heat": Markup(heat_map(cells, bin_ranks, ())) if cells else None,
        "extremes": extremes_of(cells) if cells else "", "bin_ranks": bin_ranks,
    }  # fmt: skip


async def _numerics(console: Console, start: JobStart, gpus: int) -> list[tuple[str, Markup, str]]:
    """Return title, chart and legend of loss and norms in the newest iterations; empty where none are stored."""
    limit = max(NEWEST, min(SHOWN_NUMERICS, ROWS // max(gpus, 1)))
    job, attempt = start

    def read(client: Client) -> list[tuple[str, Markup, str]]:
        values = {"job": job, "attempt": attempt, "limit": limit, "kinds": list(NUMERIC_KINDS)}
        # The newest iterations are chosen within the question, which spares asking for their numbers first.
        rows = client.query(BANDS.replace("{wanted:Array(Int64)}", _WANTED), parameters=values).result_rows
        marks = client.query(_DOUBTS, parameters=values).result_rows if rows else ()
        charts = numerics_charts([Band(*row) for row in rows], [(first, kind) for first, kind in marks])
        return [(title, Markup(chart), legend) for title, chart, legend in charts]

    return await console.database.ask(("numerics", start), read, _NUMERICS_S)


_VERDICT_COLUMNS: Final = (
    "device", "kind", "severity", "state", "probability", "host", "rank", "first_iteration", "gpu_hours_lost",
    "verdict_id", "evidence",
)  # fmt: skip

_IRREGULAR_COLUMNS: Final = (
    "iteration", "started_at", "elapsed_s", "usual_s", "times_usual", "verdict_ids", "part", "part_s", "part_usual_s",
)  # fmt: skip


_HOLE: Final = 5  # regular iterations between two irregular ones of one stretch at most


def _around(times: list[Iteration]) -> int:
    """Return the iteration to look at: the newest irregular stretch's first, else the newest of all."""
    if not times:
        return 0
    first = None
    for one in reversed(times):
        if one.is_irregular:
            first = one.iteration
        elif first is not None and first - one.iteration > _HOLE:
            break
    return times[-1].iteration if first is None else first


_CELLS: Final = 1 << 17  # of the matrix that are read at most, by sender: fewer would leave out the slow ones
_PARTS: Final = 4096  # of communicators, the slowest first
_SLICES: Final = 12
_RANKED: Final = 20


async def transfers_page(request: Request) -> Response:
    """Show who is slow to send and to receive, and which communicators are slow, over the stored iterations.

    A page of its own: of a large job the questions take seconds.
    """
    job, attempt = request.path_params["job"], (await _attempts(request))[1]["attempt"]

    async def asked(question: str, make: Callable[[Answer], Any], **more: int) -> Any:
        values = {"job": job, "attempt": attempt, **more}
        read = lambda client: make(run(client, question, values))  # noqa: E731 in its thread: large answers take long
        return await console_of(request).database.ask((question, *values.values()), read, _NUMERICS_S)

    def matrices(answer: Answer) -> tuple[str, list[list[Way]]]:
        return answer.empty, [matrix_of(named(answer), is_rate=is_rate) for is_rate in (False, True)]

    (none, (latencies, rates)), ranking, slices = await asyncio.gather(
        asked("transfer_matrix", matrices, limit=_CELLS),
        asked("slowest_communicators", lambda one: one, limit=_RANKED),
        asked("slowest_communicators", lambda one: communicators_of(named(one)), limit=_PARTS, slices=_SLICES),
    )  # fmt: skip
    charts = (
        ("Latency, sender by receiver", latencies, "receiver", duration, none),
        ("Rate, sender by receiver", rates, "receiver", lambda ns: rate(1e18 / ns), none),
        ("Communicators over time, the slowest first", slices, "iterations from", duration, ranking.empty),
    )
    return render(
        request, "transfers.html", job=job, attempt=attempt,
        charts=[(title, Markup(ways_chart(rows, title, name, tell)) if rows else None, empty)
                for title, rows, name, tell, empty in charts],
        ranking=table_of(ranking, [one for one in ranking.columns if one != "from_iteration"]),
    )  # fmt: skip


_MOST_JOBS: Final = 200
_MOST_INCIDENTS: Final = 100
_LATE_S: Final = 60.0  # seconds since its newest iteration began after which a job counts as late, at the earliest
# The same in iterations: what is stored is an iteration that ended, so its begin is up to two of them ago.
_LATE_ITERATIONS: Final = 3
_HEARD: Final = ("running", "late")
_URGENCY: Final = {"page": 0, "ticket": 1, "note": 2}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job, as a line."""

    row: Row  # of the question `jobs_now`
    pace: Pace | None  # its newest iterations; None: none is judged yet
    cost: float | None  # GPU-hours an hour that its open verdicts cost; None: not known, or none is open
    seen_s: float | None  # start of its newest iteration, seconds since the epoch
    # ``running``, ``late`` (no iteration for a minute, or for three of its own), ``silent`` (none for so long that it
    # counts as over), or ``ended`` (it reported its end)
    state: str


@dataclass(frozen=True, slots=True)
class Now:
    """All of the page."""

    incidents: Sequence[Row]
    jobs: Sequence[JobLine]
    empty: str
    no_jobs: str

    @property
    def heard(self) -> Sequence[JobLine]:
        """Jobs that run, or have something open."""
        return [one for one in self.jobs if one.state in _HEARD or one.row["open_verdicts"]]

    @property
    def is_any_heard(self) -> bool:
        """Whether some job runs: else it is no good sign that nothing is open."""
        return any(one.state in _HEARD for one in self.jobs)

    def over(self, state: str) -> Sequence[JobLine]:
        """Jobs that have nothing open, and ended or fell silent."""
        return [one for one in self.jobs if one.state == state and not one.row["open_verdicts"]]

    @property
    def in_short(self) -> str:
        """The page in one sentence, for titles and screen readers."""
        pages = sum(one["severity"] == "page" for one in self.incidents)
        late = sum(one.state == "late" for one in self.jobs)
        parts = [counted(len(self.incidents), "open incident")]
        parts += [counted(pages, "page")] if pages else []
        parts.append(f"{counted(sum(one.state in _HEARD for one in self.jobs), 'job')} heard")
        parts += [f"{late} late"] if late else []
        return ", ".join(parts)


async def jobs_now_page(request: Request) -> Response:
    """Show open incidents and all jobs; without a database, the newest alerts."""
    console = console_of(request)
    alerts = [] if console.alerts is None else console.alerts.newest(8)
    try:
        now = await read_now(console)
    except ServiceError as error:
        return render(request, "jobs_now.html", 503, now=None, trouble=str(error), alerts=alerts)
    return render(request, "jobs_now.html", now=now, trouble=None, alerts=alerts)


async def read_now(console: Console) -> Now:
    """Return the page's values. Raises `ServiceError`."""
    database = console.database
    jobs, incidents = await asyncio.gather(
        database.ask("jobs_now", lambda client: run(client, "jobs_now", {"limit": _MOST_JOBS})),
        database.ask("open_now", lambda client: run(client, "open_now", {"limit": _MOST_INCIDENTS})),
    )
    starts = tuple((row["job"], row["attempt"]) for row in named(jobs))
    newest = await database.ask(("newest", starts), lambda client: newest_iterations(client, starts))
    return now_of(jobs, incidents, newest, time.time(), console.silence_s)


def now_of(
    jobs: Answer, incidents: Answer, newest: Mapping[JobStart, Sequence[Any]], now_s: float, silence_s: float
) -> Now:
    """Put the answers together; the most urgent jobs come first, then those that were heard last. Pure."""
    open_ones = named(incidents)
    lines = []
    for row in named(jobs):
        own = newest.get((row["job"], row["attempt"]), ())
        pace, seen_s = pace_of(own, stands=row.get("kind") in STANDSTILLS), seconds(row["last_seen_at"])
        late_s = _LATE_S if pace is None else max(_LATE_S, _LATE_ITERATIONS * pace.now_ns / 1e9)
        state = (
            "ended" if row.get("end_reason")
            else "silent" if seen_s is None or now_s - seen_s > silence_s
            else "late" if now_s - seen_s > late_s
            else "running"
        )  # fmt: skip
        lines.append(JobLine(row, pace, _cost(row["job"], open_ones), seen_s, state))

    def urgency(line: JobLine) -> tuple[int, float, float]:
        known = _URGENCY.get(str(line.row["severity"]), len(_URGENCY)) if line.row["open_verdicts"] else len(_URGENCY)
        return known, -(line.cost or 0.0), -(line.seen_s or 0.0)

    lines.sort(key=urgency)
    return Now(open_ones, lines, incidents.empty, jobs.empty)


def _cost(job: str, incidents: Sequence[Row]) -> float | None:
    known = [one["gpu_hours_per_hour"] for one in incidents if one["job"] == job]
    # Costs that are not known are left out: in a sum they would hide the others.
    told = [float(one) for one in known if one is not None and math.isfinite(one)]
    return sum(told) if told else None


ROUTES: Final[Sequence[BaseRoute]] = (
    Route("/", jobs_now_page, name="now"),
    Route(f"/jobs/{{job:{NAME}}}", job_page, name="job"),
    Route(f"/transfers/{{job:{NAME}}}", transfers_page, name="transfers"),
)
