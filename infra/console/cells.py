"""Answers of the questions that ship as tables, and addresses of pages. Pure: the templates escape texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from starlette.convertors import PathConvertor, register_url_convertor

from irregulars.printing import printable
from irregulars.sinks.investigations import Answer
from irregulars.words import amount, moment, name_kind, percent

NAME: Final = "irregulars_name"
"""In a route, ``{job:irregulars_name}``: a name that `piece_of` wrote, slashes and line breaks included."""

_DOTS: Final = (".", "..")


def piece_of(name: str) -> str:
    """Return a name as one piece of an address.

    Browsers take a piece ``.`` or ``..`` for a step up, encoded or not, so these get a slash, which the route drops.

    >>> piece_of("a/b"), piece_of("..")
    ('a%2Fb', '..%2F')
    """
    return quote(f"{name}/" if name in _DOTS else name, safe="")


class _Name(PathConvertor):
    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value[:-1] if value[:-1] in _DOTS and value[-1] == "/" else value


register_url_convertor(NAME, _Name())


NONE: Final = "–"

_LABELS: Final[Mapping[str, str]] = {
    "world_size": "GPUs", "hosts": "Hosts", "last_seen_at": "Last seen", "recent_iteration_s": "Iteration, s",
    "irregular_iterations": "Irregular", "open_verdicts": "Open", "gpu_hours_lost": "GPU-hours lost",
    "gpu_hours_per_hour": "GPU-hours an hour", "verdict_id": "Verdict", "times_usual": "× usual", "delta": "× usual",
    "expected_gpu_hours_lost": "GPU-hours lost", "expected_lost_s": "Seconds lost", "probability": "How sure",
    "some_jobs": "Some jobs", "gpu": "GPU", "nic": "NIC", "xids": "Xids", "newest_at": "Newest iteration",
    "newest_stored_at": "Stored", "behind_s": "Behind, s", "iterations_without_all_ranks": "Lack ranks",
    "rows_lost_by_exporters": "Rows lost", "elapsed_s": "Took, s", "usual_s": "Usual, s", "verdict_ids": "Verdicts",
    "ranks_reported": "Ranks", "recovers_ratio": "Would come back", "started_at": "Began", "lost_s": "Seconds lost",
    "past_last_iteration": "Past last", "first_iteration": "First iteration", "begun_at": "Began", "seen_at": "Seen",
    "newest_iteration_of_job": "Job is at", "last_iteration": "Last iteration",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table."""

    text: str  # what people read
    href: str | None = None  # where it leads; None: nowhere
    kind: str = ""  # a class of the style sheet, for severities and states; empty: none
    time_s: float | None = None  # seconds since the epoch where it is a moment: pages then say how long ago it was


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column: its name in the answer, its label, and whether its values are numbers."""

    name: str
    label: str
    is_number: bool


@dataclass(frozen=True, slots=True)
class Table:
    """An answer to be shown; ``empty`` explains an answer without rows."""

    heads: Sequence[Head]
    rows: Sequence[Sequence[Cell]]
    empty: str


def table_of(answer: Answer, columns: Sequence[str] | None = None) -> Table:
    """Return an answer as a table.

    Parameters
    ----------
    columns
        Which columns, in which order; None: all of them.
    """
    places = [answer.columns.index(one) for one in columns or answer.columns if one in answer.columns]
    heads = []
    for at in places:
        kinds = {type(row[at]) for row in answer.rows if row[at] is not None}
        is_number = bool(kinds) and all(issubclass(kind, int | float) and kind is not bool for kind in kinds)
        heads.append(Head(answer.columns[at], label_of(answer.columns[at]), is_number))
    named = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    rows = [[cell_of(head.name, row[head.name], row) for head in heads] for row in named]
    return Table(heads, rows, answer.empty)


def label_of(name: str) -> str:
    """Return what people call a column.

    >>> label_of("gpu_hours_lost"), label_of("close_reason")
    ('GPU-hours lost', 'Close reason')
    """
    text = name.replace("_", " ")
    return _LABELS.get(name, text[:1].upper() + text[1:])


def cell_of(name: str, value: Any, row: Mapping[str, Any]) -> Cell:
    """Return the cell of one value; its link follows from the other values of the row.

    >>> cell_of("probability", 0.914, {}).text, cell_of("job", "a b", {}).href, cell_of("nic", None, {}).text
    ('91%', '/jobs/a%20b', '–')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)) or value == [] or value == ():
        return Cell(NONE)
    if isinstance(value, datetime):
        time_s = value.replace(tzinfo=value.tzinfo or UTC).timestamp()
        return Cell(moment(int(time_s) * 10**9), time_s=time_s)
    text = _TEXTS.get(name, _plain_text)(value)
    return Cell(text, _link(name, value, row), _KINDS.get(name, lambda value: "")(value))


def job_path(job: str, attempt: int | None = None) -> str:
    """Return the address of a job's page."""
    return f"/jobs/{piece_of(job)}{'' if attempt is None else f'?attempt={attempt}'}"


def incident_path(verdict_id: str) -> str:
    """Return the address of an incident's page."""
    return f"/incidents/{piece_of(verdict_id)}"


def host_path(host: str) -> str:
    """Return the address of a host's history."""
    return f"/hosts/{piece_of(host)}"


def device_path(row: Mapping[str, Any]) -> str | None:
    """Return the address of a device's history; None: it can't be told from others.

    >>> device_path({"device": "nic", "host": "node-3", "nic": "mlx5_1"})
    '/devices/history?host=node-3&nic=mlx5_1'
    """
    kind, names = row.get("device"), ("host", "gpu", "nic", "switch")
    given = {name: row[name] for name in names if row.get(name) is not None}
    if kind == "switch":
        given = {name: value for name, value in given.items() if name == "switch"}
    if not given or (kind != "switch" and "host" not in given):
        return None
    if kind == "host":
        return host_path(str(given["host"]))
    wanted = {"gpu": ("host", "gpu"), "nic": ("host", "nic"), "link": ("host", "nic"), "switch": ("switch",)}
    told = [f"{name}={quote(str(given[name]), safe='')}" for name in wanted.get(str(kind), ()) if name in given]
    return f"/devices/history?{'&'.join(told)}" if told else None


def _link(name: str, value: Any, row: Mapping[str, Any]) -> str | None:
    if name == "job":
        return job_path(str(value))
    if name == "verdict_id":
        return incident_path(str(value))
    if name == "host":
        return host_path(str(value))
    if name == "device":
        return device_path(row)
    return None


def _plain_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(_plain_text(one) for one in value)
    return printable(value)


def _share(value: Any) -> str:
    return f"{float(value):.0%}"


_TEXTS: Final[Mapping[str, Callable[[Any], str]]] = {
    "probability": lambda value: percent(float(value)),
    "highest_probability": lambda value: percent(float(value)),
    "told_probability": lambda value: percent(float(value)),
    "recovers_ratio": _share,
    "right_share": _share,
    "kind": lambda value: name_kind(printable(value)),
    "gpu_hours_lost": lambda value: amount(float(value)),
    "gpu_hours_per_hour": lambda value: amount(float(value)),
    "expected_gpu_hours_lost": lambda value: amount(float(value)),
    "attempt": str,
    "rank": str,
    "iteration": str,
    "gpu": str,
    "xids": lambda value: ", ".join(map(str, value)),
}
_KINDS: Final[Mapping[str, Callable[[Any], str]]] = {
    "severity": lambda value: f"badge {value}" if value in ("page", "ticket", "note") else "",
    "state": lambda value: f"badge {value}" if value in ("open", "closed") else "",
    "verdict_id": lambda value: "code",
}
