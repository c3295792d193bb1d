"""The order in which the calls of all stages can happen: which calls meet, and which meetings come first.

Dependencies are solved once per stage, not per rank. A call waits for the call before it on its stream, and where
streams touch for others of those streams.

The order of forwards, backwards and messages in a pipeline stage.

1F1B (Narayanan et al., "Efficient large-scale language model training on GPU clusters", SC'21, section 2.2), as it is
in Megatron without and with interleaving (``model_chunks``), and the forward passes of an evaluation. In the steady
part of plain 1F1B a forward send is batched with a backward recv, and a backward send with a forward recv. With
interleaving a stage holds several chunks of the model, activations go round from the last stage to the first, and one
batch holds the messages of both directions: the last output goes out, the next input comes in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from irregulars.producers.simulator.calls import P2P, Call, Program
from irregulars.producers.simulator.settings import SimulatorSettings

TRAIN: Final = "train"
EVALUATE: Final = "eval"
Message = tuple[str, int]


def stage_programs(settings: SimulatorSettings, turn: str = TRAIN) -> list[list[Call]]:
    """Return the calls of one iteration for each stage, in the order in which a rank of the stage makes them.

    `turn`: `TRAIN` or `EVALUATE`.
    """
    return [_stage_program(stage, settings, turn) for stage in range(settings.pp)]


def _stage_program(stage: int, settings: SimulatorSettings, turn: str) -> list[Call]:
    program = Program(stage, settings)
    program.load_data()
    if turn == EVALUATE:
        before, after = _ends(program)
        for _ in range(program.settings.evaluation_passes):
            for micro_batch in range(program.settings.micro_batches):
                _exchange(program, before, "recv")
                program.forward(micro_batch)
                _exchange(program, after, "send")
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


class _Interleaving:
    """Chunk and micro-batch of the n-th forward or backward of a stage, and the messages that go with it.

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


CallKey = tuple[int, int]  # stage of a call, and its place in the stage's program


@dataclass(frozen=True, slots=True)
class Meeting:
    """Calls that happen together."""

    # Of p2p two: first the stage from which activations come, then the one to which they go
    members: tuple[CallKey, ...]
    # is_down, is_up: Of p2p: whether a message goes from the first to the second member, and whether one comes back
    is_down: bool = False
    is_up: bool = False
    part: int = 0  # of a ring, in which each member meets both neighbours: which of its pairs, see `ring_pairs`


Programs = Sequence[Sequence[Call]]
# The place of the call after which a call's own work begins (-1: the start), and of others that must be over.
Links = tuple[int, tuple[int, ...]]


def predecessors(program: Sequence[Call]) -> list[Links]:
    """Return for each call of a program the calls of its own rank that it waits for."""
    newest: dict[int, int] = {}
    found: list[Links] = []
    for place, call in enumerate(program):
        if call.is_joining:
            others = [last for stream, last in newest.items() if stream]
        else:
            others = [newest[call.stream]] if call.stream in newest and call.stream else []
        found.append((newest.get(0, -1), (*others, *call.after)))
        newest[call.stream] = place
    return found


def waves(programs: Programs) -> list[list[Meeting]]:
    """Order all calls of an iteration so that each wave depends on earlier waves only.

    Returns
    -------
    list of list of Meeting
        Meetings of one wave touch different calls, and are independent of each other.

    Raises
    ------
    RuntimeError
        If the programs wait for each other for ever: an error of the schedule, not of its settings.
    """
    order = _Order(programs, list(_meetings(programs)))
    result = []
    while order.ready:
        result.append(order.take_wave())
    if order.is_stuck:
        raise RuntimeError("stage programs must not wait for each other in a circle")
    return result


class _Order:
    """Kahn's topological sort over calls, of which each is over when all its meetings are."""

    def __init__(self, programs: Programs, meetings: list[Meeting]) -> None:
        self.ready: list[Meeting] = []
        self._followers: defaultdict[CallKey, list[CallKey]] = defaultdict(list)
        self._meetings_of: defaultdict[CallKey, list[Meeting]] = defaultdict(list)
        self._missing = {meeting: len(meeting.members) for meeting in meetings}
        for meeting in meetings:
            for member in meeting.members:
                self._meetings_of[member].append(meeting)
        counts: dict[CallKey, int] = {}
        for stage, program in enumerate(programs):
            for place, (before, others) in enumerate(predecessors(program)):
                needed = {(stage, x) for x in (before, *others) if x >= 0}
                counts[stage, place] = len(needed)
                for one in needed:
                    self._followers[one].append((stage, place))
        self._waits_for, first = counts, [call for call, count in counts.items() if not count]
        self._open_meetings = {call: len(self._meetings_of[call]) for call in self._waits_for}
        self._left = len(self._waits_for)
        for call in first:
            self._arrive(call)

    @property
    def is_stuck(self) -> bool:
        """Whether calls are left that can't happen."""
        return self._left > 0

    def take_wave(self) -> list[Meeting]:
        """Take the meetings that can happen now, each call in one of them at most."""
        busy: set[CallKey] = set()
        wave, later = [], []
        for meeting in sorted(self.ready, key=lambda one: one.members):
            if busy.isdisjoint(meeting.members):
                wave.append(meeting)
                busy.update(meeting.members)
            else:
                later.append(meeting)
        self.ready = later
        for meeting in wave:
            for call in meeting.members:
                self._close(call)
        return wave

    def _arrive(self, call: CallKey) -> None:
        for meeting in self._meetings_of[call]:
            self._missing[meeting] -= 1
            if not self._missing[meeting]:
                self.ready.append(meeting)

    def _close(self, call: CallKey) -> None:
        self._open_meetings[call] -= 1
        if self._open_meetings[call]:
            return
        self._left -= 1
        for follower in self._followers[call]:
            self._waits_for[follower] -= 1
            if not self._waits_for[follower]:
                self._arrive(follower)


def _meetings(programs: Programs) -> Iterator[Meeting]:
    between: defaultdict[tuple[str, int], list[CallKey]] = defaultdict(list)
    for stage, program in enumerate(programs):
        counts: defaultdict[str, int] = defaultdict(int)
        for place, call in enumerate(program):
            if call.group in ("world", "emb"):
                between[call.group, counts[call.group]].append((stage, place))
                counts[call.group] += 1
            elif call.group != P2P:
                yield from (Meeting(((stage, place),), part=part) for part in range(len(ring_pairs(call.ring)) or 1))
    yield from (Meeting(tuple(members)) for members in between.values())
    yield from _pairs(programs)


def ring_pairs(size: int) -> list[list[tuple[int, int]]]:
    """Cut a ring of `size` members into parts in which each member meets one neighbour at most.

    Two members meet once, both ways.

    >>> ring_pairs(4), ring_pairs(3), ring_pairs(2), ring_pairs(0)
    ([[(0, 1), (2, 3)], [(1, 2), (3, 0)]], [[(0, 1)], [(1, 2)], [(2, 0)]], [[(0, 1)]], [])
    """
    if size <= 2:
        return [[(0, 1)]] if size else []
    pairs = [(one, (one + 1) % size) for one in range(size)]
    parts = [pairs[: size - size % 2 : 2], pairs[1 : size - size % 2 : 2], pairs[size - 1 :] if size % 2 else []]
    return [part for part in parts if part]


def _pairs(programs: Programs) -> Iterator[Meeting]:
    """Match the n-th send from a stage to another with the n-th recv there; those of the same two calls are one."""
    sends, recvs = _messages(programs, "send"), _messages(programs, "recv")
    found: dict[tuple[CallKey, CallKey], set[bool]] = {}
    for source, target in sends | recvs:
        sent, received = sends[source, target], recvs[source, target]
        if len(sent) != len(received):
            raise RuntimeError(f"stage {target} must receive what stage {source} sends: {len(sent)}; {len(received)}")
        is_down = target == source + 1 or (len(programs) > 2 and (source, target) == (len(programs) - 1, 0))
        for sender, receiver in zip(sent, received, strict=True):
            pair = (sender, receiver) if is_down else (receiver, sender)
            found.setdefault(pair, set()).add(is_down)
    for pair, directions in found.items():
        yield Meeting(pair, is_down=True in directions, is_up=False in directions)


def _messages(programs: Programs, operator: str) -> defaultdict[CallKey, list[CallKey]]:
    """Calls by source and target stage, in order."""
    found: defaultdict[CallKey, list[CallKey]] = defaultdict(list)
    for stage, program in enumerate(programs):
        for place, call in enumerate(program):
            for name, peer in zip(call.operators, call.peers if call.group == P2P else (), strict=False):
                if name == operator:
                    found[(stage, peer) if operator == "send" else (peer, stage)].append((stage, place))
    return found
