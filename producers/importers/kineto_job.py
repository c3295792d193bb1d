"""Join the traces of a job's ranks: groups become communicators, calls get numbers, steps become iterations.

Find the process group of a gloo collective, which its annotation does not name.

No rank leaves a collective before all have entered it. So the n-th call of a kind (operator and size) can only have
run in a group whose members were all inside their n-th call at the same time. Of the groups that pass, the largest is
taken: a part of a group passes as well. A send ran in the group whose other end received as often.

Pair the calls of ranks that are one collective, as captures begin at different moments: the members of a collective
leave it together. So where the right calls are paired, their ends are apart by the same time, the offset of the
clocks; where wrong ones are, by times that vary as the lengths of iterations do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from statistics import median_low
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.dtypes import Ints
from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import P2P, RECV, ROOTED, SEND, UNKNOWN
from irregulars.producers.importers.groups import ProcessGroup, communicators_of
from irregulars.producers.importers.identity import has_twice
from irregulars.producers.importers.imported import ImportedJob, RankRows
from irregulars.producers.importers.kineto_trace import Call, Capture, SpansByThread
from irregulars.producers.trace.job_file import RankLocation

_MOST_APART: Final = 256  # calls by which captures begin apart, where clocks do not tell more
_COMPARED: Final = 512  # calls of a pair of ranks
_PASSING: Final = 0.95  # share of the calls: profilers lose some, and place some events a little off


class Series(NamedTuple):
    """Calls of one rank on one communicator, in their order."""

    end_ns: Ints
    kind: Ints  # the same for the same operator and size


def find_shifts(series: Mapping[int, Series]) -> dict[int, int]:
    """Return by rank the number of its first call, where the earliest call of all is number 0.

    >>> ends = np.cumsum([0, 9_000_000, 12_000_000, 10_000_000, 8_000_000])
    >>> find_shifts({rank: Series(ends[rank:], np.zeros(5 - rank, int)) for rank in (0, 1)})
    {0: 0, 1: 1}
    """
    longest = series[max(series, key=lambda rank: len(series[rank].end_ns))]
    shifts: dict[int, int] = {}
    for rank, own in series.items():
        by_clock = int(np.searchsorted(longest.end_ns, own.end_ns[0])) if len(own.end_ns) else 0
        tried = {0, *range(-_MOST_APART, _MOST_APART + 1), *range(by_clock - 2, by_clock + 3)}
        # `min` keeps the first of equals, and so the smallest shift.
        apart_ns = {shift: _apart_ns(own, longest, shift) for shift in sorted(tried, key=abs)}
        best = min(apart_ns, key=apart_ns.__getitem__)
        # Of regular iterations many shifts fit about as well: another one than 0 must be clearly better.
        shifts[rank] = best if 2 * apart_ns[best] < apart_ns[0] else 0
    least = min(shifts.values())
    return {rank: shift - least for rank, shift in shifts.items()}


def _apart_ns(own: Series, other: Series, shift: int) -> float:
    """Return by how much the distance of the ends of paired calls varies; infinite where other calls are paired.

    `shift`: place of `own`'s first call among `other`'s, which may be negative.
    """
    first = max(0, -shift)
    count = min(len(own.end_ns) - first, len(other.end_ns) - first - shift)
    # A shift by which less than half of the shorter capture is paired would win by the few calls that it compares.
    if 2 * count < min(len(own.end_ns), len(other.end_ns)) or count < 1:
        return np.inf
    a = slice(first, first + min(count, _COMPARED))
    b = slice(a.start + shift, a.stop + shift)
    if np.mean(own.kind[a] == other.kind[b]) < _PASSING:
        return np.inf
    apart_ns = own.end_ns[a] - other.end_ns[b]
    return float(np.median(np.abs(apart_ns - np.median(apart_ns))))


class Kind(NamedTuple):
    """Operator, size and peer that the calls of one kind have in common."""

    operator: int
    size_bytes: float
    peer: int


def find_groups(captures: Mapping[int, Capture]) -> dict[tuple[int, Kind], ProcessGroup]:
    """Find the group of the gloo calls of each rank (of one clock) and kind; calls for which none fits are absent."""
    calls = {
        rank: grouped((kind_of_call(call), call) for call in capture.calls if call.lane == "gloo")
        for rank, capture in captures.items()
    }
    found: dict[tuple[int, Kind], ProcessGroup] = {}
    for rank, kinds in calls.items():
        groups = sorted(captures[rank].groups, key=lambda group: (-len(group.ranks), group))
        for kind in kinds:
            is_fit = _is_pair if kind.operator in P2P else _is_shared
            fitting = [group for group in groups if rank in group.ranks and is_fit(rank, kind, group, calls)]
            if fitting:
                found[rank, kind] = fitting[-1] if kind.operator in P2P else fitting[0]
    return found


def kind_of_call(call: Call) -> Kind:
    """Return the kind of a call."""
    return Kind(call.operator, -1.0 if np.isnan(call.size_bytes) else call.size_bytes, call.peer)


def _is_shared(rank: int, kind: Kind, group: ProcessGroup, calls: Mapping[int, Mapping[Kind, list[Call]]]) -> bool:
    own = [calls[member].get(kind, []) for member in group.ranks if member in calls]
    if any(len(one) != len(calls[rank][kind]) for one in own):
        return False
    # Of these a rank may leave before others enter: their times need not overlap.
    if kind.operator in ROOTED:
        return True
    starts = np.array([[call.start_ns for call in one] for one in own])
    ends = starts + np.array([[call.elapsed_ns for call in one] for one in own])
    return bool(np.mean(starts.max(axis=0) <= ends.min(axis=0)) >= _PASSING)


def _is_pair(rank: int, kind: Kind, group: ProcessGroup, calls: Mapping[int, Mapping[Kind, list[Call]]]) -> bool:
    if kind.peer >= len(group.ranks) or group.ranks[kind.peer] == rank:
        return False
    peer = group.ranks[kind.peer]
    mirrored = Kind(SEND if kind.operator == RECV else RECV, kind.size_bytes, group.ranks.index(rank))
    return peer in calls and len(calls[peer].get(mirrored, ())) == len(calls[rank][kind])


# Traces number no collectives, and begin at different points. So the n-th call of a communicator in an iteration gets
# a number made of both, the same on all ranks whatever else they captured: of 65,536 iterations, with as many calls
# in each.
_NUMBER_BITS: Final = 16
_OUTSIDE: Final = (1 << _NUMBER_BITS) - 1
# Ends of a collective that are closer than this, in `_SHARED_SHARE` of all collectives, are of one clock.
_SHARED_NS: Final = 100_000
_MARK_NS: Final = 100_000  # by which a mark may end before an operator in it: clocks of CPU and GPU are that close
_SHARED_SHARE: Final = 0.9
NOTE_NO_STEPS: Final = (
    "no ProfilerStep# annotation was found, so operators have no iteration: call profiler.step() in the training loop"
)
MARKS_APART: Final = (
    "ProfilerStep# of the CPU, which do not tell the iterations of operators: their launches are not in the traces, "
    "and operators run on after their step"
)
NOTE_COUNT: Final = (
    "launches of operators are not in the traces: each step was given its share of each stream's operators, which is "
    "the same in all steps"
)
UNLAUNCHED: Final = "kernels whose launch is not in the trace, as of those launched before it begins"
INCOMPLETE: Final = "calls of a step in which other ranks of their group have more of them"
NOTE_SIZE: Final = "nothing tells how many ranks the job has: two at least"
NOTE_STREAMS: Final = (
    "the traces do not name process groups: each CUDA stream counts as one communicator of all ranks"
)


def job_of_captures(captures: Iterable[Capture], job: str, *, is_whole: bool = True) -> ImportedJob:
    """Join traces of a job, of all ranks or (not `is_whole`) of some; several of one rank are parts of it.

    All captures name their rank. Raises InputError if none holds a collective, or steps repeat so that nothing tells
    which of them belong together.
    """
    by_rank = _joined(captures)
    skipped = Counter[str]()
    for rank, capture in by_rank.items():
        skipped.update(capture.skipped)
        # Of the kernels that were launched before the capture began each rank has another number. Where the trace
        # holds no launches at all, all are kept.
        known = [call for call in capture.calls if call.issued_ns is not None]
        if known and len(known) < len(capture.calls):
            skipped[UNLAUNCHED] += len(capture.calls) - len(known)
            by_rank[rank] = replace(capture, calls=known)
    told = [capture.world_size for capture in by_rank.values() if capture.world_size is not None]
    named = {group for c in by_rank.values() for group in (*c.groups, *(call.group for call in c.calls)) if group}
    world_size = max([1 + max(by_rank), *told, *(1 + max(group.ranks) for group in named)])
    notes: list[str] = []
    if world_size == 1 and not told and any(call.lane != "gloo" for c in by_rank.values() for call in c.calls):
        world_size = 2  # at least: alone nobody calls collectives
        notes.append(NOTE_SIZE)
    if not any(capture.steps for capture in by_rank.values()):
        notes.append(NOTE_NO_STEPS)
    elif not all(map(_holds_its_calls, by_rank.values())):
        counted = {rank: _by_count(capture) for rank, capture in by_rank.items()}
        if _begin_alike(counted.values()):
            rest = sum(len(by_rank[rank].calls) - len(one.calls) for rank, one in counted.items() if one is not None)
            skipped.update({UNLAUNCHED: rest} if rest else {})
            by_rank = {rank: capture for rank, capture in counted.items() if capture is not None}
            notes.append(NOTE_COUNT)
        else:
            skipped[MARKS_APART] += sum(len(capture.steps) for capture in by_rank.values())
            by_rank = {rank: replace(capture, steps=[]) for rank, capture in by_rank.items()}
    told_groups = {call.group for capture in by_rank.values() for call in capture.calls if call.group is not None}
    by_rank = _with_groups(by_rank, world_size, skipped)
    groups = {group for capture in by_rank.values() for group in capture.groups}
    groups |= {call.group for capture in by_rank.values() for call in capture.calls if call.group is not None}
    communicators = communicators_of(groups, world_size, is_whole=is_whole)
    calls = {rank: _numbered(capture) for rank, capture in by_rank.items()}
    lost = Counter[int]()
    for rank, lane in _incomplete(calls, told_groups):
        lost[rank] += len(calls[rank].pop(lane))
    skipped.update({INCOMPLETE: lost.total()} if lost else {})
    shifts = _shifts(calls)
    ranks = {rank: _rows(rank, capture, calls[rank], communicators, shifts) for rank, capture in by_rank.items()}
    if not any(len(rows) for rows in ranks.values()):
        raise none_usable([skipped, {"with impossible values": sum(rows.unusable for rows in ranks.values())}])
    if any(group.name.startswith("stream ") for group in communicators):
        notes.append(NOTE_STREAMS)
    return ImportedJob(
        job=job, world_size=world_size, clock=_clock(by_rank),
        communicators=communicators.values(), ranks=ranks,
        places={rank: RankLocation(host=one.host, lost_rows=lost.get(rank)) for rank, one in by_rank.items()},
        notes=notes,
        skipped=dict(skipped),
    )  # fmt: skip


def none_usable(skipped: Iterable[Mapping[str, int]]) -> InputError:
    """Return the error of traces without a usable collective; `skipped`: numbers of those left out, by reason."""
    left_out = sum(map(Counter, skipped), Counter[str]())
    found = ", ".join(f"{count} x {reason}" for reason, count in left_out.items())
    rule = "kernels of NCCL, RCCL or an engine's own all-reduce, or gloo:* annotations"
    return InputError(f"traces must hold collectives: {rule}; got {found or 'none of them'}")


def _joined(captures: Iterable[Capture]) -> dict[int, Capture]:
    """Join the captures of each rank, in the order of time.

    Where steps repeat (a profiler that is made anew counts from 0), those of the second captures go on behind those
    of the first ones, on all ranks alike, and one number is left out: the time between was not recorded.
    """
    parts = grouped((one.rank, one) for one in captures if one.rank is not None)
    for own in parts.values():
        own.sort(key=lambda one: one.span_ns or (0, 0))
    if any(len(own) > 1 for own in parts.values()):
        parts = _numbered_through(parts)
    return {
        rank: replace(
            own[0],
            steps=[step for one in own for step in one.steps],
            calls=[call for one in own for call in one.calls],
            groups=tuple(dict.fromkeys(group for one in own for group in one.groups)),
            skipped=dict(sum((Counter(one.skipped) for one in own), Counter[str]())),
        )
        for rank, own in parts.items()
    }


def _numbered_through(parts: Mapping[int, list[Capture]]) -> dict[int, list[Capture]]:
    repeating = [rank for rank, own in parts.items() if has_twice(step.peer for one in own for step in one.steps)]
    if not repeating:
        return dict(parts)
    counts = {rank: len(own) for rank, own in parts.items()}
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=lambda rank: counts[rank]), max(counts, key=lambda rank: counts[rank])
        raise InputError(
            f"steps must be there once; those of rank {repeating[0]} repeat, and rank {most} has {counts[most]} "
            f"captures, rank {least} {counts[least]}; nothing tells which belong together: import those of one time"
        )
    past = 0
    numbered: dict[int, list[Capture]] = {rank: [] for rank in parts}
    for at in range(len(next(iter(parts.values())))):
        numbers = [step.peer for own in parts.values() for step in own[at].steps]
        by = max(past - min(numbers), 0) if numbers else 0
        for rank, own in parts.items():
            steps = [step._replace(peer=step.peer + by) for step in own[at].steps]
            numbered[rank].append(replace(own[at], steps=steps))
        past = max([past, *(2 + number + by for number in numbers)])
    return numbered


def _holds_its_calls(capture: Capture) -> bool:
    """Whether steps show the iterations of a capture's calls.

    They do if it is known when calls were issued. If not, the CPU that marks steps may be ahead of the GPU by some of
    them; it was not if each call lies within one step.
    """
    steps = SpansByThread(step._replace(thread=None) for step in capture.steps)
    for call in capture.calls:
        if call.issued_ns is None:
            around = steps.around(call.start_ns, None)
            is_before = bool(capture.steps) and call.start_ns < capture.steps[0].start_ns
            if not is_before and (around is None or call.start_ns + call.elapsed_ns > around.end_ns + _MARK_NS):
                return False
    return True


def _begin_alike(captures: Iterable[Capture | None]) -> bool:
    """Whether the first step holds the same calls of a group on all its ranks: else the counts began apart."""
    orders: dict[ProcessGroup, set[tuple[Any, ...]]] = {}
    for one in captures:
        if one is None:
            return False
        first: dict[ProcessGroup, list[Any]] = {}
        for call in one.calls:
            # Ends of a message differ, and so do sizes at a root.
            if call.group is not None and call.operator not in P2P and call.issued_ns == one.steps[0].start_ns:
                kind = call.operator if call.operator in ROOTED else kind_of_call(call)
                first.setdefault(call.group, []).append(kind)
        for group, kinds in first.items():
            orders.setdefault(group, set()).add(tuple(kinds))
    return all(len(found) == 1 for found in orders.values())


def _by_count(capture: Capture) -> Capture | None:
    """Give the calls of each stream to the steps by their number, as if launched where their step begins.

    None unless all steps then hold the same calls, none of which ran before its step. Calls that are too many come
    first, as of the steps before the capture.
    """
    found: list[Call] = []
    for calls in grouped((call.lane, call) for call in capture.calls).values():
        share, rest = divmod(len(calls), max(len(capture.steps), 1))
        kinds = [(kind_of_call(call), call.group) for call in calls]
        if not share or not capture.steps or kinds[share:] != kinds[:-share] or (rest and len(set(kinds)) == 1):
            return None
        for at, call in enumerate(calls[rest:]):
            begin_ns = capture.steps[at // share].start_ns
            if call.start_ns < begin_ns - _MARK_NS:
                return None
            found.append(call._replace(issued_ns=begin_ns))
    return replace(capture, calls=sorted(found, key=lambda call: call.start_ns))


def _with_groups(by_rank: Mapping[int, Capture], world_size: int, skipped: Counter[str]) -> dict[int, Capture]:
    """Give a group to each call that has none; gloo calls whose group can't be found are left out."""
    gloo = find_groups(by_rank)
    lanes: dict[str, set[int]] = {}
    for rank, call in ((rank, call) for rank, capture in by_rank.items() for call in capture.calls):
        if call.group is None and call.lane != "gloo":
            lanes.setdefault(call.lane, set()).add(rank)
    everybody = tuple(range(world_size))
    named = (group for capture in by_rank.values() for group in capture.groups if group.ranks == everybody)
    world = next(named, ProcessGroup("world", "default_pg", everybody))
    # The streams of ranks without a trace are not known: they may use each of these.
    is_partial = len(by_rank) < world_size
    streams = {
        lane: ProcessGroup(lane, lane, world.ranks if is_partial else tuple(sorted(ranks)))
        for lane, ranks in lanes.items()
    }
    # A stream that is alone carries the collectives of all ranks, also of those without a trace.
    if len(lanes) == 1:
        streams = dict.fromkeys(lanes, world)
    found: dict[int, Capture] = {}
    for rank, capture in by_rank.items():
        calls: list[Call] = []
        for call in capture.calls:
            group = call.group
            if group is None:
                group = gloo.get((rank, kind_of_call(call))) if call.lane == "gloo" else streams[call.lane]
            if group is None or rank not in group.ranks or (call.operator in P2P and call.peer >= len(group.ranks)):
                skipped["collectives whose process group nothing tells"] += 1
            else:
                calls.append(call._replace(group=group))
        found[rank] = replace(capture, calls=calls)
    return found


class Lane(NamedTuple):
    """Calls that are numbered together."""

    group: ProcessGroup
    ends: tuple[int, int]  # ranks of a send; -1 twice: a collective
    iteration: int


def _numbered(capture: Capture) -> dict[Lane, list[Call]]:
    """Return the calls of a rank in their order, by the lane in which they are numbered."""
    # Steps on whichever thread they were marked
    steps = SpansByThread(step._replace(thread=None) for step in capture.steps)
    found: dict[Lane, list[Call]] = {}
    for call in capture.calls:
        assert call.group is not None
        # By its launch: the GPU may run an operator when the CPU is steps ahead.
        around = steps.around(call.start_ns if call.issued_ns is None else call.issued_ns, None)
        ends = (-1, -1)
        if call.operator in P2P:
            assert capture.rank is not None
            peer = call.group.ranks[call.peer]
            ends = (peer, capture.rank) if call.operator == RECV else (capture.rank, peer)
        found.setdefault(Lane(call.group, ends, UNKNOWN if around is None else around.peer), []).append(call)
    return found


def _incomplete(
    calls: Mapping[int, Mapping[Lane, list[Call]]], told: Container[ProcessGroup]
) -> list[tuple[int, Lane]]:
    """Find the steps of ranks that lack calls of a group: which ones is not known, so none of them can be paired.

    On a stream that stands for groups each rank may make another number of calls: it lacks those beside its usual.
    """
    counts: dict[Lane, dict[int, int]] = {}
    usual: dict[tuple[int, ProcessGroup], list[int]] = {}
    for rank, own in calls.items():
        for lane, those in own.items():
            if lane.iteration != UNKNOWN and lane.ends[0] < 0:
                counts.setdefault(lane, {})[rank] = len(those)
                usual.setdefault((rank, lane.group), []).append(len(those))
    found = []
    for lane, of_rank in counts.items():
        more = {n: by - (0 if lane.group in told else median_low(usual[n, lane.group])) for n, by in of_rank.items()}
        found += [(rank, lane) for rank, by in more.items() if by < max(more.values())]
    return found


def _shifts(calls: Mapping[int, Mapping[Lane, list[Call]]]) -> dict[tuple[int, Lane], int]:
    """Return the number of the first call that no step holds, by rank and lane: captures begin apart."""
    series: dict[Lane, dict[int, Series]] = {}
    for rank, own in calls.items():
        for lane, those in own.items():
            if lane.iteration == UNKNOWN:
                end_ns = np.array([call.start_ns + int(call.elapsed_ns) for call in those], np.int64)
                # `kind_of_call` has a number for an unknown size: of NaN each has a hash of its own.
                is_sent = lane.ends != (-1, -1)
                kinds = [hash((is_sent or kind.operator, kind.size_bytes)) for kind in map(kind_of_call, those)]
                series.setdefault(lane, {})[rank] = Series(end_ns, np.array(kinds, np.int64))
    return {(rank, lane): by for lane, own in series.items() for rank, by in find_shifts(own).items()}


def _rows(
    rank: int,
    capture: Capture,
    calls: Mapping[Lane, list[Call]],
    communicators: Mapping[ProcessGroup, Communicator],
    shifts: Mapping[tuple[int, Lane], int],
) -> RankRows:
    rows = RankRows()
    spans: dict[int, tuple[int, int]] = {}  # start of the first and end of the last operator of each iteration
    for lane, those in calls.items():
        iteration, communicator = lane.iteration, communicators[lane.group].id
        for number, call in enumerate(those, shifts.get((rank, lane), 0)):
            # More calls would have the numbers of the next iteration's.
            if number >> _NUMBER_BITS:
                rows.unusable += 1
                continue
            first_ns, last_ns = spans.get(iteration, (call.start_ns, 0))
            spans[iteration] = min(first_ns, call.start_ns), max(last_ns, call.start_ns + int(call.elapsed_ns))
            sequence = (_OUTSIDE if iteration == UNKNOWN else iteration % _OUTSIDE) << _NUMBER_BITS | number
            peer = call.group.ranks[call.peer] if call.group is not None and call.operator in P2P else UNKNOWN
            times = call.start_ns, call.elapsed_ns
            rows.add(communicator, call.operator, sequence, peer, *times, call.size_bytes, iteration)
    spans.pop(UNKNOWN, None)
    # With gloo alone all of it ran on the CPU, whose marks are the iterations.
    if all(call.lane == "gloo" for call in capture.calls):
        spans = {step.peer: (step.start_ns, step.end_ns) for step in capture.steps}
    elif capture.steps:
        # Each iteration of a GPU begins when the last operator of the one before ended: the work between is its own,
        # and the marks of steps are the CPU's. One without the one before begins with its first operator.
        spans = {
            number: (min(first_ns, spans[number - 1][1] if number - 1 in spans else first_ns), last_ns)
            for number, (first_ns, last_ns) in spans.items()
        }
    for number, (start_ns, end_ns) in spans.items():
        rows.add_iteration(number, start_ns, end_ns - start_ns)
    return rows


def _clock(by_rank: Mapping[int, Capture]) -> str:
    """Return ``shared`` if all ranks are on one host, or leave collectives at the same time by their clocks."""
    hosts = {capture.host for capture in by_rank.values()}
    if len(hosts) == 1 and None not in hosts:
        return "shared"
    ends: dict[ProcessGroup, dict[int, list[float]]] = {}
    for rank, capture in by_rank.items():
        for call in capture.calls:
            if call.group is not None and call.operator not in P2P:
                own = ends.setdefault(call.group, {}).setdefault(rank, [])
                own.append(call.start_ns + call.elapsed_ns)
    # By how much the ends of each collective differ between its ranks; nothing pairs those of which ranks saw others
    apart_ns = np.concatenate([
        np.full(1, np.inf) if len(set(map(len, own.values()))) > 1 else np.ptp(np.array([*own.values()]), axis=0)
        for own in ends.values() if len(own) > 1
    ] or [np.empty(0)])  # fmt: skip
    is_shared = len(apart_ns) > 0 and np.mean(apart_ns < _SHARED_NS) >= _SHARED_SHARE
    return "shared" if is_shared else "per_host"
