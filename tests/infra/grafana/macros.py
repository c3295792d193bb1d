"""What Grafana and its ClickHouse plug-in make of a panel's SQL before the database sees it.

Grafana puts in its variables, the plug-in its macros: https://grafana.com/docs/plugins/grafana-clickhouse-datasource
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

_VARIABLE: Final = re.compile(r"\$\{(\w+):percentencode\}")
_MACRO: Final = re.compile(r"\$__(\w+)(?:\((\w+)\))?")


@dataclass(frozen=True, slots=True)
class View:
    """What somebody looks at."""

    # start, end: The time range
    start: datetime
    end: datetime
    interval_s: float  # seconds that are one point of a chart
    variables: Mapping[str, str]  # values by name, as they are chosen


def expand(sql: str, view: View) -> str:
    """Return the SQL as the database gets it; a variable or macro that is not known raises `KeyError`."""
    with_values = _VARIABLE.sub(lambda found: quote(view.variables[found[1]], safe="-_.~"), sql)
    return _MACRO.sub(lambda found: _expanded(found[1], found[2] or "", view), with_values)


def _expanded(name: str, column: str, view: View) -> str:
    start, end = (f"toDateTime({int(one.timestamp())})" for one in (view.start, view.end))
    seconds, milliseconds = int(max(view.interval_s, 1)), int(max(view.interval_s * 1000, 1))
    return {
        "fromTime": start,
        "toTime": end,
        "timeFilter": f"{column} >= {start} AND {column} <= {end}",
        "timeInterval": f"toStartOfInterval(toDateTime({column}), INTERVAL {seconds} second)",
        "timeInterval_ms": f"toStartOfInterval(toDateTime64({column}, 3), INTERVAL {milliseconds} millisecond)",
    }[name]
