"""The order in which the calls of all stages can happen: who meets whom, and which meetings come before which.

Dependencies are solved once per stage, not per rank. A call waits for the call before it on its stream, and where two
streams touch for one of the other stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from producers.simulator.program import P2P, Call

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
    """

    members: tuple[Place, ...]
    is_down: bool = False
    is_up: bool = False


Programs = Sequence[Sequence[Call]]


def predecessors(program: Sequence[Call]) -> list[tuple[int, int | None]]:
    """For each call the place of the call after which its own work begins, and of another one that must have ended.

    -1 is the start of the iteration; None: there is no other.
    """
    newest: dict[int, int | None] = {0: None, 1: None}
    found: list[tuple[int, int | None]] = []
    for place, call in enumerate(program):
        main = newest[0]
        found.append((-1 if main is None else main, newest[1] if call.stream == 1 or call.is_joining else None))
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
            for place, (before, other) in enumerate(predecessors(program)):
                needed = {(stage, x) for x in (before, other) if x is not None and x >= 0}
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
                yield Meeting(((stage, place),))
    yield from (Meeting(tuple(members)) for members in between.values())
    yield from _pairs(programs)


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
            for name, peer in zip(call.operators, call.peers, strict=False):  # collectives have no peers
                if name == operator:
                    found[(stage, peer) if operator == "send" else (peer, stage)].append((stage, place))
    return found


def _is_down(source: int, target: int, stages: int) -> bool:
    return target == source + 1 or (stages > 2 and (source, target) == (stages - 1, 0))
