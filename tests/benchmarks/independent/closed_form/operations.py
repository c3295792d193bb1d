"""What a stage can be told to do in an iteration; the rest of an object is filled in by its program."""

from __future__ import annotations

from dataclasses import dataclass, field

OPERATORS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "send", "recv")

MessageKey = tuple[str, int, int, int]  # F or B, micro-batch, chunk, and stage that receives


@dataclass
class Compute:
    """A piece of work on the GPU."""

    work: float  # seconds on a rank of factor 1
    micro: int = -1  # micro-batch whose length scales it; -1: none
    index: int = -1


@dataclass
class Collective:
    """An operator of all groups of a kind in a stage."""

    kind: str
    operator: str
    size: int
    handle: str | None = None  # set: runs on the communication stream, and Wait(handle) ends it
    logged: bool = True
    index: int = -1
    rows: slice | None = None


@dataclass
class Wait:
    """The end of a collective on the communication stream is waited for."""

    handle: str


@dataclass
class Exchange:
    """Sends and receives posted together: if batched they end together, and block, else the receives alone block."""

    sends: list[MessageKey]
    recvs: list[MessageKey]
    batched: bool


@dataclass
class World:
    """An operator of all ranks."""

    operator: str
    size: int
    logged: bool = True
    index: int = -1
    rows: list[slice] | None = None  # by stage


@dataclass
class Pause:
    """Time outside the GPU (writing a checkpoint), all of it on the first replica alone if so set."""

    seconds: float
    first_replica_only: bool


Operation = Compute | Collective | Wait | Exchange | World | Pause


@dataclass
class Message:
    """What every lane of a stage sends to the same lane of another."""

    source: int
    target: int
    size: int
    send_rows: slice = field(default_factory=lambda: slice(0, 0))
    recv_rows: slice = field(default_factory=lambda: slice(0, 0))
    index: int = -1


@dataclass
class Shape:
    """How an iteration is made: sizes in bytes, work in seconds (one micro-batch forward, all of a stage)."""

    style: str = "3d"  # 3d, ddp, fsdp
    micros: int = 8
    chunks: int = 1  # virtual stages a rank (interleaved schedule)
    batched: bool = True
    forward: float = 0.01
    backward: float = 0.02
    optimizer: float = 0.004
    tp_ops: int = 1
    sequence_parallel: bool = True
    cp_ops: int = 1
    sizes: dict[str, int] = field(default_factory=dict)
    buckets: int = 2
    overlap: bool = True
    gradient: str = "rs_ag"  # or "ar"
    world_logged: bool = True
    units: int = 6  # FSDP units, DDP segments
