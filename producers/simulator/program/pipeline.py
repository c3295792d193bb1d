"""The order of forwards, backwards and messages in a pipeline stage.

1F1B (Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC'21, section 2.2), as it is
in Megatron without and with interleaving (``model_chunks``), and the forward passes of an evaluation. In the steady
part of plain 1F1B a forward send is batched with a backward recv, and a backward send with a forward recv. With
interleaving a stage holds several chunks of the model, activations go round from the last stage to the first, and one
batch holds what both directions have to say: what was just computed goes out, what is computed next comes in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.program.calls import Call, Program

TRAIN: Final = "train"
EVALUATE: Final = "eval"

Message = tuple[str, int]


def stage_programs(settings: SimulatorSettings, turn: str = TRAIN) -> list[list[Call]]:
    """Return the calls of one iteration for each stage, in the order in which a rank of the stage makes them.

    Parameters
    ----------
    turn
        `TRAIN` or `EVALUATE`.
    """
    return [_stage_program(stage, settings, turn) for stage in range(settings.pp)]


def _stage_program(stage: int, settings: SimulatorSettings, turn: str) -> list[Call]:
    program = Program(stage, settings)
    program.load_data()
    if turn == EVALUATE:
        _evaluate(program)
        program.collective("world", "all_reduce", 8)
        return program.calls
    if settings.model_chunks > 1:
        _run_interleaved(program)
    else:
        _run_1f1b(program)
    program.finish()
    return program.calls


def _ends(program: Program) -> tuple[int, int]:
    """Stages before and after this one; those that do not exist are outside the range of stages."""
    return program.stage - 1, program.stage + 1


def _exchange(program: Program, stage: int, *operators: str) -> None:
    """Call p2p with a neighbour, unless the pipeline ends here."""
    if 0 <= stage < program.settings.pp:
        program.exchange(*((operator, stage) for operator in operators))


def _run_1f1b(program: Program) -> None:
    settings = program.settings
    before, after = _ends(program)
    warmup = min(settings.pp - program.stage - 1, settings.micro_batches)
    steady = settings.micro_batches - warmup
    for micro_batch in range(warmup):
        _exchange(program, before, "recv")
        program.forward(micro_batch)
        _exchange(program, after, "send")
    if steady:
        _exchange(program, before, "recv")
    for k in range(steady):
        program.forward(warmup + k)
        _exchange(program, after, "send", "recv")
        program.backward(k, is_last=k == settings.micro_batches - 1)
        _exchange(program, before, *(("send",) if k == steady - 1 else ("send", "recv")))
    for micro_batch in range(steady, settings.micro_batches):
        _exchange(program, after, "recv")
        program.backward(micro_batch, is_last=micro_batch == settings.micro_batches - 1)
        _exchange(program, before, "send")


def _evaluate(program: Program) -> None:
    before, after = _ends(program)
    for _ in range(program.settings.evaluation_passes):
        for micro_batch in range(program.settings.micro_batches):
            _exchange(program, before, "recv")
            program.forward(micro_batch)
            _exchange(program, after, "send")


class _Interleaving:
    """Which chunk and micro-batch the n-th forward or backward of a stage is, and which messages go with it.

    Micro-batches pass a chunk in rounds of as many as there are stages.
    """

    def __init__(self, program: Program) -> None:
        settings = program.settings
        self._stage, self._pp, self._chunks = program.stage, settings.pp, settings.model_chunks
        self.total = settings.micro_batches * settings.model_chunks
        warmup = 2 * (self._pp - self._stage - 1) + (self._chunks - 1) * self._pp
        self.warmup = self.total if settings.micro_batches == self._pp else min(warmup, self.total)
        self._before, self._after = (self._stage - 1) % self._pp, (self._stage + 1) % self._pp

    def micro_batch(self, number: int) -> int:
        return number // (self._pp * self._chunks) * self._pp + number % self._pp

    def after_forward(self, number: int) -> Iterator[Message]:
        """Messages of the call after the forward of this number: its output, and the input of the next one."""
        if not self._is_last(self._forward_chunk(number)):
            yield "send", self._after
        yield from self.forward_input(number + 1)

    def after_backward(self, number: int) -> Iterator[Message]:
        if not self._is_first(self._backward_chunk(number)):
            yield "send", self._before
        yield from self.backward_input(number + 1)

    def forward_input(self, number: int) -> Iterator[Message]:
        if number < self.total and not self._is_first(self._forward_chunk(number)):
            yield "recv", self._before

    def backward_input(self, number: int) -> Iterator[Message]:
        if number < self.total and not self._is_last(self._backward_chunk(number)):
            yield "recv", self._after

    def _forward_chunk(self, number: int) -> int:
        return number % (self._pp * self._chunks) // self._pp

    def _backward_chunk(self, number: int) -> int:
        return self._chunks - 1 - self._forward_chunk(number)

    def _is_first(self, chunk: int) -> bool:
        return self._stage == 0 and chunk == 0

    def _is_last(self, chunk: int) -> bool:
        return self._stage == self._pp - 1 and chunk == self._chunks - 1


def _run_interleaved(program: Program) -> None:
    turn = _Interleaving(program)
    warmup, total = turn.warmup, turn.total
    program.exchange(*turn.forward_input(0))
    for n in range(warmup):
        program.forward(turn.micro_batch(n))
        is_turning = n == warmup - 1 and warmup < total
        program.exchange(*turn.after_forward(n), *(turn.backward_input(0) if is_turning else ()))
    for n in range(total - warmup):
        program.forward(turn.micro_batch(warmup + n))
        program.backward(turn.micro_batch(n), is_last=n == total - 1)
        program.exchange(*turn.after_forward(warmup + n), *turn.after_backward(n))
    if warmup == total:
        program.exchange(*turn.backward_input(0))
    for n in range(total - warmup, total):
        program.backward(turn.micro_batch(n), is_last=n == total - 1)
        program.exchange(*turn.after_backward(n))
