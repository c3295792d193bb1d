"""Investigations: questions that ship as SQL files, their parameters, and how to run them.

Each file in ``sinks/sql/investigations`` begins with comments that say what it is::

    -- title: Irregular iterations of a job
    -- description: Which iterations took too long,
    --     by how much.
    -- parameter: job String | training job
    -- parameter: limit UInt32 = 100 | iterations at most

A parameter without a default must be given. Values travel beside the SQL, never in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from irregulars.errors import InputError

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_PARAMETER: Final = re.compile(
    r"(?P<name>\w+) (?P<type>[\w()]+)(?: = (?P<default>'[^']*'|\S+))? \| (?P<description>.+)"
)
_PLACEHOLDER: Final = re.compile(r"\{(\w+):([\w()]+)\}")
_BOUNDS: Final = {
    "UInt32": (0, 2**32 - 1),
    "Int64": (-(2**63), 2**63 - 1),
    "Nullable(Int64)": (-(2**63), 2**63 - 1),
}


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

    def parse(self, value: object) -> str | int | None:
        """Read a value as a person or a program gives it, text or number.

        Raises
        ------
        InputError
            If it is of another type, or out of range.
        """
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
    """One shipped question: ``name`` is the file's, ``sql`` its whole text."""

    name: str
    title: str
    description: str
    parameters: tuple[Parameter, ...]
    sql: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Names of the columns, and the rows. Times are naive, in UTC."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@cache
def shipped_investigations() -> Mapping[str, Investigation]:
    """Return the shipped investigations by name.

    >>> sorted(shipped_investigations())[0]
    'bandwidth_of_rank'
    """
    folder = files("irregulars.sinks").joinpath("sql", "investigations")
    paths = sorted((path for path in folder.iterdir() if path.name.endswith(".sql")), key=lambda path: path.name)
    found = (read_investigation(path.name.removesuffix(".sql"), path.read_text("utf-8")) for path in paths)
    return {investigation.name: investigation for investigation in found}


def read_investigation(name: str, text: str) -> Investigation:
    """Read the header of an investigation.

    Raises
    ------
    InputError
        If title or description are missing, a parameter can't be read, or header and SQL name different parameters.
    """
    entries = list(_entries(text))
    titles, descriptions = ([value for key, value in entries if key == wanted] for wanted in ("title", "description"))
    if len(titles) != 1 or len(descriptions) != 1:
        raise InputError(f"investigation must have one title and one description; got {entries!r} ({name}.sql)")
    parameters = tuple(_parameter(name, value) for key, value in entries if key == "parameter")
    declared, used = {(p.name, p.type) for p in parameters}, set(_PLACEHOLDER.findall(text))
    if declared != used:
        raise InputError(f"parameters must be {sorted(used)}, as in the SQL; got {sorted(declared)} ({name}.sql)")
    return Investigation(name, titles[0], descriptions[0], parameters, text)


def find_investigation(name: str) -> Investigation:
    """Return a shipped investigation; raises `InputError` for an unknown name."""
    shipped = shipped_investigations()
    if name not in shipped:
        raise InputError(f"investigation must be one of {', '.join(shipped)}; got {name!r}")
    return shipped[name]


def bind(investigation: Investigation, values: Mapping[str, object]) -> dict[str, str | int | None]:
    """Check values for an investigation's parameters, and add the defaults.

    Raises
    ------
    InputError
        If a required one is missing, one is unknown, or a value does not fit its type.
    """
    known = {parameter.name: parameter for parameter in investigation.parameters}
    missing = [p for p in investigation.parameters if p.is_required and p.name not in values]
    unknown = sorted(set(values) - set(known))
    if missing:
        names = "; ".join(f"{p.name} ({p.type}: {p.description})" for p in missing)
        raise InputError(f"investigation {investigation.name} must be given {names}; got {sorted(values)}")
    if unknown:
        raise InputError(f"parameters of {investigation.name} must be among {sorted(known)}; got {unknown}")
    return {name: p.parse(values.get(name, (p.default or "").strip("'"))) for name, p in known.items()}


def run(client: Client, name: str, parameters: Mapping[str, object] | None = None) -> Answer:
    """Run a shipped investigation.

    Parameters
    ----------
    client
        From `sinks.connection.connect`. Wrap the call in `sinks.connection.translated` to get our errors.
    name
        File name without its ending.
    parameters
        Values by name, as text or as numbers.

    Raises
    ------
    InputError
        If the name is unknown, or the parameters do not fit.
    """
    investigation = find_investigation(name)
    values = bind(investigation, parameters or {})
    result = client.query(investigation.sql, parameters=values)
    # An answer without rows comes without names of columns; this form of a question is answered by names alone.
    names = result if result.result_rows else client.query(f"SELECT * FROM ({investigation.sql}) LIMIT 0", values)
    return Answer(tuple(names.column_names), tuple(tuple(row) for row in result.result_rows))


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


def _parameter(name: str, text: str) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match is None or match["type"] not in {"String", *_BOUNDS}:
        raise InputError(
            f"parameter must be `name Type = default | description`, its type one of String, {', '.join(_BOUNDS)}; "
            f"got {text!r} ({name}.sql)"
        )
    return Parameter(match["name"], match["type"], match["default"], match["description"])
