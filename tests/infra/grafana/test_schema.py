"""Grafana's dashboards are of Grafana's published types, panel options and all; TypeScript refuses what is not."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.infra.grafana.dashboards import DASHBOARDS, Json

SCHEMA = Path(__file__).resolve().parent / "schema"
SECONDS = 180
OPTIONS = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where TypeScript finds Grafana's types, as the lock file names them."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm must be on the PATH: it fetches Grafana's types; it is not (Debian: apt-get install npm)")
    folder = tmp_path_factory.mktemp("schema")
    shutil.copytree(SCHEMA, folder, dirs_exist_ok=True)
    run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)
    return folder


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def compile_(folder: Path, lines: list[str]) -> None:
    file = folder / "dashboards.ts"
    file.write_text("\n".join(['import type { Dashboard, Looks } from "./types.js";', *lines, ""]), "utf-8")
    run([str(folder / "node_modules" / ".bin" / "tsc"), *OPTIONS, file.name], folder)


def looks(made: Json) -> Iterator[tuple[str, Json]]:
    """What overrides change: the panel's kind, and the properties as they would stand in its ``fieldConfig``."""
    for panel in made["panels"]:
        for override in panel["fieldConfig"]["overrides"]:
            look: dict[str, Any] = {}
            for one in override["properties"]:
                *above, name = one["id"].split(".")
                (look.setdefault("custom", {}) if above else look)[name] = one["value"]
            yield panel["type"], look


def test_dashboards_are_of_grafana_s_types_and_others_are_refused(folder: Path) -> None:
    """In one file: TypeScript takes seconds for the types themselves."""
    lines = []
    for name, make in DASHBOARDS.items():
        lines.append(f"export const {name}: Dashboard = {json.dumps(make())};")
        for place, (kind, look) in enumerate(looks(make())):
            lines.append(f'export const {name}{place}: Looks["{kind}"] = {json.dumps(look)};')
    for name, made in WRONG.items():
        # one line each: the expected error must be on the next one
        lines += ["// @ts-expect-error", f"export const {name}: Dashboard = {json.dumps(made)};"]
    compile_(folder, lines)


def _with(change: Callable[[Json], Any]) -> Json:
    made = copy.deepcopy(DASHBOARDS["incident"]())
    change(made)
    return made


def _panel(made: Json, kind: str) -> Json:
    return next(panel for panel in made["panels"] if panel["type"] == kind)


WRONG: dict[str, Json] = {
    "unknown_field": _with(lambda made: made.update(stile="dark")),
    "unknown_panel": _with(lambda made: _panel(made, "table").update(type="tabel")),
    "unknown_option": _with(lambda made: _panel(made, "heatmap")["options"].update(buckets=3)),
    "wrong_value": _with(lambda made: _panel(made, "timeseries")["options"]["tooltip"].update(mode="all")),
    "wrong_type": _with(lambda made: _panel(made, "table")["gridPos"].update(x="0")),
    "unknown_custom": _with(lambda made: _panel(made, "timeseries")["fieldConfig"]["defaults"]["custom"].update(a=1)),
    "wrong_variable": _with(lambda made: made["templating"]["list"][1].update(type="sql")),
    "missing": _with(lambda made: _panel(made, "heatmap")["options"].pop("color")),
}
