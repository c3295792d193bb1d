"""The SQL of the dashboards, as Grafana gets it: files of ``infra/grafana/queries``, and shipped investigations."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from irregulars.sinks.investigations import find_investigation

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = ROOT / "infra" / "grafana" / "queries"

# Grafana puts a variable's value into the SQL as text. Its formats that quote for SQL leave a backslash as it is,
# with which the name of a job could end the quotes. Percent-encoded, only letters, digits and - _ . ~ % are left.
VARIABLES: Final = {
    "job:String": "decodeURLComponent('${job:percentencode}')",
    "host:String": "decodeURLComponent('${host:percentencode}')",
    "verdict:String": "decodeURLComponent('${verdict:percentencode}')",
    "attempt:Int64": "toInt64OrZero('${attempt:percentencode}')",
}
"""Placeholders of our files, and what stands for them in a panel."""

_PLACEHOLDER: Final = re.compile(r"\{(\w+:[\w()]+)\}")


@cache
def query(name: str) -> str:
    """Return the SQL of a file, with Grafana's variables."""
    text = (FOLDER / f"{name}.sql").read_text("utf-8")
    return _PLACEHOLDER.sub(lambda found: VARIABLES[found[1]], _without_header(text)).strip()


def investigation(name: str, **values: str) -> str:
    """Return the SQL of a shipped question; `values`: SQL for each parameter, or the name of one of `VARIABLES`."""
    found = find_investigation(name)
    given = {f"{one.name}:{one.type}": VARIABLES.get(values[one.name], values[one.name]) for one in found.parameters}
    return _PLACEHOLDER.sub(lambda match: given[match[1]], _without_header(found.sql)).strip()


def _without_header(text: str) -> str:
    """Leave out the comments that a file begins with."""
    lines = text.splitlines()
    while lines and lines[0].startswith("--"):
        lines.pop(0)
    return "\n".join(lines)
