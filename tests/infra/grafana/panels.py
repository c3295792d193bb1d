"""Parts of Grafana's dashboards as JSON: panels, targets, variables, annotations, and their places on the screen.

Field names are those of dashboards with ``schemaVersion`` 39, which Grafana 11 and newer read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Json = dict[str, Any]
Row = tuple[int, Sequence[Json]]  # a height, and panels from left to right that share the width
CLICKHOUSE: Final = {"type": "grafana-clickhouse-datasource", "uid": "${clickhouse}"}
PROMETHEUS: Final = {"type": "prometheus", "uid": "${prometheus}"}
WIDTH: Final = 24  # columns of Grafana's grid
_NO_TIME_SERIES: Final = 1
_TIME_SERIES: Final = 0
_COLORS: Final = {"page": "dark-red", "ticket": "orange", "note": "blue", "open": "red", "closed": "text"}


# --- targets --------------------------------------------------------------------------------------------------------


def rows_of(sql: str, ref: str = "A") -> Json:
    """A target whose rows are shown as they come."""
    return _sql(sql, "table", _NO_TIME_SERIES, ref)


def series_of(sql: str, ref: str = "A") -> Json:
    """A target whose rows become series: a time, numbers, and texts that name the series; ordered by time."""
    return _sql(sql, "timeseries", _TIME_SERIES, ref)


def _sql(sql: str, kind: str, number: int, ref: str) -> Json:
    return {
        "refId": ref,
        "datasource": CLICKHOUSE,
        "editorType": "sql",
        "queryType": kind,
        "format": number,
        "pluginVersion": "4.0.0",
        "rawSql": sql,
    }


def expressions(*pairs: tuple[str, str], instant: bool = False) -> list[Json]:
    """Targets of Prometheus: each an expression and its legend."""
    return [
        {
            "refId": chr(ord("A") + place),
            "datasource": PROMETHEUS,
            "editorMode": "code",
            "expr": expr,
            "legendFormat": legend,
            "range": not instant,
            "instant": instant,
            **({"format": "table"} if instant else {}),
        }
        for place, (expr, legend) in enumerate(pairs)
    ]


# --- panels ---------------------------------------------------------------------------------------------------------


def time_series(
    title: str,
    about: str,
    targets: Sequence[Json],
    unit: str,
    *,
    style: str = "line",
    overrides: Sequence[Json] = (),
    stacked: bool = False,
    legend: str = "list",
    most: float | None = None,
) -> Json:
    """Lines, points or bars over time."""
    custom = {
        "drawStyle": style,
        "lineWidth": 1,
        "fillOpacity": 60 if style == "bars" else 0,
        "pointSize": 5,
        "showPoints": "always" if style == "points" else "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
    defaults: Json = {"unit": unit, "min": 0, "color": {"mode": "palette-classic"}, "custom": custom}
    if most is not None:
        defaults["max"] = most
    options = {
        "legend": {"displayMode": legend, "placement": "bottom", "showLegend": True, "calcs": ["max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel("timeseries", title, about, targets, defaults, options, overrides)


def table(
    title: str, about: str, targets: Sequence[Json], overrides: Sequence[Json] = (), left_out: Sequence[str] = ()
) -> Json:
    """Rows as they come, without some columns."""
    defaults = {"custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": True, "filterable": True}}
    made = _panel("table", title, about, targets, defaults, {"showHeader": True, "cellHeight": "sm"}, overrides)
    chosen = {"id": "organize", "options": {"excludeByName": dict.fromkeys(left_out, True)}}
    return {**made, "transformations": [chosen]} if left_out else made


def stat(
    title: str, about: str, targets: Sequence[Json], unit: str, steps: Sequence[tuple[float | None, str]]
) -> Json:
    """Large numbers; from each step on they have its colour."""
    thresholds = {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}
    defaults = {"unit": unit, "color": {"mode": "thresholds"}, "thresholds": thresholds}
    options = {
        "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
        "orientation": "auto",
        "textMode": "value_and_name",
        "wideLayout": True,
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    }
    return _panel("stat", title, about, targets, defaults, options)


def bars(title: str, about: str, targets: Sequence[Json], unit: str) -> Json:
    """A bar for each row, the first column its name."""
    thresholds = {"mode": "absolute", "steps": [{"value": None, "color": "orange"}]}
    defaults = {"unit": unit, "min": 0, "color": {"mode": "thresholds"}, "thresholds": thresholds}
    options = {
        "reduceOptions": {"values": True, "calcs": [], "fields": "", "limit": 20},
        "orientation": "horizontal",
        "displayMode": "gradient",
        "valueMode": "color",
        "namePlacement": "auto",
        "showUnfilled": True,
        "sizing": "auto",
        "minVizWidth": 8,
        "minVizHeight": 16,
        "maxVizHeight": 300,
    }
    return _panel("bargauge", title, about, targets, defaults, options)


def heat_map(title: str, about: str, targets: Sequence[Json], unit: str) -> Json:
    """A line for each series, coloured by its values: no buckets are computed, so no value is averaged away."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme",
            "scheme": "YlOrRd",
            "steps": 64,
            "reverse": False,
            "exponent": 0.5,
            "fill": "red",
        },
        "cellValues": {"unit": unit},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto", "value": "beyond the usual"},
        "showValue": "never",
        "tooltip": {"mode": "single", "showColorScale": True, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False},
    }
    return _panel("heatmap", title, about, targets, {"custom": {}}, options)


def _panel(
    kind: str,
    title: str,
    about: str,
    targets: Sequence[Json],
    defaults: Json,
    options: Json,
    overrides: Sequence[Json] = (),
) -> Json:
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": targets[0]["datasource"],
        "targets": list(targets),
        "fieldConfig": {"defaults": defaults, "overrides": list(overrides)},
        "options": options,
    }


# --- how single columns look ----------------------------------------------------------------------------------------


def column(name: str, **properties: Any) -> Json:
    """What is special about one column or series; ``__`` in a property's name stands for a dot."""
    listed = [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": listed}


def units(**by_column: str) -> list[Json]:
    """The unit of some columns."""
    return [column(name, unit=unit) for name, unit in by_column.items()]


def colored(*names: str) -> list[Json]:
    """Columns whose words have colours: severities and states."""
    options = {word: {"color": color, "index": place} for place, (word, color) in enumerate(_COLORS.items())}
    mappings = [{"type": "value", "options": options}]
    return [column(name, mappings=mappings, custom__cellOptions={"type": "color-text"}) for name in names]


def link_to(dashboard: str, title: str, **variables: str) -> list[Json]:
    """A link to another of our dashboards, with values of columns of the row, each encoded."""
    parts = [f"var-{name}=${{__data.fields.{field}:percentencode}}" for name, field in variables.items()]
    url = f"/d/irregulars-{dashboard}?{'&'.join([*parts, '${__url_time_range}'])}"
    return [{"title": title, "url": url}]


# --- variables and annotations --------------------------------------------------------------------------------------


def data_source_variable(name: str, label: str, plugin: str) -> Json:
    """Which of Grafana's data sources to ask; ours, as it is provisioned, to begin with."""
    return {
        "type": "datasource",
        "name": name,
        "label": label,
        "query": plugin,
        "refresh": 1,
        "includeAll": False,
        "multi": False,
        "current": {"text": f"Irregulars {label}", "value": f"irregulars-{name}"},
    }


def sql_variable(name: str, label: str, sql: str) -> Json:
    """A variable whose values the database knows."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": CLICKHOUSE,
        "query": {"refId": f"variable-{name}", "editorType": "sql", "queryType": "table", "rawSql": sql},
        "refresh": 1,
        "sort": 0,
        "regex": "",
        "includeAll": False,
        "multi": False,
    }


def label_variable(name: str, label: str, expr: str) -> Json:
    """A variable whose values are those of a label in Prometheus; all of them to begin with."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": PROMETHEUS,
        "query": {"refId": f"variable-{name}", "qryType": 1, "query": expr},
        "refresh": 2,
        "sort": 1,
        "regex": "",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def annotation(name: str, color: str, sql: str, *, enable: bool = True) -> Json:
    """Moments or spans that every chart over time shows."""
    return {
        "name": name,
        "datasource": CLICKHOUSE,
        "enable": enable,
        "hide": False,
        "iconColor": color,
        "target": {**rows_of(sql, "annotation")},
    }


CLICKHOUSE_VARIABLE: Final = data_source_variable("clickhouse", "ClickHouse", CLICKHOUSE["type"])
PROMETHEUS_VARIABLE: Final = data_source_variable("prometheus", "Prometheus", PROMETHEUS["type"])


# --- the whole ------------------------------------------------------------------------------------------------------


def dashboard(
    uid: str,
    title: str,
    about: str,
    *,
    rows: Sequence[Row],
    variables: Sequence[Json],
    annotations: Sequence[Json] = (),
    past: str = "now-6h",
    refresh: str = "30s",
) -> Json:
    """Put a dashboard together.

    Parameters
    ----------
    rows
        From top to bottom.
    past, refresh
        Where the time range begins, and how often panels are asked again, until somebody chooses otherwise.
    """
    others = {
        "type": "dashboards", "title": "Irregulars", "tags": ["irregulars"], "asDropdown": False, "icon": "dashboard",
        "includeVars": False, "keepTime": True, "targetBlank": False, "tooltip": "", "url": "",
    }  # fmt: skip
    return {
        "uid": f"irregulars-{uid}",
        "title": f"Irregulars: {title}",
        "description": about,
        "tags": ["irregulars"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "fiscalYearStartMonth": 0,
        "timezone": "browser",
        "time": {"from": past, "to": "now"},
        "timepicker": {},
        "refresh": refresh,
        "links": [others],
        "templating": {"list": list(variables)},
        "annotations": {"list": list(annotations)},
        "panels": _placed(rows),
    }


def _placed(rows: Sequence[Row]) -> list[Json]:
    placed: list[Json] = []
    top = 0
    for height, panels in rows:
        width = WIDTH // len(panels)
        for place, panel in enumerate(panels):
            at = {"x": place * width, "y": top, "w": width, "h": height}
            placed.append({"id": len(placed) + 1, **panel, "gridPos": at})
        top += height
    return placed
