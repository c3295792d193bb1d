"""The TOML file of a node's agent: which sources, how often devices are sampled, where messages wait.

Keys at the top level are general settings (``kafka_bootstrap``, ``topic_prefix``), as in ``irregulars.toml``. Tables
are the agent's own. An unknown key, a wrong type or a value out of bounds is an error that names file and key.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, get_type_hints

from irregulars.errors import InputError
from irregulars.infra.configuration.toml_file import read_toml, shown

_KINDS: Final[Mapping[Any, tuple[tuple[type, ...], str]]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    int | None: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "text"),
    str | None: ((str,), "text"),
    Path: ((str,), "a path"),
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a number, or the length of a text, must lie between."""

    least: float
    most: float

    def holds(self, value: Any) -> bool:
        """Whether `value` lies within."""
        return self.least <= (len(value) if isinstance(value, str) else value) <= self.most

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:g}"


def key(default: Any, about: str, least: float | None = None, most: float | None = None) -> Any:
    """Describe a key of a table: its default (`MISSING`: it must be given), what it is, and its bounds."""
    bounds = None if least is None or most is None else Bounds(least, most)
    return field(default=default, metadata=MappingProxyType({"about": about, "bounds": bounds}))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """``[agent]``."""

    host: str | None = key(None, "Name of this host in announcements that lack one; default: the system's", 1, 255)
    poll_ms: float = key(100.0, "How long sources that have nothing are left alone, ms", 1, 5000)
    heartbeat_s: float = key(1.0, "Seconds between heartbeats of a rank", 0.1, 60)
    sysfs: Path = key(Path("/sys"), "Where sysfs is: another place in a container that mounts the host's")  # noqa: RUF009


@dataclass(frozen=True, slots=True, kw_only=True)
class NicsTable:
    """``[nics]``."""

    enabled: bool = key(True, "Sample byte counters of the NICs that ranks use")
    period_ms: float = key(10.0, "From one sample to the next, ms", 1, 60_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusTable:
    """``[gpus]``."""

    enabled: bool = key(True, "Sample traffic and health of the GPUs that ranks use, through NVML")
    period_s: float = key(1.0, "From one look at all GPUs to the next, seconds", 0.1, 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolTable:
    """``[spool]``."""

    directory: Path = key(Path("/var/lib/irregulars/spool"), "Where messages wait while Kafka is away")  # noqa: RUF009
    limit_mib: int = key(1024, "At most so much, MiB; above it the oldest are dropped and counted", 2, 1 << 20)
    memory_mib: int = key(4, "In flight, and as much again before it goes to disk, MiB", 2, 1024)
    final_s: float = key(5.0, "How long the agent's end waits for Kafka before it leaves the rest here, s", 0, 600)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsTable:
    """``[metrics]``."""

    enabled: bool = key(True, "Serve Prometheus metrics over HTTP")
    host: str = key("127.0.0.1", "Where to listen; anyone who can reach it can read it", 1, 255)
    port: int = key(9464, "Port; 0: any free one", 0, 65_535)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTable:
    """``[[ranks]]``: a rank that lives here and announces itself elsewhere."""

    job: str = key(MISSING, "Training job", 1, 1000)
    rank: int = key(MISSING, "Global rank", 0, (1 << 31) - 1)
    attempt: int = key(0, "Start number of the job", 0, (1 << 62))
    gpu: int | None = key(None, "Its GPU's index on this host, in the order of PCI addresses", 0, 1023)
    nic: str | None = key(None, "Its NIC; default: the one nearest to its GPU", 1, 255)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """``[[sources]]``: ``kind``, a name for the log, and what that kind takes."""

    kind: str
    name: str
    options: Mapping[str, Any]
    where: str


@dataclass(frozen=True, slots=True)
class AgentFile:
    """All tables of the file."""

    agent: NodeTable = field(default_factory=NodeTable)
    nics: NicsTable = field(default_factory=NicsTable)
    gpus: GpusTable = field(default_factory=GpusTable)
    spool: SpoolTable = field(default_factory=SpoolTable)
    metrics: MetricsTable = field(default_factory=MetricsTable)
    ranks: tuple[RankTable, ...] = ()
    sources: tuple[SourceTable, ...] = ()


TABLES: Final[Mapping[str, type]] = {
    "agent": NodeTable, "nics": NicsTable, "gpus": GpusTable, "spool": SpoolTable, "metrics": MetricsTable,
}  # fmt: skip
ARRAYS: Final = ("ranks", "sources")


def read_agent_file(path: Path) -> AgentFile:
    """Read the tables of an agent's file; its keys at the top level are read by `settings.load_settings`.

    Raises
    ------
    InputError
        If the file can't be read, or a key is unknown, missing, of the wrong type or out of bounds.
    """
    found = read_toml(path, "agent's file")
    values: dict[str, Any] = {}
    for name, table in TABLES.items():
        if name in found:
            values[name] = read_table(found[name], table, f"{path}, table {name}")
    values["ranks"] = tuple(read_table(one, RankTable, where) for one, where in _array(found, "ranks", path))
    values["sources"] = tuple(_source(one, where) for one, where in _array(found, "sources", path))
    return AgentFile(**values)


_Table = TypeVar("_Table")


def read_table(found: Any, table: type[_Table], where: str) -> _Table:
    """Read one table of a TOML file into a dataclass whose fields were made by `key`, or have defaults.

    Raises
    ------
    InputError
        See `read_agent_file`.
    """
    known: dict[str, Field[Any]] = {one.name: one for one in fields(table)}  # type: ignore[arg-type]
    if not isinstance(found, dict):
        raise InputError(f"table must hold keys; got {shown(found)} ({where})")
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it may be one of {', '.join(known)}"
            raise InputError(f"key must be a known one; got {shown(name)} ({where}); {hint}")
    for name, one in known.items():
        if name not in found and one.default is MISSING and one.default_factory is MISSING:
            raise InputError(f"key {name} must be there; got none ({where})")
    kinds = get_type_hints(table)
    return table(**{name: _value(known[name], kinds[name], value, where) for name, value in found.items()})


def _value(one: Field[Any], kind: Any, value: Any, where: str) -> Any:
    types, words = _KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{one.name} must be {words}; got {shown(value)} ({where}, key {one.name})")
    if isinstance(value, str) and "\0" in value:
        raise InputError(f"{one.name} must be {words} without a null; got {shown(value)} ({where}, key {one.name})")
    bounds: Bounds | None = one.metadata.get("bounds")
    if bounds is not None and not bounds.holds(value):
        rule = f"{bounds} characters long" if isinstance(value, str) else str(bounds)
        raise InputError(f"{one.name} must be {rule}; got {shown(value)} ({where}, key {one.name})")
    convert: Callable[[Any], Any] = {Path: Path, float: float}.get(kind, lambda same: same)
    try:
        return convert(value)
    except OverflowError:
        raise InputError(
            f"{one.name} must be {words} below 1e308; got {shown(value)} ({where}, key {one.name})"
        ) from None


def _array(found: Mapping[str, Any], name: str, path: Path) -> list[tuple[Any, str]]:
    tables = found.get(name, [])
    if not isinstance(tables, list):
        raise InputError(f"{name} must be an array of tables, [[{name}]]; got a table ({path}, key {name})")
    return [(one, f"{path}, {name} {place + 1}") for place, one in enumerate(tables)]


def _source(found: Any, where: str) -> SourceTable:
    if not isinstance(found, dict):
        raise InputError(f"source must be a table, [[sources]]; got {shown(found)} ({where})")
    options = dict(found)
    texts = {}
    for name, default in (("kind", None), ("name", found.get("kind"))):
        value = options.pop(name, default)
        if not isinstance(value, str) or not value:
            raise InputError(f"{name} must be text; got {shown(value)} ({where}, key {name})")
        texts[name] = value
    return SourceTable(texts["kind"], texts["name"], options, where)


def agent_table() -> str:
    """Return the Markdown table of ``infra/docs/agent.md``."""
    rows = [
        f"| `{prefix}` | `{one.name}` | {_shown(one)} | {one.metadata['about']}{_bounds(one)} |"
        for prefix, table in [*((f"[{name}]", table) for name, table in TABLES.items()), ("[[ranks]]", RankTable)]
        for one in fields(table)
    ]
    return "\n".join(["| table | key | default | meaning |", "|---|---|---|---|", *rows, ""])


def _shown(one: Field[Any]) -> str:
    if one.default is MISSING:
        return "must be given"
    return "none" if one.default is None else f"`{str(one.default).lower()}`"


def _bounds(one: Field[Any]) -> str:
    bounds: Bounds | None = one.metadata["bounds"]
    return "" if bounds is None or isinstance(one.default, str) or one.type.startswith("str") else f"; {bounds}"
