"""The dashboard of devices, hosts and racks, over all jobs."""

from __future__ import annotations

from tests.infra.grafana.panels import (
    CLICKHOUSE_VARIABLE,
    Json,
    Row,
    bars,
    colored,
    column,
    dashboard,
    link_to,
    rows_of,
    series_of,
    sql_variable,
    table,
    time_series,
    units,
)
from tests.infra.grafana.queries import VARIABLES, investigation, query


def devices() -> Json:
    """What to repair first."""
    return dashboard(
        "devices",
        "devices",
        "What to repair first: time lost by device, host and rack, devices that come back, and their history.",
        variables=[CLICKHOUSE_VARIABLE, sql_variable("host", "host", query("hosts"))],
        rows=[_places(), _devices(), _coming_back(), _history(), _feedback()],
        past="now-30d",
        refresh="5m",
    )


def _places() -> Row:
    rack = (
        "Sums over the devices behind each switch: a rack, where each has one. One that stands out over weeks has a "
        "cause of its own: power, cooling, an uplink."
    )
    return 11, [
        bars("GPU-hours lost by host", "Sums over the devices of each.", [rows_of(query("lost_by_host"))], "none"),
        bars("GPU-hours lost by switch", rack, [rows_of(query("lost_by_switch"))], "none"),
    ]


def _devices() -> Row:
    about = "A verdict's loss is shared out by the probability of its suspects."
    looks = [column("host", links=link_to("devices", "This host", host="host"))]
    return 10, [table("GPU-hours lost by device", about, [rows_of(query("lost_by_device"))], looks)]


def _coming_back() -> Row:
    return 9, [
        table(
            "Repeat offenders",
            "Devices that several verdicts accuse, over all jobs. One that comes back in several jobs is broken; in "
            "a single job it may be what that job asks of it.",
            [rows_of(query("repeat_offenders"))],
        ),
        time_series(
            "GPU-hours lost, by day and device",
            "The ten costliest. A verdict counts whole, on the day (UTC) on which its cause was seen last.",
            [series_of(query("lost_over_time"))],
            "none",
            style="bars",
            stacked=True,
        ),
    ]


def _history() -> Row:
    host, none = VARIABLES["host:String"], "CAST(NULL AS Nullable(Int64))"
    history = investigation(
        "device_history", host=f"if({host} = '*', '', {host})", gpu=none, nic="''", switch="''", limit="100"
    )
    about = "Every verdict that accuses the host or a device on it, the newest first, whatever the time range."
    looks = [
        *colored("severity", "state"),
        *units(probability="percentunit"),
        column("verdict_id", links=link_to("incident", "Look into it", job="job", verdict="verdict_id")),
    ]
    return 10, [table("History of the host", about, [rows_of(history)], looks)]


def _feedback() -> Row:
    right = investigation("how_often_right", job="''", days="365", limit="50")
    about = "What people said of them (irregulars feedback), beside how sure the verdicts had been."
    looks = units(right_share="percentunit", told_probability="percentunit")
    return 7, [table("How often were verdicts right?", about, [rows_of(right)], looks)]
