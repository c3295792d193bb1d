"""The TOML file of a node's agent: which sources, how often devices are sampled, where messages wait.

Keys at the top level are general settings (``kafka_bootstrap``, ``topic_prefix``), as in ``irregulars.toml``. Tables
are the agent's own. An unknown key, a wrong type or a value out of bounds is an error that names file and key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from irregulars.errors import InputError
from irregulars.toml_tables import key, option_rows, read_table, read_toml
from irregulars.validation import Count, Text, checked, shown

Name = Annotated[str, Meta(min_length=1, max_length=255)]
JobName = Annotated[str, Meta(min_length=1, max_length=1000)]
Seconds = Annotated[float, Meta(ge=0.1, le=60)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """``[agent]``."""

    host: Name | None = key(None, "Name of this host in announcements that lack one; default: the system's")
    poll_ms: Annotated[float, Meta(ge=1, le=5000)] = key(
        100.0, "How long sources that have nothing are left alone, ms"
    )
    heartbeat_s: Seconds = key(
        1.0, "Seconds between heartbeats of a rank that has news; ten times that of one that has none"
    )
    sysfs: Path = key(Path("/sys"), "Where sysfs is: another place in a container that mounts the host's")


@dataclass(frozen=True, slots=True, kw_only=True)
class NicsTable:
    """``[nics]``."""

    enabled: bool = key(True, "Sample byte counters of the NICs that ranks use")
    period_ms: Annotated[float, Meta(ge=1, le=60_000)] = key(10.0, "From one sample to the next, ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusTable:
    """``[gpus]``."""

    enabled: bool = key(True, "Sample traffic and health of the GPUs that ranks use, through NVML")
    period_s: Seconds = key(1.0, "From one look at all GPUs to the next, seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolTable:
    """``[spool]``."""

    directory: Path = key(Path("/var/lib/irregulars/spool"), "Where messages wait while Kafka is away")
    limit_mib: Annotated[int, Meta(ge=2, le=1 << 20)] = key(
        1024, "About so much, MiB; above it the oldest are dropped and counted"
    )
    memory_mib: Annotated[int, Meta(ge=2, le=1024)] = key(
        4, "In flight, and as much again before it goes to disk, MiB"
    )
    final_s: Annotated[float, Meta(ge=0, le=600)] = key(
        5.0, "How long the agent's end waits for Kafka before it leaves the rest here, s"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsTable:
    """``[metrics]``."""

    enabled: bool = key(True, "Serve Prometheus metrics over HTTP")
    host: Name = key("127.0.0.1", "Where to listen; anyone who can reach it can read it")
    port: Annotated[int, Meta(ge=0, le=65_535)] = key(9464, "Port; 0: any free one")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTable:
    """``[[ranks]]``: a rank that lives here and announces itself elsewhere."""

    job: JobName = key(MISSING, "Training job")
    rank: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] = key(MISSING, "Global rank")
    attempt: Count = key(0, "Start number of the job")
    gpu: Annotated[int, Meta(ge=0, le=1023)] | None = key(
        None, "Its GPU's index on this host, in the order of PCI addresses"
    )
    nic: Name | None = key(None, "Its NIC; default: the one nearest to its GPU")


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
        If the file can't be read, two sources have one name, or a key is unknown, missing, of the wrong type or out
        of bounds.
    """
    found = read_toml(path, "agent's file")
    values: dict[str, Any] = {}
    for name, table in TABLES.items():
        if name in found:
            values[name] = read_table(found[name], table, f"{path}, table {name}")
    values["ranks"] = tuple(read_table(one, RankTable, where) for one, where in _array(found, "ranks", path))
    values["sources"] = tuple(_source(one, where) for one, where in _array(found, "sources", path))
    _require_distinct(values["sources"])
    return AgentFile(**values)


def _require_distinct(sources: Iterable[SourceTable]) -> None:
    names: set[str] = set()
    for one in sources:
        if one.name in names:
            raise InputError(f"name must be another than those before; got {one.name!r} ({one.where}, key name)")
        names.add(one.name)


def _array(found: Mapping[str, Any], name: str, path: Path) -> list[tuple[Any, str]]:
    tables = found.get(name, [])
    if not isinstance(tables, list):
        raise InputError(f"{name} must be an array of tables, [[{name}]]; got a table ({path}, key {name})")
    return [(one, f"{path}, {name} {place + 1}") for place, one in enumerate(tables)]


def _source(found: Any, where: str) -> SourceTable:
    if not isinstance(found, dict):
        raise InputError(f"source must be a table, [[sources]]; got {shown(found)} ({where})")
    kind = checked(found.get("kind"), Text, "kind", f"{where}, key kind")
    name = checked(found.get("name", kind), Text, "name", f"{where}, key name")
    options = {key: value for key, value in found.items() if key not in ("kind", "name")}
    return SourceTable(kind, name, options, where)


def agent_table() -> str:
    """Return the Markdown table of ``infra/docs/agent.md``."""
    tables = [*((f"[{name}]", table) for name, table in TABLES.items()), ("[[ranks]]", RankTable)]
    rows = [f"| `{prefix}` {row}" for prefix, table in tables for row in option_rows(table)]
    return "\n".join(["| table | key | value | default | meaning |", "|---|---|---|---|---|", *rows, ""])
