"""The dashboard of all jobs."""

from __future__ import annotations

from tests.infra.grafana.panels import (
    CLICKHOUSE_VARIABLE,
    Json,
    Row,
    colored,
    column,
    dashboard,
    link_to,
    rows_of,
    series_of,
    stat,
    table,
    time_series,
    units,
)
from tests.infra.grafana.queries import investigation, query


def jobs() -> Json:
    """What runs, what is wrong, and what it costs."""
    return dashboard(
        "jobs",
        "jobs",
        "Which jobs run, which of them are slowed by what, and what that costs.",
        variables=[CLICKHOUSE_VARIABLE],
        rows=[_numbers(), _open(), _jobs(), _over_time(), _cost()],
        past="now-24h",
    )


def _numbers() -> Row:
    counts, lost = rows_of(query("open_counts")), rows_of(query("lost_in_range"))
    red, orange = ((None, "green"), (1, "red")), ((None, "green"), (1, "orange"))
    return 5, [
        stat("Open verdicts", "Now, whatever the time range.", [counts], "none", red),
        stat("GPU-hours lost", "By verdicts whose cause was seen last in the time range.", [lost], "none", orange),
    ]


def _open() -> Row:
    about = (
        "The most urgent first: whom they accuse, since when, GPU-hours lost so far and per hour. Hangs after which "
        "their job was not heard again stand here too."
    )
    incident = link_to("incident", "Look into it", job="job", verdict="verdict_id")
    looks = [
        *colored("severity"),
        *units(probability="percentunit"),
        column("job", links=link_to("incident", "This job", job="job")),
        column("device", links=incident),
        column("verdict_id", links=incident),
        column("gpu_hours_per_hour", displayName="GPU-hours per hour"),
    ]
    return 9, [table("Open verdicts", about, [rows_of(investigation("open_now", job="''", limit="100"))], looks)]


def _jobs() -> Row:
    about = (
        "The newest start of each job: how far it is, how fast (mean of its newest 50 iterations), and what is wrong "
        "with it now."
    )
    looks = [
        *colored("severity"),
        *units(recent_iteration_s="s", last_seen_at="dateTimeFromNow"),
        column("job", links=link_to("incident", "This job", job="job", attempt="attempt")),
        column("verdict_id", links=link_to("incident", "Look into it", job="job", verdict="verdict_id")),
    ]
    return 10, [table("Jobs", about, [rows_of(investigation("jobs_now", limit="200"))], looks)]


def _over_time() -> Row:
    return 10, [
        time_series(
            "Longest iteration, in usual times",
            "The longest of each stretch over the job's usual time; 1 is usual. The twenty jobs with the largest.",
            [series_of(query("worst_iterations_by_job"))],
            "none",
            style="points",
        ),
        time_series(
            "GPU-hours lost, by day and kind",
            "A verdict counts whole, on the day (UTC) on which its cause was seen last.",
            [series_of(query("lost_by_day"))],
            "none",
            style="bars",
            stacked=True,
        ),
    ]


def _cost() -> Row:
    looks = [*units(share_lost="percentunit"), column("job", links=link_to("incident", "This job", job="job"))]
    about = "GPU-hours trained in the time range, and what verdicts say was lost of them."
    return 9, [table("Cost by job", about, [rows_of(query("cost_by_job"))], looks)]
