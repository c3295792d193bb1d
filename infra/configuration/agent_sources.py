"""Kinds of sources that an agent's file may name, and how each is opened.

A new kind is a dataclass of its options (`toml_tables.read_table` checks them) and a function
that opens it; both stand in `KINDS`. A kind ``package.module:Name`` is anybody's: it is called with the options, and
gives a source.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

from msgspec import Meta

from irregulars.errors import InputError, PluginError
from irregulars.infra.configuration.agent_settings import JobName, Name, SourceTable
from irregulars.producers.publishing.sources import Source
from irregulars.toml_tables import key, read_table


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

    `mode` are the permissions of the socket: 0o660 lets the agent's group in, 0o600 the agent's user alone.
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
    """Logs of NCCL Inspector, which do not tell how many ranks the job has."""

    world_size: Annotated[int, Meta(ge=1, le=1 << 20)] = key(MISSING, "Ranks of the job")


def _follow(kind: str) -> Callable[[FollowOptions, Path], Source]:
    def open_it(options: FollowOptions, _: Path) -> Source:
        from irregulars.producers.importers.followers import follow
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


KINDS: Final[Mapping[str, tuple[type, Callable[[Any, Path], Source]]]] = {
    "replay": (ReplayOptions, _open_replay),
    "torch": (TorchOptions, _open_torch),
    "nccl-ras": (RasOptions, _open_ras),
    **{kind: (FollowOptions, _follow(kind)) for kind in ("kineto", "flight-recorder", "clog")},
    "nccl-inspector": (InspectorOptions, _follow("nccl-inspector")),
}


def open_source(table: SourceTable, state_directory: Path) -> Source:
    """Open one source of an agent's file; iterations that it does not mark are inferred.

    Parameters
    ----------
    state_directory
        Where a source may keep what it has to know after a restart of the agent.

    Raises
    ------
    InputError
        If the kind is unknown, or its options are not those that it takes.
    PluginError
        If a kind of somebody else's can't be imported, or does not take the options.
    """
    if table.kind in KINDS:
        options, open_it = KINDS[table.kind]
        state_path = state_directory / f"{quote(table.name, safe='')}.state"
        read: Any = read_table(dict(table.options), options, table.where)
        try:
            return open_it(read, state_path)
        except InputError as error:
            raise InputError(f"{error} ({table.where})") from error
    if ":" in table.kind:
        return _open_plugin(table)
    raise _unknown_kind(table)


def check_source(table: SourceTable) -> None:
    """Check kind and options of a source, and open nothing; what somebody else's kind takes only it can check.

    Raises
    ------
    InputError
        If the kind is unknown, or its options are not those that it takes.
    """
    if table.kind in KINDS:
        read_table(dict(table.options), KINDS[table.kind][0], table.where)
    elif ":" not in table.kind:
        raise _unknown_kind(table)


def _unknown_kind(table: SourceTable) -> InputError:
    rule = f"one of {', '.join(KINDS)}, or package.module:Name"
    return InputError(f"kind must be {rule}; got {table.kind!r} ({table.where}, key kind)")


def _open_plugin(table: SourceTable) -> Source:
    module, _, name = table.kind.partition(":")
    try:
        source: Source = getattr(importlib.import_module(module), name)(**table.options)
        missing = [name for name in ("poll", "position", "is_exhausted", "close") if not hasattr(source, name)]
        if missing:
            raise TypeError(f"a {type(source).__name__} without {', '.join(missing)} is no source")
    except (Exception, SystemExit) as error:  # whatever a stranger's code raises, it can't be used
        found = " ".join(f"{type(error).__name__}: {error}".split())
        text = f"kind must be one that can be imported and called with its options; got {found} ({table.where})"
        raise PluginError(text) from error
    return source
