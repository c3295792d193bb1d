"""What is told of a verdict, from its opening to its end, is the same wherever people look.

A job is stored revision by revision, as a worker would have stored it. After each revision, and between two of
them, when iterations have come that no revision knows, the alert, the screen of ``show`` with its chain and charts,
the incident's page, the questions and the dashboard's query must agree.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pytest

from irregulars.infra.console.database import SharedAnswers
from irregulars.infra.console.rendering import incident_path
from irregulars.infra.showing.found import Screen, gather
from irregulars.infra.showing.from_database import find_verdict, found_in_database
from irregulars.infra.showing.text_page import (
    cost_text,
    device_text,
    lines_of,
    names_of,
    since_text,
    title_text,
)
from irregulars.messages.judgements import Judgements, Verdict
from irregulars.messages.kinds import STANDSTILLS, VERDICT_KINDS
from irregulars.sinks.advice import name_device, path_texts
from irregulars.sinks.alerts import alert_of
from irregulars.sinks.clickhouse import ClickHouseSink
from irregulars.sinks.connection import connected
from irregulars.sinks.protocol import Rows
from irregulars.sinks.tables import tables_of
from irregulars.words import name_kind, percent
from tests.conftest import ClickHouseAddress
from tests.infra.console.visits import Visit, text_of, visit
from tests.infra.grafana.queries import FOLDER
from tests.integration.pipelines import own_database
from tests.integration.test_clickhouse import answer
from tests.sinks.recorded_jobs import MADE, TOKENS, between, judged, samples_of

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NAMES = (
    "gloo-slow-nic", "gloo-slow-link", "gloo-slow-rank", "causes/checkpoint-write", "causes/garbage-collection",
    "bench/ddp8-hang-before", "bench/ddp8-imbalance", "bench/ddp8-host-cpu-quota", "bench/ddp8-leaf-ports",
    "bench/hsdp16-leaf-uplink", "bench/hsdp16-spine", "bench/hsdp8-checkpoints", "bench/pp4dp2-hang-inside",
    "bench/pp4dp2-stage-from-start", "bench/pp4dp2-link-from-start", "bench/tp2pp2dp2-nic-spikes",
    "numerics/weight-exponent-fp32", "numerics/batch-of-all-fp32", "numerics/local-gradient-lane-fp32",
    "causes/data-loader", "causes/cpu-throttled", "causes/io-wait", *MADE, "gloo-slow-nic peers baseline!",
    "bench/ddp8-imbalance peers baseline(warm_up=10)!", f"made/few-tokens {TOKENS}",
)  # fmt: skip
"""Each kind from its start, for a while or once, with and without a suspect; behind a name detectors with a say."""


@dataclass(frozen=True, slots=True)
class Places:
    """A database with a console, each test's own: recordings of one job share ids of verdicts."""

    client: Client
    sink: ClickHouseSink
    console: Visit

    def store(self, rows: Rows) -> None:
        self.sink.write(rows)
        self.sink.flush()


@pytest.fixture
def places(clickhouse: ClickHouseAddress, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    # Pages are asked for as soon as something is stored: none may be that of a moment ago.
    monkeypatch.setattr(SharedAnswers, "get", lambda self, key, make, keep_s=0.0: make())
    with own_database(clickhouse) as own, visit(own) as console:
        sink = ClickHouseSink(own)
        sink.open()
        assert console.log_in().status_code == 303
        with connected(own) as client:
            yield Places(client, sink, console)
        sink.close()


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


def rows_on(client: Client, verdict: Verdict) -> dict[str, list[dict[str, Any]]]:
    """Return what questions and the dashboard say of a verdict."""
    found = client.query((FOLDER / "verdict.sql").read_text("utf-8"), {"verdict": verdict.verdict_id})
    names = ("open_now", "most_urgent", "blamed")
    values: dict[str, dict[str, object]] = {
        "open_now": {"job": verdict.job}, "most_urgent": {"job": verdict.job, "days": 9999},
        "blamed": {"job": verdict.job},
    }  # fmt: skip
    answers = {name: answer(client, name, **values[name]) for name in names}
    answers["dashboard"] = [dict(zip(found.column_names, row, strict=True)) for row in found.result_rows]
    return {
        name: [row for row in rows if row.get("verdict_id", verdict.verdict_id) == verdict.verdict_id]
        for name, rows in answers.items()
    }


def disagreements(client: Client, console: Visit, verdict: Verdict, *, is_newest: bool) -> list[str]:
    """Return what is told of the newest revision of a verdict otherwise than the judge did, or by others.

    `is_newest`: the revision knows all iterations that are stored.
    """
    stored = find_verdict(client, verdict.verdict_id)
    assert stored is not None
    now_ns = (verdict.time_ns or 0) + 10**9
    screen = gather(found_in_database(client, stored, "here", now_ns))
    found: dict[str, tuple[Any, Any]] = {"show": (told_by_screen(screen), wanted_of_screen(verdict))}
    rows = rows_on(client, verdict)
    for name, own in rows.items():
        is_wanted = verdict.state == "open" or name != "open_now"
        if (len(own) > 0) != is_wanted:
            found[name] = ({"rows": len(own)}, {"rows": int(is_wanted)})
        for row in own[:1]:
            told, wanted = row_of(row), wanted_of_row(verdict)
            # They leave out how much slower a job is that stands still.
            if told["times usual"] is None and verdict.kind in STANDSTILLS:
                wanted["times usual"] = None
            found[name] = (told, wanted)
    reasons = verdict.explanation
    chain = [] if reasons is None else path_texts(reasons, names_of(screen))
    page = text_of(console.get(incident_path(verdict.verdict_id)))
    said: list[str] = [
        title_of(verdict), str(verdict.severity), verdict.state, f", revision {verdict.revision}",
        since_text(screen).partition(" (")[0],  # how long ago is asked at another moment
        *(part for part in (screen.device, *chain, verdict.evidence) if part),
    ]  # fmt: skip
    found["page"] = ({one: one in page for one in said}, dict.fromkeys(said, True))
    found |= {name: (told, wanted) for name, told, wanted in compared(screen, rows)}
    alert = alert_of(verdict)
    if alert is not None and is_newest:
        hours = json.loads(alert)["gpu_hours_lost"]
        found["alert"] = ({"lost": screen.cost.gpu_hours}, {"lost": hours and pytest.approx(hours, rel=1e-4)})
    if verdict.state == "closed":
        assert "so far" not in cost_text(screen)
    found["charts"] = (misleading(screen), [])
    return [
        f"{name}: told {apart(told, wanted)}, judged {apart(wanted, told)}"
        for name, (told, wanted) in found.items()
        if told != wanted
    ]


def apart(one: Any, other: Any) -> Any:
    """Return what differs from another answer."""
    return {key: one[key] for key in one if one[key] != other.get(key)} if isinstance(one, dict) else one


def compared(
    screen: Screen, rows: dict[str, list[dict[str, Any]]]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each fact that several places tell: its name, and by place what is told, and what should be."""
    verdict, cost = screen.verdict, screen.cost
    facts = {
        "since": (screen.since_ns and screen.since_ns / 1e9, 3),
        "gpu_hours_per_hour": (cost.gpu_hours_per_hour, 2),
    }
    # A standstill loses time by the clock: one is asked a moment after the other.
    if verdict.kind not in STANDSTILLS or verdict.state == "closed":
        facts["gpu_hours_lost"] = (cost.gpu_hours, 3)
    for name, (value, digits) in facts.items():
        told = {place: own[0][name] for place, own in rows.items() if own and name in own[0]}
        if name == "since":
            told = {place: one and one.replace(tzinfo=UTC).timestamp() for place, one in told.items()}
        exact = () if name == "since" else ("dashboard",)  # all others round
        yield name, told, {place: near(value, 6 if place in exact else digits) for place in told}


def near(value: float | None, digits: int) -> Any:
    return None if value is None else pytest.approx(value, abs=0.51 * 10**-digits)


def misleading(screen: Screen) -> list[str]:
    """Return what chain and charts show that speaks against the verdict beside them."""
    verdict, found = screen.verdict, []
    reasons, ranks = verdict.explanation, {rank for one in verdict.suspects[:1] for rank in one.ranks}
    if reasons is not None and reasons.path:
        first, past = verdict.iterations
        if not first <= reasons.iteration < past:
            found.append(f"chain of iteration {reasons.iteration}, which is not in {first} to {past}")
        found += [
            f"the chain's cause is no longer than usual: {one}"
            for one in reasons.path
            if one.is_accused and one.elapsed_ns is not None and one.elapsed_ns <= (one.usual_ns or 0)
        ]
    found += [
        f"iteration {one.iteration} is red, outside of the verdict"
        for one in screen.iterations
        if one.has_cause and one.iteration < verdict.iterations[0]
    ]
    is_longer = math.isfinite(verdict.delta) and verdict.delta > 1 and verdict.kind not in STANDSTILLS
    if is_longer and math.isfinite(screen.before_ns) and screen.during_ns <= screen.before_ns:
        found.append(f"{verdict.delta} times as long, and medians {screen.before_ns} before, {screen.during_ns} with")
    ways = [one for one in screen.ways if one.is_accused]
    if ways and max(one.ratio for one in ways) < max(one.ratio for one in screen.ways):
        found.append(f"another way is slower than all accused ones: {[(one.name, one.ratio) for one in screen.ways]}")
    causes = [one.name for one in screen.pauses]
    if verdict.cause is not None and name_kind(verdict.cause) in causes[1:]:
        found.append(f"{verdict.cause} is told, and {causes[0]} grew most")
    suspects = {rank for one in screen.standing if one.probability is not None for rank in one.ranks}
    if screen.standing and not ranks <= suspects:
        found.append(f"ranks {ranks - suspects} are accused, and stand nowhere as suspects")
    return found


def test_each_kind_of_verdict_is_among_them() -> None:
    kinds = {one.kind for name in NAMES for one in judged(*name.split()).verdicts}
    assert kinds == VERDICT_KINDS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_at_each_revision_all_say_the_same(places: Places, name: str) -> None:
    recording, *detectors = name.split()
    judgements, samples = judged(recording, *detectors), samples_of(recording)
    whole = {**tables_of(replace(judgements, verdicts=[])), **samples}
    stored = 0
    wrong: list[str] = []

    def advance(past: int, verdict: Verdict, *, is_newest: bool) -> None:
        nonlocal stored
        if past > stored:
            places.store(between(whole, stored, past))
        if is_newest:
            places.store(tables_of(Judgements(verdict.job, verdicts=[verdict])))
        stored = max(stored, past)
        which = f"revision {verdict.revision} of {verdict.verdict_id} after iteration {stored - 1}"
        found = disagreements(places.client, places.console, verdict, is_newest=is_newest)
        wrong.extend(f"{which}: {one}" for one in found)

    verdicts = judgements.verdicts
    for verdict, later in zip_longest(verdicts, verdicts[1:]):
        advance(verdict.iterations[1], verdict, is_newest=True)
        if later is not None and later.verdict_id == verdict.verdict_id and later.iterations[1] - 1 > stored:
            # It goes on, and no revision has said so yet
            advance(later.iterations[1] - 1, verdict, is_newest=False)
    assert not wrong, "\n".join(wrong)
