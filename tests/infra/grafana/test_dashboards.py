"""Grafana's dashboards: their SQL is what is written down, what they refer to is there, and nothing is averaged."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.infra.grafana.dashboards import DASHBOARDS, FOLDER, SQL, Json, as_file, targets
from tests.infra.grafana.queries import FOLDER as QUERIES
from tests.infra.grafana.queries import ROOT, VARIABLES, query
from tests.infra.known_metrics import known_metrics, require_known

PROVISIONING = ROOT / "infra" / "grafana" / "provisioning"
MADE: Mapping[str, Json] = {name: make() for name, make in DASHBOARDS.items()}
MACROS = {"timeFilter", "fromTime", "toTime", "timeInterval", "timeInterval_ms"}
WIDTH = 24  # columns of Grafana's grid
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")


def texts(made: Any) -> Iterator[str]:
    """Every text in some JSON."""
    if isinstance(made, str):
        yield made
    for one in made.values() if isinstance(made, dict) else made if isinstance(made, list) else ():
        yield from texts(one)


def sql_of(made: Json) -> list[str]:
    return [target["rawSql"] for _, target in targets(made) if "rawSql" in target]


def expressions() -> list[str]:
    return [target["expr"] for _, target in targets(MADE["pipeline"]) if "expr" in target]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_file_has_the_sql_that_is_written_down(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text("utf-8")
    assert text == as_file(MADE[name]), "run: python -m tests.infra.grafana.dashboards"
    assert {place for place, target in targets(MADE[name]) if "rawSql" in target} == SQL[name].keys()
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(DASHBOARDS)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_say_what_they_show_in_places_of_their_own_within_the_width(name: str) -> None:
    panels = MADE[name]["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    places = [panel["gridPos"] for panel in panels]
    assert all(at["x"] + at["w"] <= WIDTH for at in places)
    cells = [
        (x, y)
        for at in places
        for x, y in itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
    ]
    assert len(cells) == len(set(cells))
    for panel in MADE[name]["panels"]:
        assert panel["title"]
        assert panel["description"][-1] in ".?"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_variables_and_macros_of_the_sql_are_known(name: str) -> None:
    variables = {one["name"] for one in MADE[name]["templating"]["list"]}
    for sql in sql_of(MADE[name]):
        assert set(re.findall(r"\$\{(\w+)", sql)) <= variables
        assert set(re.findall(r"\$__(\w+)", sql)) <= MACROS
        left = re.sub(r"\$\{\w+:percentencode\}|\$__\w+", "", sql)
        assert not re.search(r"\$|\{|\[\[", left), sql


def test_every_file_of_sql_is_asked_somewhere_with_values_that_are_percent_encoded_alone() -> None:
    asked = "\n".join(sql for made in MADE.values() for sql in sql_of(made))
    names = [path.stem for path in QUERIES.glob("*.sql")]
    assert [name for name in names if query(name) not in asked] == []
    assert all(re.fullmatch(r"\w+\('\$\{\w+:percentencode\}'\)", text) for text in VARIABLES.values())


def test_no_panel_averages_over_ranks() -> None:
    """A straggler disappears in a mean over thousands of ranks: longest, median and who it was are shown instead."""
    assert [path.name for path in QUERIES.glob("*.sql") if re.search(r"\bavg|mean\(", path.read_text("utf-8"))] == []
    assert [expr for expr in expressions() if re.search(r"\bavg", expr)] == []


def test_links_lead_to_variables_of_dashboards_that_are_there() -> None:
    links = [text for made in MADE.values() for text in texts(made) if text.startswith("/d/")]
    assert len(links) > 5
    for link in links:
        uid, given = re.fullmatch(r"/d/([\w-]+)\?(.*)", link).groups()  # type: ignore[union-attr]
        target = next(made for made in MADE.values() if made["uid"] == uid)
        variables = {f"var-{one['name']}" for one in target["templating"]["list"]}
        assert {part.split("=")[0] for part in given.split("&")} - {"${__url_time_range}"} <= variables


def test_data_sources_that_dashboards_ask_are_provisioned_without_a_secret_and_read_alone() -> None:
    text = (PROVISIONING / "datasources" / "irregulars.yaml").read_text("utf-8")
    provisioned = dict(zip(re.findall(r" uid: (\S+)", text), re.findall(r" type: (\S+)", text), strict=True))
    for made in MADE.values():
        chosen = {one["name"]: one for one in made["templating"]["list"] if one["type"] == "datasource"}
        assert {one["current"]["value"]: one["query"] for one in chosen.values()}.items() <= provisioned.items()
        used = set(re.findall(r'"uid": "\$\{(\w+)\}"', json.dumps(made)))
        assert used == set(chosen)
    text = (PROVISIONING / "datasources" / "irregulars.yaml").read_text("utf-8")
    assert re.findall(r"^ +password: (.*)$", text, re.MULTILINE) == ["${IRREGULARS_CLICKHOUSE_READER_PASSWORD}"]
    assert re.findall(r"^ +username: (.*)$", text, re.MULTILINE) == ["${IRREGULARS_CLICKHOUSE_READER_USER}"]
    said = set(re.findall(r"^#   (IRREGULARS_\w+)", text, re.MULTILINE))
    assert said == set(re.findall(r"\$\{(IRREGULARS_\w+)\}", text))


def test_expressions_ask_for_metrics_and_labels_that_exist(tmp_path: Path) -> None:
    assert len(expressions()) > 30
    require_known(expressions(), known_metrics(tmp_path))


def test_every_metric_of_notify_and_most_of_a_worker_stand_somewhere() -> None:
    rules = (ROOT / "infra" / "prometheus" / "alerts.yaml").read_text("utf-8")
    shown = "\n".join([*expressions(), rules])
    left_out = {"retried", "last_success_seconds"}
    from irregulars.sinks.notices.process import NotifyMetrics

    names = {family.name for family in NotifyMetrics(["a"]).registry.collect()}
    assert {name.removeprefix("irregulars_notify_") for name in names if name not in shown} == left_out


def test_promtool_reads_every_expression(tmp_path: Path) -> None:
    if PROMTOOL is None:
        pytest.skip("promtool must be on the PATH or in PROMTOOL; it is not (Debian: apt-get install prometheus)")
    rules = [
        {"record": f"expression:{place}", "expr": text.replace("$__rate_interval", "1m").replace("$worker", ".*")}
        for place, text in enumerate(expressions())
    ]
    file = tmp_path / "expressions.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = subprocess.run(
        [PROMTOOL, "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
