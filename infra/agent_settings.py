"""The TOML file of a node's agent: which sources, how often devices are sampled, where messages wait.

Keys at the top level are general settings (``kafka_bootstrap``, ``topic_prefix``), as in ``irregulars.toml``. Tables
are the agent's own. An unknown key, a wrong type or a value out of bounds is an error that names file and key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

from msgspec import Meta

from irregulars.errors import InputError
from irregulars.producers.publishing.sources import Source
from irregulars.toml_tables import key, open_plugin, read_table, read_toml
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
    fabric: Path | None = key(
        None, "Where it stands which switch each NIC is plugged into, and what is above it (importing.md#fabric)"
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
class EventsTable:
    """``[events]``."""

    enabled: bool = key(True, "Publish what devices report: XIDs, links and their errors, PCIe, lack of memory")
    kernel_log: Path | None = key(
        Path("/dev/kmsg"), "The kernel's log: a device as this one, or a text file that is appended to"
    )
    slurm_log: Path | None = key(None, "slurmd's log, or a file to which scripts append lines of sacct and scontrol")
    error_files: Path | None = key(None, "torchrun's `--log-dir`, where processes leave their last error")


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksTable:
    """``[stacks]``."""

    enabled: bool = key(True, "Take the stacks of processes that an alert accuses, and of two peers (needs py-spy)")
    profiler: bool = key(True, "Ask slow ranks and their peers to run torch.profiler over three iterations")


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
    """``[[sources]]``: ``kind``, a name for the log, and the options of that kind."""

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
    events: EventsTable = field(default_factory=EventsTable)
    stacks: StacksTable = field(default_factory=StacksTable)
    spool: SpoolTable = field(default_factory=SpoolTable)
    metrics: MetricsTable = field(default_factory=MetricsTable)
    ranks: tuple[RankTable, ...] = ()
    sources: tuple[SourceTable, ...] = ()


TABLES: Final[Mapping[str, type]] = {
    "agent": NodeTable, "nics": NicsTable, "gpus": GpusTable, "events": EventsTable,
    "stacks": StacksTable, "spool": SpoolTable, "metrics": MetricsTable,
}  # fmt: skip
ARRAYS: Final = ("ranks", "sources")


def read_agent_file(path: Path) -> AgentFile:
    """Read the tables of an agent's file; its keys at the top level are read by `settings.load_settings`.

    Raises `InputError` if the file can't be read, two sources have one name, or a key is unknown, missing, of the
    wrong type or out of bounds.
    """
    found = read_toml(path, "agent's file")
    values: dict[str, Any] = {}
    for name, table in TABLES.items():
        if name in found:
            values[name] = read_table(found[name], table, f"{path}, table {name}")
    values["ranks"] = tuple(read_table(one, RankTable, where) for one, where in _array(found, "ranks", path))
    sources: dict[str, SourceTable] = {}
    for one, where in _array(found, "sources", path):
        if not isinstance(one, dict):
            raise InputError(f"source must be a table, [[sources]]; got {shown(one)} ({where})")
        kind = checked(one.get("kind"), Text, "kind", f"{where}, key kind")
        name = checked(one.get("name", kind), Text, "name", f"{where}, key name")
        # Names are keys: two sources of one name would share the file of their state.
        if name in sources:
            raise InputError(f"name must be another than those before; got {name!r} ({where}, key name)")
        options = {key: value for key, value in one.items() if key not in ("kind", "name")}
        sources[name] = SourceTable(kind, name, options, where)
    values["sources"] = tuple(sources.values())
    return AgentFile(**values)


def _array(found: Mapping[str, Any], name: str, path: Path) -> list[tuple[Any, str]]:
    tables = found.get(name, [])
    if not isinstance(tables, list):
        raise InputError(f"{name} must be an array of tables, [[{name}]]; got a table ({path}, key {name})")
    return [(one, f"{path}, {name} {place + 1}") for place, one in enumerate(tables)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """A trace directory, published as its job would have."""

    directory: Path
    speed: float = 1.0


def _open_replay(options: ReplayOptions, _: Path) -> Source:
    from irregulars.producers.trace.directory import read_trace
    from irregulars.producers.trace.iterations import number_iterations
    from irregulars.producers.trace.source import TraceSource

    return TraceSource(number_iterations(read_trace(options.directory)).trace, options.speed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptions:
    """Training processes of this node that were started with ``torch_comms.start(agent=PATH)``.

    `mode`: permissions of the socket: 0o660 admits the agent's group, 0o600 the agent's user alone.
    """

    path: Path = Path("/run/irregulars/agent.sock")
    mode: int = 0o600

    def __post_init__(self) -> None:
        from irregulars.producers.torch_hook.agent_socket import require_permissions

        require_permissions(self.mode, self.path)


def _open_torch(options: TorchOptions, state_path: Path) -> Source:
    from irregulars.producers.iteration_inference.inferring_source import InferringSource
    from irregulars.producers.torch_hook.agent_socket import SocketSource

    source = SocketSource(options.path, mode=options.mode)
    return InferringSource(source, source.is_unmarked, state_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Files that a tool writes into a directory, followed as they grow."""

    directory: Path
    job: JobName = key(MISSING, "Training job")
    world_size: Annotated[int, Meta(ge=1, le=1 << 20)] | None = key(None, "Ranks of the job")


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectorOptions(FollowOptions):
    """Logs of NCCL Inspector, which do not contain the number of ranks of the job."""

    world_size: Annotated[int, Meta(ge=1, le=1 << 20)] = key(MISSING, "Ranks of the job")


def _follow(kind: str) -> Callable[[FollowOptions, Path], Source]:
    def open_it(options: FollowOptions, _: Path) -> Source:
        from irregulars.producers.importers.following import follow
        from irregulars.producers.iteration_inference.inferring_source import InferringSource

        # Without a state: a restarted agent reads the files from their beginning, and infers the same again.
        source = follow(kind, options.directory, options.job, world_size=options.world_size)
        return InferringSource(source, is_counted_apart=kind == "nccl-inspector")

    return open_it


@dataclass(frozen=True, slots=True, kw_only=True)
class RasOptions:
    """NCCL's RAS service of a job of which rank 0 runs on this node."""

    job: JobName = key(MISSING, "Training job")
    world_size: Annotated[int, Meta(ge=2, le=1 << 18)] = key(MISSING, "Ranks of the job")
    host: Name = key("localhost", "Where the service listens: NCCL_RAS_ADDR of the job")
    port: Annotated[int, Meta(ge=1, le=65_535)] = key(28028, "Its port")
    every_s: Annotated[float, Meta(ge=0.1, le=600)] = key(10.0, "From one look to the next, s")
    standing_s: Annotated[float, Meta(ge=0.1, le=86_400)] = key(30.0, "Nothing moves for so long: it stands still, s")
    hang_s: Annotated[float, Meta(ge=0.1, le=86_400)] = key(300.0, "Standing for so long before its end, it hung, s")
    beside_rank_0: bool = key(True, "Stay silent unless rank 0 runs on this host: one agent of a job is enough")


def _open_ras(options: RasOptions, state_path: Path) -> Source:
    from irregulars.producers.importers.ras_answers import RasClient
    from irregulars.producers.importers.ras_source import RasSettings, RasSource, is_this_host

    settings = RasSettings(
        job=options.job,
        world_size=options.world_size,
        every_s=options.every_s,
        standing_s=options.standing_s,
        hang_s=options.hang_s,
    )
    is_ours = is_this_host if options.beside_rank_0 else lambda _: True
    return RasSource(RasClient(options.host, options.port).ask, settings, is_ours=is_ours, state_path=state_path)


# Openers import their producers themselves: an agent loads only those of the kinds that its file names.
KINDS: Final[Mapping[str, tuple[type, Callable[[Any, Path], Source]]]] = {
    "replay": (ReplayOptions, _open_replay),
    "torch": (TorchOptions, _open_torch),
    "nccl-ras": (RasOptions, _open_ras),
    **{kind: (FollowOptions, _follow(kind)) for kind in ("kineto", "flight-recorder")},
    "nccl-inspector": (InspectorOptions, _follow("nccl-inspector")),
}


def open_source(table: SourceTable, state_directory: Path) -> Source:
    """Open one source of an agent's file; iterations that it does not mark are inferred.

    `state_directory`: where a source may keep its state over a restart of the agent. Raises `InputError` if the kind
    is unknown, or its options are not those that it takes; `PluginError` if a third party's kind can't be imported,
    or does not take the options.
    """
    if table.kind in KINDS:
        options, open_it = KINDS[table.kind]
        # Quoted: a name may hold slashes, and its file must lie in this directory.
        state_path = state_directory / f"{quote(table.name, safe='')}.state"
        read: Any = read_table(dict(table.options), options, table.where)
        try:
            return open_it(read, state_path)
        except InputError as error:
            # The source does not know its place in the file, which the user must find.
            raise InputError(f"{error} ({table.where})") from error
    if ":" in table.kind:
        needed = ("poll", "position", "is_exhausted", "close")
        source: Source = open_plugin(table.kind, table.options, "source", needed, table.where)
        return source
    raise _unknown_kind(table)


def check_source(table: SourceTable) -> None:
    """Check kind and options of a source, and open nothing; the options of a third party's kind only it can check.

    Raises `InputError` if the kind is unknown, or its options are not those that it takes.
    """
    if table.kind in KINDS:
        read_table(dict(table.options), KINDS[table.kind][0], table.where)
    elif ":" not in table.kind:
        raise _unknown_kind(table)


def _unknown_kind(table: SourceTable) -> InputError:
    rule = f"one of {', '.join(KINDS)}, or package.module:Name"
    return InputError(f"kind must be {rule}; got {table.kind!r} ({table.where}, key kind)")
