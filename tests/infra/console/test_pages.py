"""Pages of a real database with recorded jobs: they tell what `irregulars show` and `irregulars sql` tell."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from irregulars.infra.console.rendering import incident_path, job_path
from irregulars.infra.showing.found import gather
from irregulars.infra.showing.from_database import find_verdict, found_in_database
from irregulars.infra.showing.text_page import headline
from irregulars.messages.device_events import DeviceEvent, batch_of
from irregulars.sinks.connection import DatabaseSettings, connect
from irregulars.sinks.investigations import run, shipped_investigations
from irregulars.sinks.tables import table_of_samples, tables_of
from tests.conftest import ClickHouseAddress
from tests.infra.console.filled import HEALTHY, HUNG, LIVE, OVER
from tests.infra.console.visits import Visit, text_of, visit
from tests.integration.pipelines import own_database
from tests.sinks import made_up_job
from tests.sinks.recorded_jobs import with_columns

pytestmark = pytest.mark.integration

JOBS = tuple(name.rpartition("/")[2] for name in (*OVER, *LIVE, *HEALTHY, HUNG))
SLOW = "gloo-slow-nic"


@pytest.fixture(scope="module")
def client(recorded: DatabaseSettings) -> Iterator[object]:
    found = connect(recorded)
    yield found
    found.close_connections()


def rows(client: object, question: str, **values: object) -> list[dict[str, object]]:
    answer = run(client, question, values)  # type: ignore[arg-type]
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def test_the_first_page_has_every_job_and_every_incident(somebody: Visit, client: object) -> None:
    page, text = somebody.get("/"), text_of(somebody.get("/"))
    assert page.status_code == 200
    assert all(f'href="{job_path(one)}"' in page.text for one in JOBS)
    incidents = rows(client, "open_now")
    assert {one["job"] for one in incidents} == {SLOW, "pp4dp2-hang-inside"}
    for one in incidents:
        assert f'href="{incident_path(str(one["verdict_id"]))}"' in page.text
        assert f"{one['device']}, " in text
    assert "2 open incidents, 1 page, 2 jobs heard" in text
    assert "hang in pp4dp2-hang-inside" in text
    assert "Iterations do not end" in text  # a hang's iterations are not "1.07× usual"


@pytest.mark.parametrize("job", JOBS)
def test_a_jobs_page_has_its_iterations_and_verdicts(somebody: Visit, client: object, job: str) -> None:
    answer = somebody.get(job_path(job))
    text = text_of(answer)
    assert answer.status_code == 200
    irregular = rows(client, "irregular_iterations", job=job, limit=50)
    (first_row,) = re.findall(r"Iterations ([\d,]+), ([\d,]+) irregular", text)
    assert int(first_row[1]) == len(irregular)
    table = re.sub(r" data-label=\"[^\"]*\"", "", answer.text[answer.text.index('id="irregular"') :])
    assert all(f">{one['iteration']}</td>" in table for one in irregular)
    for one in rows(client, "blamed", job=job):
        assert f'href="{incident_path(str(one["verdict_id"]))}"' in answer.text
        assert one["host"] is None or f'href="/hosts/{one["host"]}"' in answer.text


def test_an_old_attempts_hang_does_not_stand_on_the_page_of_the_next_one(clickhouse: ClickHouseAddress) -> None:
    hang = replace(made_up_job.verdict(1), kind="hang", state="open")
    older = tables_of(replace(made_up_job.judgements(), verdicts=[hang]))
    newer = with_columns({name: older[name] for name in ("jobs", "iterations")}, attempt=1, verdict_ids=[])
    with own_database(clickhouse, older, newer) as own, visit(own) as reader:
        assert reader.log_in().status_code == 303
        pages = [text_of(reader.get(f"{job_path(made_up_job.JOB)}?attempt={attempt}")) for attempt in (0, 1)]
    assert [("stands still" in one, made_up_job.VERDICT_ID in one) for one in pages] == [(True, True), (False, False)]


def test_transfers_of_a_job_name_the_slow_sender_and_rank_its_communicators(somebody: Visit, client: object) -> None:
    slow = "tp2pp2dp2-nic-send"
    path = job_path(slow, 0, "transfers")
    assert f'href="{path}"' in somebody.get(job_path(slow)).text
    page = somebody.get(path)
    cells = rows(client, "transfer_matrix", job=slow)
    worst = max(cells, key=lambda one: float(str(one["latency_ms"])))
    told = rf'heat5"><title>rank {worst["sender"]}, receiver {worst["receiver"]}: '
    assert re.search(told + r"[\d.]+ (?:µs|ms)", page.text)
    assert re.search(r"receiver \d+: [\d.]+ [GM]B/s \(usual ", page.text)
    ranking = text_of(page).partition("Communicators by slowness")[2]
    assert all(f"{one['communicator']} {one['operator']}" in ranking
               for one in rows(client, "slowest_communicators", job=slow, limit=3))  # fmt: skip
    (healthy,) = (one.rpartition("/")[2] for one in HEALTHY)
    assert somebody.get(job_path(healthy, 0, "transfers")).status_code == 200
    for job in JOBS:  # each part without rows says why
        said = text_of(somebody.get(job_path(job, 0, "transfers")))
        for question, text, parts in (
            ("transfer_matrix", "No transfers between", 2),
            ("slowest_communicators", "No coll", 2),
        ):
            assert said.count(text) == (0 if rows(client, question, job=job) else parts)
    assert (
        somebody.get(job_path(slow, 7, "transfers")).status_code == somebody.get("/transfers/none").status_code == 404
    )


def test_an_incidents_page_says_what_show_says(somebody: Visit, client: object) -> None:
    (healthy,) = (one.rpartition("/")[2] for one in HEALTHY)
    assert somebody.get(incident_path(healthy)).status_code == 404  # it has no verdict
    for job in set(JOBS) - {healthy}:
        verdict = find_verdict(client, job)  # type: ignore[arg-type]
        assert verdict is not None
        screen = gather(found_in_database(client, verdict, "", time.time_ns()))  # type: ignore[arg-type]
        answer = somebody.get(incident_path(verdict.verdict_id))
        text = text_of(answer)
        assert answer.status_code == 200
        assert headline(screen) in text
        assert all(str(one) in text for one in verdict.iterations[:1])
        assert verdict.evidence in text
        assert all(one.host is None or one.host in text for one in verdict.suspects)
        assert f"revision {verdict.revision}" in text
        newest = somebody.get(incident_path(job))
        assert (newest.status_code, newest.headers["location"]) == (303, incident_path(verdict.verdict_id))
    assert "NIC eth0 on node-1 (rank 1), 99% sure" in text_of(somebody.get(f"/incidents/{SLOW}:0:60:0"))


def test_numbers_that_a_job_sent_are_drawn_and_stand_in_for_times_where_they_are_doubtful(
    clickhouse: ClickHouseAddress, somebody: Visit
) -> None:
    titles = ["Loss", "Gradient norm, after the reduction", "Gradient norm of each rank, before the reduction"]
    doubtful = [replace(made_up_job.verdict(revision), kind="corruption") for revision in (1, 2, 3)]
    rows = tables_of(replace(made_up_job.judgements(), verdicts=doubtful))
    with own_database(clickhouse, rows) as own, visit(own) as reader:
        assert reader.log_in().status_code == 303
        job, incident = reader.get(job_path(made_up_job.JOB)), reader.get(incident_path(made_up_job.VERDICT_ID))
    for page in (job, incident):
        assert [title for title in titles if f">{title}</h2>" in page.text] == titles
        assert "rank 3, iteration 25: inf (median 1)" in page.text
        assert "corruption, from iteration 20 on" in page.text
    assert "Time between operators" in job.text
    assert "Time between operators" not in incident.text
    assert "Gradient norm" not in somebody.get(job_path(SLOW)).text  # it sent none


def test_an_incident_tells_what_was_reported_of_its_device(clickhouse: ClickHouseAddress) -> None:
    began_ns, gpu = made_up_job.START_NS + 20 * 100_000_000, ("node-0", "gpu1")
    others = batch_of([
        *(DeviceEvent(began_ns - (200 - at) * 10**7, 1, "xid", *gpu, at) for at in range(100, 160)),
        *(DeviceEvent(began_ns + at, 1, "ecc", *gpu, at) for at in (1, 2, 3)),
        *(DeviceEvent(began_ns + at, 1, "link_errors", *gpu, at, f"port{at % 2}") for at in (1, 2, 3, 4)),
    ], made_up_job.events().header)  # fmt: skip
    rows = tables_of(made_up_job.judgements()) | {"events": table_of_samples([made_up_job.events(), others])}
    with own_database(clickhouse, rows) as own, visit(own) as reader:
        assert reader.log_in().status_code == 303
        text = text_of(reader.get(incident_path(made_up_job.VERDICT_ID)))
    assert "device gpu1 on node-0: xid 79: GPU has fallen off the bus." in text
    assert "alert closed, ticket: link from eth0 on node-0 to node-1, 89%" in text
    assert "gpu1 on node-0: ecc (3 times until" in text
    assert text.count("link errors: port") == text.count("(2 times until") == 2
    assert "node-0: out of memory: process (python)" in text
    assert ("xid 100" in text, "xid 159" in text) == (False, True)
    assert text.index("xid 79") < text.index("raised, ticket") < text.index("closed, ticket")


def test_devices_and_hosts_are_those_that_cost_time(somebody: Visit, client: object) -> None:
    page = somebody.get("/devices")
    lost = rows(client, "time_lost_by_device", days=30)
    assert page.status_code == 200
    assert len(lost) > 2
    for one in lost:
        assert str(one["device"]) in text_of(page)
        if one["host"] is None:  # a switch is on none
            continue
        assert f'href="/hosts/{one["host"]}"' in page.text
        answer = somebody.get(f"/devices/history?host={one['host']}")
        names = [one[name] for name in ("nic", "gpu") if one[name] is not None]
        assert all(str(name) in text_of(answer) for name in names)
    host = text_of(somebody.get("/hosts/node-1"))
    assert SLOW in host
    assert "Jobs that ran there" in host
    for days in ("1", "365", "0", "-1", "x", "9" * 50):
        assert somebody.get(f"/devices?days={days}").status_code == 200


def test_the_pipelines_page_has_every_job_and_says_that_kafka_is_left_alone(somebody: Visit) -> None:
    answer = somebody.get("/pipeline")
    assert answer.status_code == 200
    assert all(job in answer.text for job in JOBS)
    assert "--no-kafka" in answer.text


def test_every_question_that_ships_is_answered_or_says_what_it_needs(somebody: Visit) -> None:
    listed = somebody.get("/questions").text
    for name, question in shipped_investigations().items():
        assert f'href="/questions/{name}"' in listed
        answer = somebody.get(f"/questions/{name}")
        assert answer.status_code == 200, (name, text_of(answer))
        assert any(one.is_required for one in question.parameters) is ("to ask this" in answer.text), name
    assert "node-1" in somebody.get(f"/questions/blamed?job={SLOW}").text


def test_a_search_finds_jobs_hosts_and_verdicts(somebody: Visit) -> None:
    verdict = f"{SLOW}:0:60:0"
    for text, place in ((SLOW, job_path(SLOW)), ("node-1", "/hosts/node-1"), (verdict, incident_path(verdict))):
        answer = somebody.client.get("/search", params={"q": text})
        assert (answer.status_code, answer.headers["location"]) == (303, place)
    several = somebody.get("/search?q=GLOO").text
    assert f'href="{job_path(SLOW)}"' in several
    assert f'href="{incident_path(verdict)}"' in several
    assert "No job, host or verdict" in somebody.get("/search?q=nothing-of-that-name").text
    assert somebody.get("/search?q=").headers["location"] == "/questions"


def test_the_heat_map_and_the_chart_tell_the_same_iterations(somebody: Visit) -> None:
    seen = somebody.get(f"/api/jobs/{SLOW}/0/heat-map").json()
    assert (seen["ranks"], seen["first"], seen["last"]) == (4, 0, 72)
    assert [one["verdict_id"] for one in seen["marks"]] == [f"{SLOW}:0:60:0"]
    times = somebody.get(f"/api/jobs/{SLOW}/0/iteration-times").json()
    assert times["iterations"] == seen["iterations"]
    assert times["irregular"] == seen["irregular"]
    assert "error" in somebody.get("/api/jobs/unknown/0/heat-map").json()


@pytest.mark.parametrize("path", [
    "/jobs/unknown", f"/jobs/{SLOW}?attempt=7", f"/jobs/{SLOW}?attempt=x", "/jobs/", "/incidents/unknown",
    "/hosts/unknown", "/hosts/", "/questions/unknown", "/devices/history", "/unknown", "/static/unknown.js",
    "/static/%2e%2e/app.py", "/incidents/..%2f..%2fetc%2fpasswd",
])  # fmt: skip
def test_what_is_unknown_gets_404_and_what_to_do(somebody: Visit, path: str) -> None:
    answer = somebody.get(path)
    assert answer.status_code == 404
    assert "Search finds jobs, hosts and verdicts." in text_of(answer)
    assert "Traceback" not in answer.text


def test_a_page_that_is_open_gets_its_live_part_alone_and_nothing_where_nothing_changed(somebody: Visit) -> None:
    for path in ("/", "/pipeline", f"/incidents/{SLOW}:0:60:0"):
        live = somebody.get(path, {"X-Live": "1"})
        assert live.status_code == 200
        assert "<!doctype" not in live.text
        assert len(live.text) < len(somebody.get(path).text)
    tag = somebody.get("/questions", {"X-Live": "1"}).headers.get("etag")
    assert tag is None  # a page without a live part stays a whole page
    of_job = somebody.get("/pipeline", {"X-Live": "1"}).headers["etag"]
    again = somebody.get("/pipeline", {"X-Live": "1", "If-None-Match": of_job})
    assert again.status_code in (200, 304)  # seconds behind may have moved on
