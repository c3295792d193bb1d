"""Investigations: questions that ship as SQL files, their parameters, and how to run them.

Each file in ``sinks/sql/investigations`` begins with comments that describe it::

    -- title: Irregular iterations of a job
    -- theme: an iteration
    -- description: Which iterations took too long,
    --     by how much.
    -- empty: No iteration of this job was irregular.
    -- parameter: job String = NEWEST | training job
    -- parameter: limit UInt32 = 100 | iterations at most

``theme`` is one of `THEMES`; ``empty`` is the meaning of an answer without rows. A parameter without a default must
be given; the default ``NEWEST`` is looked up in the database (`look_up`). Values travel beside the SQL, never in it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from irregulars.errors import InputError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

# Subjects of questions, in the order in which they are listed
THEMES: Final = ("now", "a verdict", "an iteration", "devices and hosts", "jobs and cost", "the pipeline")

_ONCE: Final = ("title", "theme", "description", "empty")
_PARAMETER: Final = re.compile(
    r"(?P<name>\w+) (?P<type>[\w()]+)(?: = (?P<default>'[^']*'|\S+))? \| (?P<description>.+)"
)
_BOUNDS: Final = {"UInt32": (0, 2**32 - 1), "Int64": (-(2**63), 2**63 - 1), "Nullable(Int64)": (-(2**63), 2**63 - 1)}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an investigation; ``default`` is the text of the file, None where a value must be given."""

    name: str
    type: str
    default: str | None
    description: str

    @property
    def is_required(self) -> bool:
        """Whether a value must be given."""
        return self.default is None

    @property
    def placeholder(self) -> str | int | None:
        """A value that fits the type, where the answer does not matter."""
        return "" if self.type == "String" else None if self.type.startswith("Nullable(") else 0

    def parse(self, value: object) -> str | int | None:
        """Read a value as a person or a program gives it, text or number.

        Raises `InputError` if it is of another type, or out of range.
        """
        if value == NEWEST and self.default == NEWEST:
            return NEWEST
        if self.type == "String":
            return str(value)
        if self.type.startswith("Nullable(") and (value is None or value in ("", "NULL")):
            return None
        first, last = _BOUNDS[self.type]
        try:
            number = int(str(value))
        except ValueError:
            number = None
        if number is None or not first <= number <= last:
            raise InputError(
                f"parameter {self.name} must be an integer from {first} to {last}; got {value!r} ({self.description})"
            )
        return number


@dataclass(frozen=True, slots=True)
class Investigation:
    """One shipped question."""

    # name, sql: the file's name, and its whole text
    name: str
    title: str
    theme: str  # one of `THEMES`
    description: str
    empty: str  # meaning of an answer without rows, a sentence
    parameters: tuple[Parameter, ...]
    sql: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the database; times are naive, in UTC."""

    # columns, rows: names of the columns, and the rows
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    # Values of parameters that were left to the database: the newest job, and so on
    chosen: Mapping[str, str | int | None] = field(default_factory=dict)
    empty: str = ""  # meaning of an answer without rows; empty: not known
    cut_at: int | None = None  # the question's limit, if there are more rows than it let through


@cache
def shipped_investigations() -> Mapping[str, Investigation]:
    """Return the shipped investigations by name.

    >>> sorted(shipped_investigations())[0]
    'audits_apart'
    """
    folder = files("irregulars.sinks").joinpath("sql", "investigations")
    paths = sorted((path for path in folder.iterdir() if path.name.endswith(".sql")), key=lambda path: path.name)
    found = (read_investigation(path.name.removesuffix(".sql"), path.read_text("utf-8")) for path in paths)
    return {investigation.name: investigation for investigation in found}


def read_investigation(name: str, text: str) -> Investigation:
    """Read the header of an investigation; tests require of those that ship that it is complete and fits the SQL."""
    entries = list(_entries(text))
    head = {key: value for key, value in entries if key in _ONCE}
    found = (_PARAMETER.fullmatch(value) for key, value in entries if key == "parameter")
    parameters = tuple(Parameter(**match.groupdict()) for match in found if match is not None)
    return Investigation(name=name, **head, parameters=parameters, sql=text)


def find_investigation(name: str) -> Investigation:
    """Return a shipped investigation; raises `InputError` for an unknown name."""
    shipped = shipped_investigations()
    if name not in shipped:
        near = _nearest(name, shipped)
        rule = f"one that ships; got {name!r}. {near}" if near else f"one of {', '.join(shipped)}; got {name!r}."
        raise InputError(f"question must be {rule} See: irregulars sql --list")
    return shipped[name]


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else ""


def bind(investigation: Investigation, values: Mapping[str, object]) -> dict[str, str | int | None]:
    """Check values for an investigation's parameters, and add the defaults.

    Raises `InputError` if a required one is missing, one is unknown, or a value does not fit its type.
    """
    known = {parameter.name: parameter for parameter in investigation.parameters}
    missing = [p for p in investigation.parameters if p.is_required and p.name not in values]
    unknown = sorted(set(values) - set(known))
    if unknown:
        hints = [hint for hint in (_nearest(name, known) for name in unknown) if hint]
        rule = f"parameters of {investigation.name} must be among {sorted(known)}; got {unknown}"
        raise InputError(". ".join([rule, *hints[:1]]))
    if missing:
        names = "; ".join(f"{p.name} ({p.type}: {p.description})" for p in missing)
        raise InputError(f"investigation {investigation.name} must be given {names}; got {sorted(values)}")
    return {name: p.parse(values.get(name, (p.default or "").strip("'"))) for name, p in known.items()}


def run(client: Client, name: str, parameters: Mapping[str, object] | None = None) -> Answer:
    """Run a shipped investigation; `parameters`: values by name, as text or as numbers.

    Wrap the call in `sinks.connection.translated` to get our errors. Raises `InputError` if the name is unknown, or
    the values do not fit.
    """
    investigation = find_investigation(name)
    values = bind(investigation, parameters or {})
    wanted = [name for name, value in values.items() if value == NEWEST]
    values |= (chosen := look_up(client, wanted, values))
    if None in chosen.values():  # nothing is stored that could be the newest
        known = {name: value for name, value in chosen.items() if value is not None}
        return Answer(_columns(client, investigation, values), (), known, investigation.empty)
    limit = values["limit"]
    assert isinstance(limit, int)  # each question has one: a test says so
    one_more = {"limit": min(limit + 1, _BOUNDS["UInt32"][1])}  # so that we know whether there are more
    result = client.query(investigation.sql, parameters=values | one_more)
    rows = tuple(tuple(row) for row in result.result_rows[:limit])
    # An answer without rows comes without names of columns.
    names = tuple(result.column_names) if rows else _columns(client, investigation, values)
    is_cut = len(result.result_rows) > limit
    return Answer(names, rows, chosen, investigation.empty, limit if is_cut else None)


def run_sql(client: Client, sql: str, parameters: Mapping[str, object] | None = None) -> Answer:
    """Run SQL of one's own; a statement that answers nothing gives one row that says so."""
    result = client.query(sql, parameters=dict(parameters or {}))
    # The client answers with a summary, but to an INSERT with nothing, as to a SELECT that finds no row.
    if {"query_id", "written_rows"} <= set(result.column_names) or sql.lstrip()[:6].upper() == "INSERT":
        return Answer(("done",), ((True,),))
    return Answer(tuple(result.column_names), tuple(tuple(row) for row in result.result_rows))


def _columns(client: Client, investigation: Investigation, values: Mapping[str, Any]) -> tuple[str, ...]:
    typed = {p.name: p.placeholder if values[p.name] is None else values[p.name] for p in investigation.parameters}
    return tuple(client.query(f"SELECT * FROM ({investigation.sql}) LIMIT 0", typed).column_names)


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield key and value of each header line; an indented comment continues the line before."""
    pending: tuple[str, str] | None = None
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        body = line.removeprefix("--")
        if pending and body.startswith("    "):
            pending = (pending[0], f"{pending[1]} {body.strip()}")
            continue
        if pending:
            yield pending
        key, _, value = body.strip().partition(": ")
        pending = (key, value.strip())
    if pending:
        yield pending


# --- values that a question leaves to the database: its newest job, verdict, irregular iteration ---
# Each is looked up beforehand by a query of its own, so that questions stay SQL with plain values: ClickHouse then
# reads by key, and the same text runs in Grafana.

NEWEST: Final = "NEWEST"  # default of a parameter whose value is looked up
_JOB: Final = """
    SELECT job
    FROM
    (
        SELECT job, max(started_at) AS seen_at FROM iterations GROUP BY job
        UNION ALL
        SELECT job, max(last_seen_at) AS seen_at FROM verdicts GROUP BY job
        UNION ALL
        SELECT job, max(toDateTime64(stored_at, 9, 'UTC')) AS seen_at
        FROM jobs
        WHERE job NOT IN (SELECT job FROM iterations)
        GROUP BY job
    )
    ORDER BY seen_at DESC NULLS LAST, job
    LIMIT 1
"""
# A job that was announced and has no iteration yet counts by the moment of its announcement.

_VERDICT: Final = """
    SELECT verdict_id
    FROM verdicts FINAL
    WHERE {job:String} = '' OR job = {job:String}
    ORDER BY last_seen_at DESC NULLS LAST, verdict_id
    LIMIT 1
"""

# Of an irregular iteration that a verdict explains the operators were read, and stand in the database.
_ITERATION: Final = """
    SELECT iteration
    FROM iterations FINAL
    WHERE job = {job:String} AND is_irregular
        AND ({attempt:Nullable(Int64)} IS NULL OR attempt = {attempt:Nullable(Int64)})
    ORDER BY attempt DESC, notEmpty(verdict_ids) DESC, iteration DESC
    LIMIT 1
"""

# Parameters that can be looked up, in the order in which one needs the other, and how
NEWEST_OF: Final[Mapping[str, str]] = {"job": _JOB, "verdict_id": _VERDICT, "iteration": _ITERATION}


def look_up(client: Client, names: Sequence[str], values: Mapping[str, Any]) -> dict[str, str | int | None]:
    """Return the newest values of the parameters `names`, of `NEWEST_OF`; None where nothing is stored.

    `values`: of the question's other parameters.
    """
    found: dict[str, str | int | None] = {}
    for name in (one for one in NEWEST_OF if one in names):
        known = {"job": "", "attempt": None, **values, **found}
        # No job is stored, so nothing of a job is.
        if known["job"] is None:
            found[name] = None
            continue
        rows = client.query(NEWEST_OF[name], parameters=known).result_rows
        found[name] = rows[0][0] if rows else None
    return found
