"""Programs of whole iterations: pipelines (1F1B, interleaved), DDP and FSDP."""

from __future__ import annotations

from tests.benchmarks.independent.closed_form.program import (
    Collective,
    Compute,
    Exchange,
    Message,
    MessageKey,
    Operation,
    Pause,
    Program,
    Shape,
    Wait,
    World,
)
from tests.benchmarks.independent.closed_form.topology import Layout

Checkpoint = tuple[float, bool]  # seconds, and whether the first replica alone writes
Pass = tuple[str, int, int]  # F or B, micro-batch, chunk
Transfer = tuple[str, str, int]  # kind, operator, size


def build(layout: Layout, shape: Shape, checkpoint: Checkpoint | None = None, forward_only: bool = False) -> Program:
    """The program of an iteration that trains, evaluates (forward only) or ends with a checkpoint."""
    if shape.style == "3d":
        pipeline = _Pipeline(layout, shape, forward_only)
        stages = [pipeline.stage(stage) for stage in range(layout.pp)]
        messages = pipeline.messages
    else:
        stages, messages = [_DataParallel(layout, shape, forward_only).stage()], {}
    for ops in stages:
        if checkpoint:
            ops += [Pause(*checkpoint), World("barrier", 0, True)]
    return Program(layout, stages, messages)


def _inside(layout: Layout, shape: Shape) -> list[tuple[str, str]]:
    """Kind and operator of the collectives inside of one pass."""
    inside: list[tuple[str, str]] = []
    experts = [("ep", "all_to_all")] * 2 if "ep" in layout.groups else []
    if "cp" in layout.groups:
        inside += [("cp", "all_gather")] * shape.cp_ops
    if "tp" not in layout.groups:
        return inside + experts
    for n in range(shape.tp_ops):
        operator = ("all_gather" if n % 2 == 0 else "reduce_scatter") if shape.sequence_parallel else "all_reduce"
        inside.append(("tp", operator))
        if n == 0:
            inside += experts
    return inside


def _pass(layout: Layout, shape: Shape, work: float, micro: int, parts: int = 1) -> list[list[Operation]]:
    """Compute and the collectives inside of one pass of one micro-batch, in parts to put gradients between."""
    inside = _inside(layout, shape)
    slots = max(len(inside) + 1, parts)
    ops: list[list[Operation]] = [[] for _ in range(parts)]
    for n in range(slots):
        part = ops[n * parts // slots]
        part.append(Compute(work / slots, micro))
        if n < len(inside):
            kind, operator = inside[n]
            part.append(Collective(kind, operator, shape.sizes[kind]))
    return ops


def _gradients(layout: Layout, shape: Shape) -> tuple[list[Transfer], list[Transfer]]:
    """What reduces one bucket of gradients, and what gathers the parameters after."""
    reduce: list[Transfer] = []
    gather: list[Transfer] = []
    if "zero" in layout.groups:
        reduce.append(("zero", "reduce_scatter", shape.sizes["grad"]))
        gather.append(("zero", "all_gather", shape.sizes["grad"]))
        if "rep" in layout.groups:
            reduce.append(("rep", "all_reduce", shape.sizes["rep"]))
    elif "dp" in layout.groups:
        if shape.gradient == "ar":
            reduce.append(("dp", "all_reduce", shape.sizes["grad"]))
        else:
            reduce.append(("dp", "reduce_scatter", shape.sizes["grad"]))
            gather.append(("dp", "all_gather", shape.sizes["grad"]))
    if "edp" in layout.groups:
        reduce.append(("edp", "all_reduce", shape.sizes["edp"]))
    return reduce, gather


def _schedule(pp: int, stage: int, micros: int, chunks: int, forward_only: bool) -> tuple[list[Pass], int]:
    """The passes of a stage, 1F1B or Megatron's interleaved order, and how many forward ones come first."""
    total = micros * chunks

    def unit(what: str, k: int) -> Pass:
        chunk = (k // pp) % chunks
        micro = k // (pp * chunks) * pp + k % pp if chunks > 1 else k
        return what, micro, chunk if what == "F" else chunks - 1 - chunk

    if forward_only:
        return [unit("F", k) for k in range(total)], 0
    warm = pp - stage - 1 if chunks == 1 else (pp - stage - 1) * 2 + (chunks - 1) * pp
    warm = min(warm, total)
    steps = [unit("F", k) for k in range(warm)]
    for k in range(total - warm):
        steps += [unit("F", k + warm), unit("B", k)]
    return steps + [unit("B", k) for k in range(total - warm, total)], warm


class _Pipeline:
    """Megatron-like: micro-batches through a pipeline, gradients at the end (beside the last backward or not)."""

    def __init__(self, layout: Layout, shape: Shape, forward_only: bool) -> None:
        self.layout, self.shape, self.forward_only = layout, shape, forward_only
        self.batched = shape.batched and shape.chunks == 1 and not forward_only
        self.messages: dict[MessageKey, Message] = {}

    def stage(self, stage: int) -> list[Operation]:
        shape, pp = self.shape, self.layout.pp
        steps, warm = _schedule(pp, stage, shape.micros, shape.chunks, self.forward_only)
        ops: list[Operation] = []
        handles: list[str] = []
        carried: list[MessageKey] = []
        for n, step in enumerate(steps):
            following = steps[n + 1] if n + 1 < len(steps) else None
            arriving = self._incoming(step, stage)
            if arriving and not (self.batched and arriving == carried):
                ops.append(Exchange([], arriving, self.batched))
            self._compute(ops, handles, step, following is None)
            leaving = self._outgoing(step, stage)
            carried = []
            if self.batched and n >= warm and following is not None and following[0] != step[0]:
                carried = self._carried(leaving, following, stage)
                if leaving:
                    ops.append(Exchange(leaving, carried, True))
            elif leaving:
                ops.append(Exchange(leaving, [], self.batched))
        if self.forward_only:
            ops.append(World("all_reduce", 8, shape.world_logged))
        else:
            self._finish(ops, handles)
        return ops

    def _incoming(self, step: Pass, stage: int) -> list[MessageKey]:
        """The message that brings the input of a pass, if one does."""
        what, micro, chunk = step
        pp = self.layout.pp
        virtual = chunk * pp + stage + (-1 if what == "F" else 1)
        if not 0 <= virtual < pp * self.shape.chunks:
            return []
        key = (what, micro, chunk, stage)
        self.messages.setdefault(key, Message(virtual % pp, stage, self.shape.sizes["pp"]))
        return [key]

    def _outgoing(self, step: Pass, stage: int) -> list[MessageKey]:
        """The message that takes the output of a pass, if one does."""
        what, micro, chunk = step
        pp = self.layout.pp
        virtual = chunk * pp + stage + (1 if what == "F" else -1)
        if not 0 <= virtual < pp * self.shape.chunks:
            return []
        return self._incoming((what, micro, virtual // pp), virtual % pp)

    def _carried(self, leaving: list[MessageKey], following: Pass, stage: int) -> list[MessageKey]:
        """The receive of the next pass that goes in one batch with this send: F then B, or B then F."""
        carried = self._incoming(following, stage)
        if not leaving or not carried:
            return []
        is_one_neighbour = self.messages[leaving[0]].target == self.messages[carried[0]].source
        return carried if is_one_neighbour else []

    def _compute(self, ops: list[Operation], handles: list[str], step: Pass, is_last: bool) -> None:
        """A pass; gradients are reduced beside the last one if they overlap."""
        layout, shape = self.layout, self.shape
        what, micro, _ = step
        work = (shape.forward if what == "F" else shape.backward) / shape.chunks
        reduce, _ = _gradients(layout, shape)
        if not (is_last and not self.forward_only and shape.overlap and reduce):
            ops += _pass(layout, shape, work, micro)[0]
            return
        for b, part in enumerate(_pass(layout, shape, work, micro, shape.buckets)):
            ops += part
            for kind, operator, size in reduce:
                handle = f"{kind}-{b}"
                ops.append(Collective(kind, operator, size, handle))
                handles.append(handle)

    def _finish(self, ops: list[Operation], handles: list[str]) -> None:
        """After the last backward pass: wait for gradients, check their norm, step, gather parameters."""
        shape = self.shape
        ops.extend(Wait(h) for h in handles)
        reduce, gather = _gradients(self.layout, shape)
        if not handles:
            for _ in range(shape.buckets):
                ops.extend(Collective(*r) for r in reduce)
        ops.append(World("all_reduce", 8, shape.world_logged))
        ops.append(Compute(shape.optimizer))
        for _ in range(shape.buckets):
            ops.extend(Collective(*g) for g in gather)


class _DataParallel:
    """DDP (all_reduce of buckets beside the last backward) or FSDP / hybrid shards (prefetch, reduce_scatter)."""

    def __init__(self, layout: Layout, shape: Shape, forward_only: bool) -> None:
        self.layout, self.shape, self.forward_only = layout, shape, forward_only
        self.shard = "zero" if "zero" in layout.groups else "dp"
        self.ops: list[Operation] = []
        self.handles: list[str] = []  # of gradients, to be waited for
        self.launched = 0

    def stage(self) -> list[Operation]:
        for micro in range(self.shape.micros):
            is_last = micro == self.shape.micros - 1
            if self.shape.style == "ddp":
                self._replicated(micro, is_last)
            else:
                self._gathered(micro, self.shape.forward)
                if not self.forward_only:
                    self._gathered(micro, self.shape.backward, is_backward=True, is_last=is_last)
        if self.forward_only:
            self.ops.append(World("all_reduce", 8))  # the mean loss
        else:
            self.ops.extend(Wait(h) for h in self.handles)
            self.ops.append(World("all_reduce", 8, self.shape.world_logged))
            self.ops.append(Compute(self.shape.optimizer))
        return self.ops

    def _launch(self, kind: str, operator: str, size: int) -> str:
        self.launched += 1
        self.ops.append(Collective(kind, operator, size, f"h{self.launched}"))
        return f"h{self.launched}"

    def _replicated(self, micro: int, is_last: bool) -> None:
        shape = self.shape
        for _ in range(2):
            self.ops.append(Compute(shape.forward / 2, micro))
        if self.forward_only:
            return
        for _ in range(shape.units):
            self.ops.append(Compute(shape.backward / shape.units, micro))
            if is_last:
                self.handles.append(self._launch("dp", "all_reduce", shape.sizes["grad"]))

    def _gathered(self, micro: int, work: float, is_backward: bool = False, is_last: bool = False) -> None:
        """One pass over all units, the parameters of the next one gathered beside the compute of this."""
        shape = self.shape
        ready = self._launch(self.shard, "all_gather", shape.sizes["grad"])
        for u in range(shape.units):
            awaited = ready
            if u + 1 < shape.units:
                ready = self._launch(self.shard, "all_gather", shape.sizes["grad"])
            self.ops += [Wait(awaited), Compute(work / shape.units, micro)]
            if not is_backward:
                continue
            self.handles.append(self._launch(self.shard, "reduce_scatter", shape.sizes["grad"]))
            if "rep" in self.layout.groups and is_last:
                self.handles.append(self._launch("rep", "all_reduce", shape.sizes["rep"]))
