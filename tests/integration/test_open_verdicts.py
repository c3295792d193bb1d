"""Notices, checks, the console and SQL agree on whether a verdict is over, and on what it costs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from irregulars.infra.console.jobs import now_of
from irregulars.infra.showing.found import gather
from irregulars.infra.showing.from_database import find_verdict, found_in_database
from irregulars.infra.showing.text_page import cost_text, title_text
from irregulars.messages.judgements import Judgements, Suspect, Verdict
from irregulars.messages.records import UNKNOWN
from irregulars.sinks.advice import gpu_hours_lost, gpu_hours_per_hour
from irregulars.sinks.alerts import alert_of
from irregulars.sinks.connection import DatabaseSettings, connected
from irregulars.sinks.investigations import run
from irregulars.sinks.notices.actions.actions import actions_of
from irregulars.sinks.notices.actions.feed import check_host
from irregulars.sinks.notices.incidents import Incidents
from irregulars.sinks.notices.notice import Notice
from irregulars.sinks.notices.policy import Deliver, Rules, decide
from irregulars.sinks.tables import tables_of
from tests.conftest import ClickHouseAddress
from tests.infra.grafana.macros import View, expand
from tests.infra.grafana.queries import FOLDER, query
from tests.integration.pipelines import own_database, store
from tests.integration.test_clickhouse import answer
from tests.sinks import made_up_job
from tests.sinks.recorded_jobs import rows_of_recording

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = pytest.mark.integration

NOW_NS = time.time_ns()
SILENCE_S = 600
ITERATIONS = made_up_job.ITERATIONS
NIC = "gloo-slow-nic"
VERDICT_SQL = (FOLDER / "verdict.sql").read_text("utf-8")


@pytest.fixture(scope="module")
def own(clickhouse: ClickHouseAddress) -> Iterator[DatabaseSettings]:
    with own_database(clickhouse, {}) as settings:
        yield settings


@pytest.fixture(scope="module")
def client(own: DatabaseSettings) -> Iterator[Client]:
    with connected(own) as client:
        yield client


# --- is it over? ----------------------------------------------------------------------------------------------------


def hang(job: str, **changes: Any) -> Verdict:
    gpu = Suspect("gpu", 1, (1,), 0.9, host=f"host-{job}", gpu=1)
    return replace(
        Verdict(
            f"{job}:0:{ITERATIONS - 1}:0", 1, "open", job, "hang", (ITERATIONS - 1, ITERATIONS), math.nan,
            SILENCE_S, "world", (gpu,), "rank 1 did not arrive", world_size=4, time_ns=NOW_NS - 2 * SILENCE_S * 10**9,
            event="opened", severity="page", layer="hardware",
        ),
        **changes,
    )  # fmt: skip


def stored(own: DatabaseSettings, verdict: Verdict, *, has_times: bool = True) -> None:
    """Store a job with a verdict on its last iteration; not `has_times`: no source tells when one began."""
    job = verdict.job
    announcements = [replace(made_up_job.announcement(rank), job=job) for rank in range(4)]
    iterations = [
        replace(
            made_up_job.judged(at), job=job, verdict_ids=(),
            start_ns=(verdict.time_ns or 0) + at * 10**8 if has_times else UNKNOWN,
        )
        for at in range(ITERATIONS)
    ]  # fmt: skip
    store(own, tables_of(Judgements(job, announcements, iterations, verdicts=[verdict])))


def python_says(verdict: Verdict) -> dict[str, bool]:
    """Those who know nothing but the messages of the topic ``alerts``."""
    message = alert_of(verdict)
    assert message is not None
    incident = Incidents().apply(json.loads(message), NOW_NS)
    host = verdict.suspects[0].host or ""
    return {
        "notices": isinstance(decide(incident, None, Rules(hold_s=0), (), NOW_NS), Deliver),
        "node-check": check_host([verdict], host)[0] == 1,
    }


def sql_says(client: Client, job: str) -> dict[str, bool]:
    jobs, incidents = (run(client, name, {"limit": 1000}) for name in ("jobs_now", "open_now"))
    now = now_of(jobs, incidents, {}, NOW_NS / 1e9, silence_s=600.0)
    (line,) = [one for one in now.jobs if one.row["job"] == job] or [None]
    verdict = find_verdict(client, job)
    assert verdict is not None
    screen = gather(found_in_database(client, verdict, "test", NOW_NS))
    urgent = [row["job"] for row in answer(client, "most_urgent", days=9999, limit=1000)]
    lost = [row for row in answer(client, "time_lost_by_device", days=9999) if row["host"] == f"host-{job}"]
    return {
        "open_now": job in [row["job"] for row in answer(client, "open_now")],
        "console: incidents": job in [one["job"] for one in now.incidents],
        "console: jobs": line is not None and line.row["job"] in [one.row["job"] for one in now.heard]
        and line.row["open_verdicts"] == 1,
        "show": "(open, page)" in title_text(screen) and "while it lasted" not in cost_text(screen),
        "most_urgent": urgent.index(job) < urgent.index("gone"),
        "time_lost_by_device": [row["open_verdicts"] for row in lost] == [1],
    }  # fmt: skip


def test_a_hang_is_over_for_all_when_its_verdict_closes(own: DatabaseSettings, client: Client) -> None:
    # The costliest page of all that are over: open ones come before it, all others behind it.
    over = {"revision": 2, "state": "closed", "event": "closed"}
    store(own, tables_of(Judgements("gone", verdicts=[hang("gone", **over, close_reason="stopped", lost_s=1e6)])))
    hangs, goes_on = hang("hangs"), hang("goes-on", **over, close_reason="recovered")
    for verdict in (hangs, goes_on):
        stored(own, verdict)
    assert all((python_says(hangs) | sql_says(client, "hangs")).values())
    assert not any((python_says(goes_on) | sql_says(client, "goes-on")).values())
    assert client.query(query("open_counts")).first_row == (1, 0, 0)


def test_a_hang_without_start_times_lost_what_was_published(own: DatabaseSettings, client: Client) -> None:
    stored(own, hang("timeless", time_ns=None), has_times=False)
    [row] = answer(client, "open_now", job="timeless")
    assert (row["since"], row["gpu_hours_lost"]) == (None, round(SILENCE_S * 4 / 3600, 3))
    [job] = [one for one in answer(client, "jobs_now") if one["job"] == "timeless"]
    [health] = [one for one in answer(client, "pipeline_health") if one["job"] == "timeless"]
    assert (job["last_seen_at"], health["newest_at"], health["behind_s"]) == (None, None, None)


def test_a_job_that_hangs_lost_no_more_than_it_had(own: DatabaseSettings, client: Client) -> None:
    stored(own, hang("stands"))
    begin, end = (datetime.fromtimestamp(NOW_NS / 1e9 + shift_s, UTC) for shift_s in (-86_400, 86_400))
    drawn = client.query(expand(query("cost_by_job"), View(begin, end, 60.0, {}))).named_results()
    [panel] = [row for row in drawn if row["job"] == "stands"]
    [told] = [row for row in answer(client, "cost_by_job", days=9999) if row["job"] == "stands"]
    assert panel["share_lost"] == pytest.approx(told["percent"] / 100, abs=1e-3)
    assert 0.9 < panel["share_lost"] <= 1
    assert panel["gpu_hours"] == pytest.approx(told["gpu_hours"], abs=0.01)


# --- what does it cost? ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "closed"])
def test_everybody_says_the_same_number_of_a_recorded_verdict(clickhouse: ClickHouseAddress, is_open: bool) -> None:
    rows = dict(rows_of_recording(NIC))
    newest = len(rows["verdicts"]) - 1 - is_open  # the last revision closes it
    rows["verdicts"] = rows["verdicts"].slice(0, newest + 1)
    rows["suspects"] = rows["suspects"].filter(pa.compute.less_equal(rows["suspects"]["revision"], newest + 1))
    with own_database(clickhouse, rows) as settings, connected(settings) as client:
        verdict = find_verdict(client, NIC)
        assert verdict is not None
        assert (verdict.state == "open") is is_open
        lost, hourly = gpu_hours_lost(verdict), gpu_hours_per_hour(verdict)
        assert lost is not None
        assert hourly is not None
        for name, (said, digits) in lost_says(client, verdict).items():
            assert said == pytest.approx(lost, abs=10**-digits / 2), name
        for name, (said, digits) in hourly_says(client, verdict, is_open).items():
            assert said == pytest.approx(hourly, abs=10**-digits / 2 + 1e-6), name
        # What an open one lost since its revision is told at the share that was lost until then.
        assert hourly == pytest.approx(of_stored_iterations(client, verdict), rel=0.03 if is_open else 0.01)
        # Since its last revision it went on: who asks when it was seen is told the newest time.
        assert verdict.time_ns is not None
        for name, told in seen_says(client, verdict).items():
            assert told.replace(tzinfo=UTC).timestamp() == pytest.approx(verdict.time_ns / 1e9, abs=0.001), name


def lost_says(client: Client, verdict: Verdict) -> dict[str, tuple[float, int]]:
    """Return who says what was lost so far, GPU-hours, and to how many digits."""
    message = alert_of(verdict)
    assert message is not None or verdict.event == "continued"
    found = {} if message is None else {"alert": (json.loads(message)["gpu_hours_lost"], 6)}
    days = {"days": 9999}
    asks: dict[str, Callable[[], Any]] = {
        "most_urgent": lambda: answer(client, "most_urgent", **days)[0]["gpu_hours_lost"],
        "cost_by_job": lambda: answer(client, "cost_by_job", **days)[0]["gpu_hours_lost"],
        "cost_by_week": lambda: sum(row["gpu_hours_lost"] for row in answer(client, "cost_by_week", weeks=2000)),
        "blamed": lambda: answer(client, "blamed")[0]["gpu_hours_lost"],
        "dashboard": lambda: named(client, VERDICT_SQL, {"verdict": verdict.verdict_id})["gpu_hours_lost"],
    }
    found |= {name: (ask(), 3) for name, ask in asks.items()}
    found["show"] = (shown(client, verdict).gpu_hours, 6)
    return found


def seen_says(client: Client, verdict: Verdict) -> dict[str, datetime]:
    """Return who says when the cause was seen last."""
    seen_s, job = (verdict.time_ns or 0) / 1e9, {"job": verdict.job, "attempt": str(verdict.attempt)}
    begin, end = (datetime.fromtimestamp(seen_s + shift_s, UTC) for shift_s in (-1, 3600))
    [span] = client.query(expand(query("verdict_spans"), View(begin, end, 1.0, job))).named_results()
    return {
        "red span": span["timeEnd"],
        "cost_by_switch": answer(client, "cost_by_switch", days=9999)[0]["last_seen_at"],
        "repeat_offenders": answer(client, "repeat_offenders", days=9999, at_least=1)[0]["last_seen_at"],
    }


def hourly_says(client: Client, verdict: Verdict, is_open: bool) -> dict[str, tuple[float, int]]:
    """Return who says what is lost in an hour, GPU-hours, and to how many digits."""
    found = {
        "show": (shown(client, verdict).gpu_hours_per_hour, 6),
        "dashboard": (named(client, VERDICT_SQL, {"verdict": verdict.verdict_id})["gpu_hours_per_hour"], 6),
    }
    if is_open:
        jobs, incidents = (run(client, name, {"limit": 9}) for name in ("jobs_now", "open_now"))
        now = now_of(jobs, incidents, {}, time.time(), 600.0)
        found["open_now, console: incident"] = (now.incidents[0]["gpu_hours_per_hour"], 2)
        found["console: job"] = (now.jobs[0].cost, 2)
        message = alert_of(replace(verdict, event="opened"))
        assert message is not None
        action = actions_of(Notice("opened", json.loads(message), "ticket"))[0]
        found["actions"] = (action.gpu_hours_lost_per_hour, 6)
    return found


def shown(client: Client, verdict: Verdict) -> Any:
    return gather(found_in_database(client, verdict, "test", NOW_NS)).cost


def named(client: Client, sql: str, values: dict[str, Any]) -> dict[str, Any]:
    result = client.query(sql, values)
    return dict(zip(result.column_names, result.result_rows[0], strict=True))


def of_stored_iterations(client: Client, verdict: Verdict) -> float:
    """Return the definition, counted in the iterations that are stored: lost time by time, times GPUs."""
    elapsed = client.query(
        "SELECT sum(elapsed_ns) / 1e9 FROM iterations FINAL WHERE job = {job:String} AND phase = 'train' "
        "AND iteration >= {first:Int64} AND iteration < {past:Int64}",
        {"job": verdict.job, "first": verdict.iterations[0], "past": verdict.iterations[1]},
    ).first_row[0]
    return float(verdict.lost_s / elapsed * verdict.world_size)
