"""The SQL in Grafana's dashboards: ``python -m tests.infra.grafana.dashboards`` puts it into their files anew.

Files of ``infra/grafana/dashboards`` are as Grafana exports them; their SQL is written down once, elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from tests.infra.grafana.queries import ROOT, VARIABLES, investigation, query

Json = dict[str, Any]
FOLDER: Final = ROOT / "infra" / "grafana" / "dashboards"
_HOST, _NONE = VARIABLES["host:String"], "CAST(NULL AS Nullable(Int64))"
_NEWEST_SLOW = f"({query('newest_irregular')})"

# By dashboard and by what asks: a panel by type and title, a variable or annotation by name
SQL: Final[Mapping[str, Mapping[str, str]]] = {
    "jobs": {
        "stat Open verdicts": query("open_counts"),
        "stat GPU-hours lost": query("lost_in_range"),
        "table Open verdicts": investigation("open_now", job="''", limit="100"),
        "table Jobs": investigation("jobs_now", limit="200"),
        "timeseries Longest iteration, in usual times": query("worst_iterations_by_job"),
        "timeseries GPU-hours lost, by day and kind": query("lost_by_day"),
        "table Cost by job": query("cost_by_job"),
    },
    "incident": {
        "variable job": query("job_names"),
        "variable attempt": query("attempts"),
        "variable verdict": query("verdict_names"),
        "annotation Verdicts": query("verdict_spans"),
        "annotation Irregular iterations": query("irregular_moments"),
        "table The verdict": query("verdict"),
        "timeseries Iteration times": query("iteration_times"),
        "timeseries Longest work minus the median, and whose": query("spread_by_rank"),
        "timeseries Suspects of the verdict": query("suspects"),
        "heatmap Extremes: work beyond the usual, by rank": query("extremes"),
        "table Ranks that stood out": query("worst_ranks"),
        "table Who waited for whom": investigation(
            "waits_of_iteration", job="job:String", attempt="attempt:Int64", iteration=_NEWEST_SLOW, limit="20"
        ),
        "timeseries Rates of the suspect's NIC": query("nic_rates"),
        "timeseries SM clock of the suspect's GPUs": query("gpu_clocks"),
        "table Revisions of the verdict": investigation(
            "suspicion_history", verdict_id="verdict:String", limit="200"
        ),
        "table GPUs while its cause was seen": investigation(
            "gpu_health_of_verdict", job="job:String", verdict_id="verdict:String", limit="30"
        ),
    },
    "devices": {
        "variable host": query("hosts"),
        "bargauge GPU-hours lost by host": query("lost_by_host"),
        "bargauge GPU-hours lost by switch": query("lost_by_switch"),
        "table GPU-hours lost by device": query("lost_by_device"),
        "table Repeat offenders": query("repeat_offenders"),
        "timeseries GPU-hours lost, by day and device": query("lost_over_time"),
        "table History of the host": investigation(
            "device_history", host=f"if({_HOST} = '*', '', {_HOST})", gpu=_NONE, nic="''", switch="''", limit="100"
        ),
        "table How often were verdicts right?": investigation("how_often_right", job="''", days="365", limit="50"),
    },
    "pipeline": {
        "table What the database says of each job": investigation("pipeline_health", iterations="100", limit="50"),
    },
}


def targets(made: Json) -> Iterator[tuple[str, Json]]:
    """Yield all that a dashboard asks, each with its name in `SQL`."""
    for panel in made["panels"]:
        yield from ((f"{panel['type']} {panel['title']}", target) for target in panel["targets"])
    for one in made["templating"]["list"]:
        if one["type"] == "query":
            yield f"variable {one['name']}", one["query"]
    yield from ((f"annotation {one['name']}", one["target"]) for one in made["annotations"]["list"])


def dashboard(name: str) -> Json:
    """Return a dashboard, with the SQL that is in force now."""
    made: Json = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    for place, target in targets(made):
        if "rawSql" in target:
            target["rawSql"] = SQL[name][place]
    return made


DASHBOARDS: Final[Mapping[str, Callable[[], Json]]] = {name: partial(dashboard, name) for name in SQL}


def as_file(made: Json) -> str:
    """Return the text of a dashboard's file."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, make in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(as_file(make()), "utf-8")
