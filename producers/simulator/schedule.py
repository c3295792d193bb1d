"""The program of one iteration, as each pipeline stage runs it, and the order in which its operators can happen.

All ranks of a stage run the same program, so it is written once per stage, and dependencies are solved once per
stage: `producers.simulator.plan` spreads it over the ranks. The pipeline is 1F1B, as Megatron's schedule without
interleaving (Narayanan et al., SC'21, section 2.2): in its steady part a forward send is batched with a backward
recv, and a backward send with a forward recv.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from producers.simulator.settings import NS_PER_MS, SimulatorSettings

OWN_WORK = -1
"""Stands where work belongs to no micro-batch: data loading, the optimizer."""


@dataclass(frozen=True, slots=True)
class Call:
    """One entry into communication: one operator, or a send and a recv that are batched.

    Parameters
    ----------
    group
        Kind of the communicator: ``world``, ``tp``, ``dp`` or ``pp``.
    operators
        One name, or ``("send", "recv")``.
    size_bytes
        Payload of each operator.
    peer_stage
        Other end of p2p.
    work
        What the rank does before it enters: pairs of micro-batch (or `OWN_WORK`) and nanoseconds.
    """

    group: str
    operators: tuple[str, ...]
    size_bytes: int
    peer_stage: int | None = None
    work: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class _Program:
    """Builds the calls of one stage; work that is done before a call is kept until the call comes."""

    stage: int
    settings: SimulatorSettings
    calls: list[Call] = field(default_factory=list)
    _work: list[tuple[int, float]] = field(default_factory=list)

    def work(self, milliseconds: float, micro_batch: int = OWN_WORK) -> None:
        self._work.append((micro_batch, milliseconds * NS_PER_MS))

    def call(self, group: str, *operators: str, size_bytes: int, peer_stage: int | None = None) -> None:
        self.calls.append(Call(group, operators, size_bytes, peer_stage, tuple(self._work)))
        self._work.clear()

    def exchange(self, *operators: str, peer_stage: int) -> None:
        """Call p2p, unless the pipeline ends here."""
        if 0 <= peer_stage < self.settings.pp:
            self.call("pp", *operators, size_bytes=self.settings.activation_bytes, peer_stage=peer_stage)

    def pass_through(self, milliseconds: float, micro_batch: int) -> None:
        """Forward or backward of one micro-batch: work, cut by the collectives of tensor parallelism."""
        parts = max(self.settings.tp_operators, 1)
        for _ in range(parts):
            self.work(milliseconds / parts, micro_batch)
            if self.settings.tp > 1 and self.settings.tp_operators:
                self.call("tp", "all_reduce", size_bytes=self.settings.activation_bytes)


def stage_programs(settings: SimulatorSettings) -> list[list[Call]]:
    """Return the calls of one iteration for each stage, in the order in which a rank of the stage makes them."""
    return [_stage_program(stage, settings) for stage in range(settings.pp)]


def _stage_program(stage: int, settings: SimulatorSettings) -> list[Call]:
    program = _Program(stage, settings)
    program.work(settings.data_loading_ms)
    _run_pipeline(program, stage, settings)
    _sync_gradients(program, settings)
    program.call("world", "all_reduce", size_bytes=8)
    return program.calls


def _run_pipeline(program: _Program, stage: int, settings: SimulatorSettings) -> None:
    before, after = stage - 1, stage + 1
    warmup = min(settings.pp - stage - 1, settings.micro_batches)
    steady = settings.micro_batches - warmup
    for micro_batch in range(warmup):
        program.exchange("recv", peer_stage=before)
        program.pass_through(settings.forward_ms, micro_batch)
        program.exchange("send", peer_stage=after)
    if steady:
        program.exchange("recv", peer_stage=before)
    for k in range(steady):
        program.pass_through(settings.forward_ms, warmup + k)
        program.exchange("send", "recv", peer_stage=after)
        program.pass_through(settings.backward_ms, k)
        program.exchange(*(("send",) if k == steady - 1 else ("send", "recv")), peer_stage=before)
    for micro_batch in range(steady, settings.micro_batches):
        program.exchange("recv", peer_stage=after)
        program.pass_through(settings.backward_ms, micro_batch)
        program.exchange("send", peer_stage=before)


def _sync_gradients(program: _Program, settings: SimulatorSettings) -> None:
    operators = {"sharded": ("reduce_scatter", "all_gather"), "all_reduce": ("all_reduce",)}[settings.gradient_sync]
    bucket_bytes = settings.gradient_bytes // settings.gradient_buckets
    for step, operator in enumerate(operators if settings.dp > 1 else ()):
        if step:
            program.work(settings.optimizer_ms)
        for _ in range(settings.gradient_buckets):
            program.call("dp", operator, size_bytes=bucket_bytes)
    if len(operators) == 1 or settings.dp == 1:
        program.work(settings.optimizer_ms)


Meeting = tuple[tuple[int, int], ...]
"""Calls that happen together, as pairs of stage and place in its program."""


def waves(programs: list[list[Call]]) -> list[list[Meeting]]:
    """Order all calls of an iteration so that each wave depends on earlier waves only.

    Returns
    -------
    list of list of Meeting
        Meetings of one wave touch different stages, and are independent of each other.

    Raises
    ------
    RuntimeError
        If the programs wait for each other for ever: an error of the schedule, not of its settings.
    """
    heads = [0] * len(programs)
    result: list[list[Meeting]] = []
    while any(head < len(program) for head, program in zip(heads, programs, strict=True)):
        ready = list(_ready(programs, heads))
        if not ready:
            raise RuntimeError(f"stage programs must not wait for each other in a circle; got stuck at {heads}")
        result.append(ready)
        for stage, _ in (member for meeting in ready for member in meeting):
            heads[stage] += 1
    return result


def _ready(programs: list[list[Call]], heads: list[int]) -> Iterator[Meeting]:
    calls = [program[head] if head < len(program) else None for head, program in zip(heads, programs, strict=True)]
    if all(call is not None and call.group == "world" for call in calls):
        yield tuple(enumerate(heads))
        return
    for stage, call in enumerate(calls):
        if call is None or call.group == "world":
            continue
        if call.peer_stage is None:
            yield ((stage, heads[stage]),)
        elif call.peer_stage == stage + 1:  # a pair is looked at from its lower stage only
            other = calls[stage + 1]
            if other is not None and other.peer_stage == stage:
                yield (stage, heads[stage]), (stage + 1, heads[stage + 1])
