"""The order in which the calls of all stages can happen: who meets whom, and which meetings come before which.

Dependencies are solved once per stage, not per rank. A call waits for the call before it on its stream, and where
streams touch for others of those streams.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from irregulars.producers.simulator.program.calls import P2P, Call

Place = tuple[int, int]
"""A call: its stage, and its place in the stage's program."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Calls that happen together.

    Attributes
    ----------
    members
        Of p2p two: first the stage from which activations come, then the one to which they go.
    is_down, is_up
        Of p2p: whether a message goes from the first to the second member, and whether one comes back.
    part
        Of a ring, in which each member meets both neighbours: which of its pairs, see `ring_pairs`.
    """

    members: tuple[Place, ...]
    is_down: bool = False
    is_up: bool = False
    part: int = 0


Programs = Sequence[Sequence[Call]]


Links = tuple[int, tuple[int, ...]]
"""The place of the call after which a call's own work begins (-1: the start), and of others that must be over."""


def predecessors(program: Sequence[Call]) -> list[Links]:
    """Say for each call of a program what it waits for in its own rank."""
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
        self._followers: defaultdict[Place, list[Place]] = defaultdict(list)
        self._meetings_of: defaultdict[Place, list[Meeting]] = defaultdict(list)
        self._missing = {meeting: len(meeting.members) for meeting in meetings}
        for meeting in meetings:
            for member in meeting.members:
                self._meetings_of[member].append(meeting)
        self._waits_for, first = self._dependencies(programs)
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
        busy: set[Place] = set()
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

    def _dependencies(self, programs: Programs) -> tuple[dict[Place, int], list[Place]]:
        counts: dict[Place, int] = {}
        for stage, program in enumerate(programs):
            for place, (before, others) in enumerate(predecessors(program)):
                needed = {(stage, x) for x in (before, *others) if x >= 0}
                counts[stage, place] = len(needed)
                for one in needed:
                    self._followers[one].append((stage, place))
        return counts, [call for call, count in counts.items() if not count]

    def _arrive(self, call: Place) -> None:
        for meeting in self._meetings_of[call]:
            self._missing[meeting] -= 1
            if not self._missing[meeting]:
                self.ready.append(meeting)

    def _close(self, call: Place) -> None:
        self._open_meetings[call] -= 1
        if self._open_meetings[call]:
            return
        self._left -= 1
        for follower in self._followers[call]:
            self._waits_for[follower] -= 1
            if not self._waits_for[follower]:
                self._arrive(follower)


def _meetings(programs: Programs) -> Iterator[Meeting]:
    between: defaultdict[tuple[str, int], list[Place]] = defaultdict(list)
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
    """Cut a ring of so many members into parts in which nobody stands twice; two members meet once, both ways.

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
    found: dict[tuple[Place, Place], set[bool]] = {}
    for source, target in sends | recvs:
        sent, received = sends[source, target], recvs[source, target]
        if len(sent) != len(received):
            raise RuntimeError(f"stage {target} must receive what stage {source} sends: {len(sent)}; {len(received)}")
        is_down = _is_down(source, target, len(programs))
        for sender, receiver in zip(sent, received, strict=True):
            pair = (sender, receiver) if is_down else (receiver, sender)
            found.setdefault(pair, set()).add(is_down)
    for pair, directions in found.items():
        yield Meeting(pair, is_down=True in directions, is_up=False in directions)


def _messages(programs: Programs, operator: str) -> defaultdict[Place, list[Place]]:
    """Calls by source and target stage, in order."""
    found: defaultdict[Place, list[Place]] = defaultdict(list)
    for stage, program in enumerate(programs):
        for place, call in enumerate(program):
            for name, peer in zip(call.operators, call.peers if call.group == P2P else (), strict=False):
                if name == operator:
                    found[(stage, peer) if operator == "send" else (peer, stage)].append((stage, place))
    return found


def _is_down(source: int, target: int, stages: int) -> bool:
    return target == source + 1 or (stages > 2 and (source, target) == (stages - 1, 0))
