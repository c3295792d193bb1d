"""What is told of a verdict, from its opening to its end, is the same wherever people look.

A recording is stored revision by revision, as a worker would have stored it. After each revision the alert, the
screen of ``show``, the incident's page, the questions and the dashboard's query must agree.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from irregulars.infra.console.rendering import incident_path
from irregulars.infra.runs.analysis import judge_whole
from irregulars.infra.showing.found import Screen, gather
from irregulars.infra.showing.from_database import find_verdict, found_in_database
from irregulars.infra.showing.text_page import cost_text, device_text, lines_of, title_text
from irregulars.messages.judgements import Judgements, Verdict
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.advice import gpu_hours_lost, name_device
from irregulars.sinks.alerts import alert_of
from irregulars.sinks.connection import DatabaseSettings, connected
from irregulars.sinks.protocol import Rows
from irregulars.sinks.tables import table_of_samples, tables_of
from irregulars.streams.local_pipeline import LocalPipeline
from irregulars.words import percent
from tests.conftest import ClickHouseAddress
from tests.infra.console.visits import Visit, text_of, visit
from tests.infra.grafana.queries import FOLDER
from tests.integration.pipelines import own_database, store
from tests.integration.test_clickhouse import answer
from tests.integration.worker_runs import wait_until
from tests.sinks.recorded_jobs import RECORDINGS

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NAMES = (
    "gloo-slow-nic", "gloo-slow-link", "gloo-slow-rank", "causes/checkpoint-write", "causes/garbage-collection",
    "bench/ddp8-hang-before", "bench/ddp8-imbalance", "bench/ddp8-host-cpu-quota", "bench/ddp8-leaf-ports",
    "bench/hsdp16-leaf-uplink", "bench/hsdp16-spine", "bench/hsdp8-checkpoints", "bench/pp4dp2-hang-inside",
    "bench/pp4dp2-stage-from-start", "bench/pp4dp2-link-from-start", "bench/tp2pp2dp2-nic-spikes",
    "numerics/weight-exponent-fp32", "numerics/batch-of-all-fp32", "numerics/local-gradient-lane-fp32",
)  # fmt: skip
"""Each kind that a recording has, from its start, for a while or once, with and without a suspect."""


@dataclass(frozen=True, slots=True)
class Places:
    """A database with a console, each test's own: recordings of one job share ids of verdicts."""

    settings: DatabaseSettings
    client: Client
    console: Visit


@pytest.fixture
def places(clickhouse: ClickHouseAddress) -> Iterator[Places]:
    with own_database(clickhouse) as own, visit(own) as console:
        store(own, {})
        assert console.log_in().status_code == 303
        with connected(own) as client:
            yield Places(own, client, console)


def judged(name: str) -> tuple[Judgements, Rows]:
    trace = read_trace(RECORDINGS / name)
    own = replace(judge_whole(LocalPipeline(trace.job), trace), announcements=list(trace.announcements))
    samples = list(trace.batches("bandwidth").values())
    return own, {"bandwidth": table_of_samples(samples)} if samples else {}


def between(rows: Rows, first: int, past: int) -> dict[str, pa.Table]:
    """Return the rows of some iterations, and those that belong to none if these are the first."""
    kept = {}
    for name, table in rows.items():
        if "iteration" in table.column_names:
            at = table["iteration"]
            kept[name] = table.filter(pc.and_(pc.greater_equal(at, first), pc.less(at, past)))
        elif first == 0:
            kept[name] = table
    return {name: table for name, table in kept.items() if table.num_rows}


def told_by_screen(screen: Screen) -> dict[str, Any]:
    """Read the words of a screen, as `wanted` has them."""
    text = " ".join(" ".join(lines_of(screen)).split())
    device = device_text(screen)
    sure = re.search(r", (<?\d+)% sure", device)
    return {
        "title": title_text(screen),
        "device": screen.device,
        "sure": sure and sure[1],
        "in text": all(" ".join(part.split()) in text for part in (title_text(screen), device)),
    }


def wanted_of_screen(verdict: Verdict) -> dict[str, Any]:
    first = verdict.suspects[0] if verdict.suspects else None
    state = verdict.state if verdict.close_reason is None else f"{verdict.state}: {verdict.close_reason}"
    remarks = ", ".join(one for one in (state, verdict.severity) if one)
    return {
        "title": f"{title_of(verdict)} in {verdict.job} ({remarks})",
        "device": first and name_device(first),
        "sure": first and percent(first.probability).removesuffix("%"),
        "in text": True,
    }


def title_of(verdict: Verdict) -> str:
    """The summary of the alert begins with event and cause."""
    told = alert_of(verdict, "note")
    if told is None:  # it only goes on
        told = alert_of(replace(verdict, event="changed"), "note")
    assert told is not None
    found = re.match(rf"[A-Z]+ (.+) in {re.escape(verdict.job)}[ :]", json.loads(told)["summary"])
    assert found is not None
    return found[1]


def row_of(row: dict[str, Any]) -> dict[str, Any]:
    """Take from an answer of the database what all of them tell."""
    probability, delta = row["probability"], row.get("delta", row.get("times_usual"))
    return {
        "kind": row["kind"],
        "severity": row["severity"],
        "state": row.get("state", "open"),
        "is named": row["device"] is not None,
        "sure": None if probability is None else pytest.approx(probability, abs=0.0051),
        "times usual": None if delta is None or not math.isfinite(delta) else pytest.approx(delta, abs=0.0051),
    }


def wanted_of_row(verdict: Verdict) -> dict[str, Any]:
    first = verdict.suspects[0] if verdict.suspects else None
    return {
        "kind": verdict.kind,
        "severity": verdict.severity,
        "state": verdict.state,
        "is named": first is not None,
        "sure": first and first.probability,
        "times usual": verdict.delta if math.isfinite(verdict.delta) else None,
    }


def rows_on(places: Places, verdict: Verdict) -> dict[str, list[dict[str, Any]]]:
    """Return what questions and the dashboard say of a verdict."""
    found = places.client.query((FOLDER / "verdict.sql").read_text("utf-8"), {"verdict": verdict.verdict_id})
    names = ("open_now", "most_urgent", "blamed")
    values: dict[str, dict[str, object]] = {
        "open_now": {"job": verdict.job}, "most_urgent": {"job": verdict.job, "days": 9999},
        "blamed": {"job": verdict.job},
    }  # fmt: skip
    answers = {name: answer(places.client, name, **values[name]) for name in names}
    answers["dashboard"] = [dict(zip(found.column_names, row, strict=True)) for row in found.result_rows]
    return {
        name: [row for row in rows if row.get("verdict_id", verdict.verdict_id) == verdict.verdict_id]
        for name, rows in answers.items()
    }


def page_on(places: Places, verdict: Verdict) -> str:
    """Return the text of the incident's page, once it tells of this revision: answers are kept for some seconds."""
    pages = []

    def is_there() -> bool:
        pages.append(places.console.get(incident_path(verdict.verdict_id)))
        return f", revision {verdict.revision}" in pages[-1].text

    wait_until(is_there, "the page tells of the newest revision")
    return text_of(pages[-1])


def disagreements(places: Places, verdict: Verdict) -> list[str]:
    """Return what is told of the newest revision of a verdict otherwise than the judge did."""
    stored = find_verdict(places.client, verdict.verdict_id)
    assert stored is not None
    now_ns = (verdict.time_ns or 0) + 10**9
    screen = gather(found_in_database(places.client, stored, "here", now_ns))
    found = {"show": (told_by_screen(screen), wanted_of_screen(verdict))}
    rows = rows_on(places, verdict)
    for name, own in rows.items():
        is_wanted = verdict.state == "open" or name != "open_now"
        if (len(own) > 0) != is_wanted:
            found[name] = ({"rows": len(own)}, {"rows": int(is_wanted)})
        for row in own[:1]:
            told, wanted = row_of(row), wanted_of_row(verdict)
            # They leave out how much slower a job is that stands still.
            if told["times usual"] is None and verdict.kind in ("hang", "mismatch"):
                wanted["times usual"] = None
            found[name] = (told, wanted)
    page = page_on(places, verdict)
    said = [title_of(verdict), verdict.severity, verdict.state, *(part for part in (screen.device,) if part)]
    found["page"] = ({one: one in page for one in said}, dict.fromkeys(said, True))
    if verdict.state == "closed":
        hours = gpu_hours_lost(verdict)
        lost = {row["gpu_hours_lost"] for name in ("most_urgent", "blamed", "dashboard") for row in rows[name][:1]}
        found["cost"] = (
            {"lost": {round(one, 3) for one in lost if one is not None}},
            {"lost": set() if hours is None else {round(hours, 3)}},
        )
        assert "so far" not in cost_text(screen)
    return [f"{name}: told {told}, judged {wanted}" for name, (told, wanted) in found.items() if told != wanted]


@pytest.mark.parametrize("name", NAMES)
def test_at_each_revision_all_say_the_same(places: Places, name: str) -> None:
    judgements, samples = judged(name)
    whole = tables_of(replace(judgements, verdicts=[]))
    stored, wrong = 0, []
    for verdict in judgements.verdicts:
        past = max(stored, verdict.iterations[1])
        store(places.settings, between({**whole, **samples}, stored, past) if past > stored else {})
        store(places.settings, tables_of(Judgements(verdict.job, verdicts=[verdict])))
        stored = past
        which = f"revision {verdict.revision} of {verdict.verdict_id}"
        wrong += [f"{which}: {one}" for one in disagreements(places, verdict)]
    assert not wrong, "\n".join(wrong)
