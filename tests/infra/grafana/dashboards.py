"""Grafana's dashboards. ``python -m tests.infra.grafana.dashboards`` writes ``infra/grafana/dashboards`` anew."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from tests.infra.grafana.devices import devices
from tests.infra.grafana.incident import incident
from tests.infra.grafana.jobs import jobs
from tests.infra.grafana.panels import Json
from tests.infra.grafana.pipeline import pipeline
from tests.infra.grafana.queries import ROOT

FOLDER: Final = ROOT / "infra" / "grafana" / "dashboards"
DASHBOARDS: Final[Mapping[str, Callable[[], Json]]] = {
    "jobs": jobs, "incident": incident, "devices": devices, "pipeline": pipeline,
}  # fmt: skip
"""By the name of the file."""


def as_file(made: Json) -> str:
    """Return the text of a dashboard's file."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the files."""
    for name, make in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(as_file(make()), "utf-8")


if __name__ == "__main__":
    main()
