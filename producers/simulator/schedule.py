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
from graphlib import CycleError, TopologicalSorter
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
    programs = [Program(stage, settings) for stage in range(settings.pp)]
    for program in programs:
        program.load_data()
        if turn == EVALUATE:
            for _ in range(settings.evaluation_passes):
                for micro_batch in range(settings.micro_batches):
                    _pass_on(program, micro_batch)
            program.collective("world", "all_reduce", 8)
        else:
            (_run_interleaved if settings.model_chunks > 1 else _run_1f1b)(program)
            program.finish()
    return [program.calls for program in programs]


def _pass_on(program: Program, micro_batch: int) -> None:
    """Do one forward between the stages before and after this one."""
    _exchange(program, program.stage - 1, "recv")
    program.forward(micro_batch)
    _exchange(program, program.stage + 1, "send")


def _exchange(program: Program, stage: int, *operators: str) -> None:
    """Call p2p with a neighbour, unless the pipeline ends here."""
    if 0 <= stage < program.settings.pp:
        program.exchange(*((operator, stage) for operator in operators))


def _run_1f1b(program: Program) -> None:
    settings, before, after = program.settings, program.stage - 1, program.stage + 1
    warmup = min(settings.pp - program.stage - 1, settings.micro_batches)
    steady = settings.micro_batches - warmup
    for micro_batch in range(warmup):
        _pass_on(program, micro_batch)
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


def _run_interleaved(program: Program) -> None:
    """Micro-batches pass a chunk of the model in rounds of as many as there are stages."""
    settings, stage = program.settings, program.stage
    pp, chunks = settings.pp, settings.model_chunks
    total = settings.micro_batches * chunks
    # Megatron's `num_warmup_microbatches`; a single round of micro-batches is all warm-up, as there.
    warmup = total if settings.micro_batches == pp else min(2 * (pp - stage - 1) + (chunks - 1) * pp, total)
    before, after = (stage - 1) % pp, (stage + 1) % pp

    def micro_batch(number: int) -> int:
        return number // (pp * chunks) * pp + number % pp

    # Of the n-th forward or backward: whether its input comes from another stage, and its output goes to one. The
    # first chunk of the first stage and the last chunk of the last have no neighbour at one side.
    def is_end(number: int, *, is_backward: bool, at_first: bool) -> bool:
        chunk = number % (pp * chunks) // pp
        chunk = chunks - 1 - chunk if is_backward else chunk
        return (stage, chunk) == ((0, 0) if at_first else (pp - 1, chunks - 1))

    def input_of(number: int, *, is_backward: bool) -> list[Message]:
        if number >= total or is_end(number, is_backward=is_backward, at_first=not is_backward):
            return []
        return [("recv", after if is_backward else before)]

    def messages_after(number: int, *, is_backward: bool) -> list[Message]:
        """Return the output of a forward or backward, and the input of the next one."""
        is_last = is_end(number, is_backward=is_backward, at_first=is_backward)
        output: list[Message] = [] if is_last else [("send", before if is_backward else after)]
        return output + input_of(number + 1, is_backward=is_backward)

    program.exchange(*input_of(0, is_backward=False))
    for n in range(warmup):
        program.forward(micro_batch(n))
        turn = input_of(0, is_backward=True) if n == warmup - 1 and warmup < total else []
        program.exchange(*messages_after(n, is_backward=False), *turn)
    for n in range(total - warmup):
        program.forward(micro_batch(warmup + n))
        program.backward(micro_batch(n), is_last=n == total - 1)
        program.exchange(*messages_after(warmup + n, is_backward=False), *messages_after(n, is_backward=True))
    if warmup == total:
        program.exchange(*input_of(0, is_backward=True))
    for n in range(total - warmup, total):
        program.backward(micro_batch(n), is_last=n == total - 1)
        program.exchange(*messages_after(n, is_backward=True))


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
            # Order on stream 0 is in the first element of the pair already.
            others = [newest[call.stream]] if call.stream in newest and call.stream else []
        found.append((newest.get(0, -1), (*others, *call.after)))
        newest[call.stream] = place
    return found


def waves(programs: Programs) -> list[list[Meeting]]:
    """Order all calls of an iteration so that each wave depends on earlier waves only.

    Meetings of one wave touch different calls, and are independent of each other. Raises RuntimeError if the programs
    wait for each other for ever: an error of the schedule, not of its settings.
    """
    meetings_of: defaultdict[CallKey, list[Meeting]] = defaultdict(list)
    for meeting in _meetings(programs):
        for member in meeting.members:
            meetings_of[member].append(meeting)
    sorter: TopologicalSorter[Meeting] = TopologicalSorter()
    for stage, program in enumerate(programs):
        for place, (before, others) in enumerate(predecessors(program)):
            needed = [one for x in (before, *others) if x >= 0 for one in meetings_of[stage, x]]
            for meeting in meetings_of[stage, place]:
                sorter.add(meeting, *needed)
    try:
        sorter.prepare()
    except CycleError:
        raise RuntimeError("stage programs must not wait for each other in a circle") from None
    result, ready = [], list[Meeting]()
    while sorter.is_active():
        # In a fixed order: transfers are numbered by it, and noise is drawn by their numbers.
        ready = sorted([*ready, *sorter.get_ready()], key=lambda one: (one.members, one.part))
        busy = set[CallKey]()
        wave, later = [], []
        for meeting in ready:
            if busy.isdisjoint(meeting.members):
                wave.append(meeting)
                busy.update(meeting.members)
            else:
                # One of its calls has another part in this wave; it is ready, and goes into the next.
                later.append(meeting)
        sorter.done(*wave)
        result.append(wave)
        ready = later
    return result


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
        # With chunks the last stage sends down to the first; of two stages the pair would be both down and up.
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
