"""What a stage can be told to do in an iteration; the rest of an object is filled in by its program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tests.benchmarks.independent.closed_form.topology import Ints, Layout, communicators

OPERATORS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "send", "recv")

MessageKey = tuple[str, int, int, int]  # F or B, micro-batch, chunk, and stage that receives


@dataclass
class Compute:
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


Key = tuple[str | int, ...]  # what numbers its operators on its own: ("c", kind, stage), ("w",), ("p", from, to)


class Step(NamedTuple):
    """What a stage does next: post or done for an exchange, else run."""

    what: str
    stage: int
    operation: Operation


class CollectiveRows(NamedTuple):
    rows: slice
    kind: str
    stage: int
    operator: str


class Program:
    """Instructions by stage, laid out into rows; `order` is a sequence of steps in dependency order."""

    def __init__(self, layout: Layout, stages: list[list[Operation]], messages: dict[MessageKey, Message]) -> None:
        self.layout, self.stages, self.messages = layout, stages, messages
        self.collectives = self._number()
        computes = [[op for op in stage if isinstance(op, Compute)] for stage in stages]
        self.compute_work = [np.array([op.work for op in stage]) for stage in computes]
        self.compute_micro = [np.array([op.micro for op in stage], int) for stage in computes]
        self.base = communicators(layout).base
        self.keys: dict[Key, int] = {}
        self.order = _Sequencer(stages).run()
        self.rows = 0
        self.kind_rows: list[CollectiveRows] = []
        self.per_iteration: dict[Key, int] = {}  # operators of a key; sends and receives are counted on their own
        self._columns: dict[str, list[Ints]] = {
            name: [] for name in ("rank", "comm", "operator", "key", "seq", "peer", "size")
        }
        for step in self.order:
            self._lay_out(step)
        self.static = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        # Sends and receives of a pair of stages are in the same order, so that their sequence numbers agree.
        for message in self.messages.values():
            a, b = (self.static["seq"][rows.start] for rows in (message.send_rows, message.recv_rows))
            assert a == b, "send and receive order differ"

    def _number(self) -> int:
        """Give everything its index, and count the collectives."""
        collectives = 0
        for stage in self.stages:
            computes = 0
            for op in stage:
                if isinstance(op, Compute):
                    op.index = computes
                    computes += 1
                elif isinstance(op, Collective):
                    op.index = collectives
                    collectives += 1
        for op in self.stages[0]:  # the other stages' are the same operators
            if isinstance(op, World):
                op.index = collectives
                collectives += 1
        for number, message in enumerate(self.messages.values()):
            message.index = number
        return collectives

    def _lay_out(self, step: Step) -> None:
        stage, op, layout = step.stage, step.operation, self.layout
        if isinstance(op, Collective) and op.logged:
            ids = self.base[op.kind] + stage * len(layout.groups[op.kind]) + layout.lane_group[op.kind]
            number = self._next(("c", op.kind, stage))
            op.rows = self._add(stage, ids, op.operator, None, op.size, ("c", op.kind, stage), number)
            self.kind_rows.append(CollectiveRows(op.rows, op.kind, stage, op.operator))
        elif isinstance(op, World) and op.logged:
            ids = np.full(layout.lanes, self.base["world"])
            number = self._next(("w",))
            op.rows = []
            for s in range(layout.pp):
                op.rows.append(self._add(s, ids, op.operator, None, op.size, ("w",), number))
                self.kind_rows.append(CollectiveRows(op.rows[-1], "world", s, op.operator))
        elif isinstance(op, Exchange) and step.what == "post":
            for key in op.sends:
                message = self.messages[key]
                message.send_rows = self._add_message(stage, message, "send", message.target)
            for key in op.recvs:
                message = self.messages[key]
                message.recv_rows = self._add_message(stage, message, "recv", message.source)

    def _add_message(self, stage: int, message: Message, operator: str, other: int) -> slice:
        pair: Key = ("p", message.source, message.target)
        ids = self.base["pp"] + np.arange(self.layout.lanes)
        number = self._next((*pair, operator == "send"))
        return self._add(stage, ids, operator, other, message.size, pair, number)

    def _next(self, key: Key) -> int:
        number = self.per_iteration.get(key, 0)
        self.per_iteration[key] = number + 1
        return number

    def _add(
        self, stage: int, comm_ids: Ints, operator: str, other: int | None, size: int, key: Key, number: int
    ) -> slice:
        lanes = self.layout.lanes
        c = self._columns
        c["rank"].append(np.arange(lanes) + stage * lanes)
        c["comm"].append(comm_ids)
        c["operator"].append(np.full(lanes, OPERATORS.index(operator)))
        c["key"].append(np.full(lanes, self.keys.setdefault(key, len(self.keys))))
        c["seq"].append(np.full(lanes, number))
        c["peer"].append(np.full(lanes, -1) if other is None else np.arange(lanes) + other * lanes)
        c["size"].append(np.full(lanes, size, np.int64))
        place = slice(self.rows, self.rows + lanes)
        self.rows += lanes
        return place


class _Sequencer:
    """Executes stages symbolically: a step is emitted when all it depends on has been."""

    def __init__(self, stages: list[list[Operation]]) -> None:
        self.stages = stages
        self.order: list[Step] = []
        self.at = [0] * len(stages)
        self.exchanges: set[int] = set()  # ids of those posted
        self.posted: set[tuple[str, MessageKey]] = set()
        self.waiting: dict[int, World] = {}

    def run(self) -> list[Step]:
        while any([self._advance(s) for s in range(len(self.stages))]):  # noqa: C419 -- each stage has its turn
            pass
        assert all(c == len(p) for c, p in zip(self.at, self.stages, strict=True)), "deadlock in a schedule"
        return self.order

    def _advance(self, s: int) -> bool:
        """Run a stage as far as it gets, and say whether anything came of it."""
        moved, program = False, self.stages[s]
        while self.at[s] < len(program):
            op = program[self.at[s]]
            if isinstance(op, World):
                if s in self.waiting:
                    break
                moved = True
                if not self._meet(s, op):
                    break
                continue
            if isinstance(op, Exchange):
                moved |= self._post(s, op)
                if not self._is_answered(op):
                    break
                self.order.append(Step("done", s, op))
            else:
                self.order.append(Step("run", s, op))
            self.at[s] += 1
            moved = True
        return moved

    def _meet(self, s: int, op: World) -> bool:
        """A stage arrives at an operator of all; the last one lets all go on."""
        self.waiting[s] = op
        if len(self.waiting) < len(self.stages):
            return False
        self.order.append(Step("run", 0, self.waiting[0]))
        for q in self.waiting:
            self.at[q] += 1
        self.waiting.clear()
        return True

    def _post(self, s: int, op: Exchange) -> bool:
        if id(op) in self.exchanges:
            return False
        self.exchanges.add(id(op))
        self.posted.update(("s", k) for k in op.sends)
        self.posted.update(("r", k) for k in op.recvs)
        self.order.append(Step("post", s, op))
        return True

    def _is_answered(self, op: Exchange) -> bool:
        need = [("s", k) for k in op.recvs] + ([("r", k) for k in op.sends] if op.batched else [])
        return all(n in self.posted for n in need)
