"""One revision of a verdict, in words and numbers: its suspects, their places and its evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from irregulars.detectors.blame.likelihoods import LIKELIHOODS, SUREST, Suspects, calibrated
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.steadiness import WHOLE, steady_text
from irregulars.detectors.path.critical_path import Piece
from irregulars.detectors.path.find_hang import Hang, Standing
from irregulars.detectors.path.find_mismatch import Mismatch, Side
from irregulars.detectors.verdicts.open_verdict import OpenVerdict
from irregulars.detectors.verdicts.reasons import reasons_of, reasons_of_hang
from irregulars.grouping import grouped
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.kinds import GPU, PROGRAM, SWITCH, layer_of
from irregulars.messages.records import OPERATORS, P2P, SEND, UNKNOWN, UNNUMBERED, UNTOLD_CALLS, number_of
from irregulars.printing import counted
from irregulars.words import duration, name_kind, name_ranks, size, usual_duration


def revision_of(
    verdict: OpenVerdict, event: str, job: str, attempt: int, topology: Topology, close_reason: str | None = None
) -> Verdict:
    """Put a verdict into words and numbers, as it is now.

    `event`, `close_reason`: as in `messages.judgements.Verdict`.
    """
    cause, ratio = verdict.cause, verdict.recovers_ratio
    covered = verdict.covered(verdict.kept)
    named = None if covered is None else covered.cause
    text = _text(verdict, topology)
    if covered is not None:
        text += f"; {covered.share:.0%} of what was longer: {name_kind(named) if named else 'waits for the host'}"
    if ratio is not None:
        elapsed_ns = median(one.elapsed_ns for one in verdict.kept)
        text += f"; {recovery_text(ratio, elapsed_ns, median(one.reference_ns for one in verdict.kept))}"
    return Verdict(
        verdict_id=verdict.verdict_id,
        revision=verdict.revision,
        state="closed" if event == "closed" else "open",
        job=job,
        kind=cause.kind,
        iterations=(verdict.first, verdict.last + 1),
        delta=round(median(o.elapsed_ns / o.reference_ns for o in verdict.kept), 3),
        lost_s=round(verdict.lost_ns / 1e9, 6),
        communicator=None if cause.communicator is None else topology.names[cause.communicator],
        suspects=_suspects(calibrated(cause.suspects), topology),
        evidence=text,
        attempt=attempt,
        world_size=topology.world_size,
        time_ns=verdict.time_ns,
        close_reason=close_reason,
        event=event,
        severity=verdict.severity,
        recovers_ratio=None if ratio is None else round(ratio, 3),
        lasted_s=round(verdict.lasted_ns / 1e9, 6),
        explanation=reasons_of(verdict, topology),
        layer=layer_of(cause.kind) if covered is None else covered.layer,
        cause=named,
        cause_share=None if covered is None or named is None else round(covered.share, 4),
    )


def hang_verdict(
    verdict_id: str,
    hang: Hang,
    last: Observation,
    until_ns: int | None,
    reason: str,
    job: str,
    attempt: int,
    topology: Topology,
) -> Verdict:
    """Return the first revision on a hang in the iteration `last`: open if ``silent``, else closed at once."""
    lost_ns = 0 if until_ns is None or hang.since_ns is None else max(until_ns - hang.since_ns, 0)
    device = Device(PROGRAM if hang.is_program_error else GPU, hang.accused)
    probability = LIKELIHOODS.silent_hang_probability if hang.silent else LIKELIHOODS.hang_probability
    suspects = (suspect_of(device, probability, topology),) if hang.accused else ()
    return Verdict(
        verdict_id=verdict_id,
        revision=1,
        state="open" if reason == "silent" else "closed",
        job=job,
        kind="mismatch" if hang.is_program_error else "hang",
        iterations=(last.iteration, last.iteration + 1),
        delta=round(1 + lost_ns / last.reference_ns, 3) if lost_ns and last.reference_ns else math.nan,
        lost_s=round(lost_ns / 1e9, 6),
        communicator=topology.names[hang.communicator],
        suspects=suspects,
        evidence=hang_text(hang, topology),
        attempt=attempt,
        world_size=topology.world_size,
        time_ns=hang.since_ns if last.time_ns == UNKNOWN else last.time_ns,
        close_reason=None if reason == "silent" else reason,
        event="opened",
        severity="page",  # whatever was lost so far: nothing moves until somebody acts
        explanation=reasons_of_hang(hang, last, topology),
        layer=layer_of("mismatch" if hang.is_program_error else "hang"),
    )


_SPINES_SHOWN: Final = 4  # equal ones: lines of a verdict


def _suspects(found: Suspects, topology: Topology) -> tuple[Suspect, ...]:
    """Put suspects into the fields of a verdict; each of some equal spines has its part of the probability."""
    suspects = []
    for device, probability in found:
        spine = topology.spine(device)
        names = (None,) if spine is None else spine.names[:_SPINES_SHOWN]
        # All of them, also those not shown: else those shown would seem surer than they are.
        equal = 1 if spine is None else len(spine.names)
        suspects += [suspect_of(device, probability / equal, topology, name) for name in names]
    return tuple(suspects)


def suspect_of(device: Device, probability: float, topology: Topology, spine: str | None = None) -> Suspect:
    """Put a suspect into the fields of a verdict, with the place of its first rank; `spine`: name, if it is one."""
    rank, kind = device.ranks[0], device.traits
    place = {name: getattr(topology.place(rank), name) for name in kind.place}
    if len(device.ranks) > 1 and not kind.is_way:
        place["gpu"] = None  # several ranks are no one GPU; of a link it is the sender's
    if spine is not None:
        place["switch"] = spine
    return Suspect(
        device=device.kind if spine is None else SWITCH,
        rank=rank,
        ranks=device.ranks,
        probability=round(min(probability, SUREST), 4),
        peer=device.ranks[1] if kind.is_way else None,
        peer_host=topology.place(device.ranks[1]).host if kind.is_way else None,
        **place,
    )


def _text(verdict: OpenVerdict, topology: Topology) -> str:
    standing = verdict.standing
    if standing is None:
        how_often = how_often_text(verdict.seen, verdict.tried, verdict.first)
        if not verdict.cause.lanes:
            return in_turn_text(verdict.typical_ns, how_often)
        piece = _typical_piece(verdict)
        text = evidence_text(piece, verdict.typical_ns, how_often, topology)
        return _own_work_text(verdict, piece) + text + unlogged_text(piece, topology) + _rates_text(verdict, piece)
    if verdict.cause.lanes:
        piece = _typical_piece(verdict)
    else:  # a stage, or nobody: the path need not hold a piece that shows its excess, so one is made up
        rank = -1 if verdict.first_device is None else verdict.first_device.ranks[0]
        piece = Piece(Lane("work", rank), rank, 0, 0, standing.costs_ns, 0.0)
    text = standing_text(verdict.cause.kind, piece, standing.costs_ns, verdict.seen, topology)
    return text + unlogged_text(piece, topology) + _rates_text(verdict, piece)


def _own_work_text(verdict: OpenVerdict, piece: Piece) -> str:
    """Say how much longer the accused rank works, where the path ends in a transfer that waited for a silent one."""
    device = verdict.first_device
    if device is None or piece.lane.kind == "work" or not verdict.cause.is_of_work:
        return ""
    known = [
        o.attribution.work_excess_ns.get(device.ranks[0], 0.0) for o in verdict.kept if o.attribution is not None
    ]
    return f"rank {device.ranks[0]} works {duration(median(known))} longer than usual, and ranks wait as long; "


def _rates_text(verdict: OpenVerdict, piece: Piece) -> str:
    """Add how the accused NIC moved, where that is known."""
    device = verdict.first_device
    if device is None or "nic" not in device.traits.named_by:
        return ""
    # How it moved while the slow communicator ran counts more than in the iteration as a whole.
    communicators = (WHOLE,) if piece.lane.kind == "nic" else (piece.communicator, WHOLE)
    swings = [o.attribution.swings for o in verdict.kept if o.attribution is not None]
    text = next((text for one in communicators if (text := steady_text(device, one, swings))), None)
    return f"; {text}" if text else ""


def _typical_piece(verdict: OpenVerdict) -> Piece:
    """Return the piece of the path with the median excess among the largest ones of each iteration."""
    largest = []
    for observation in verdict.kept:
        assert observation.attribution is not None
        pieces = observation.attribution.pieces
        own = [piece for lane, piece in pieces.items() if lane in verdict.cause.lanes]
        largest += [max(own, key=lambda piece: piece.excess_ns)] if own else []
    # Of an even number the larger one of the middle two: a piece that was seen, and no mean.
    largest.sort(key=lambda piece: piece.excess_ns)
    return largest[len(largest) // 2]


# --------------------------------------------------------------------------------------------------------------------
# The sentence of evidence that a verdict carries.


_IN_TURN: Final = "in each iteration another rank works longer than its peers, as with uneven data"


def standing_text(kind: str, piece: Piece, costs_ns: float, seen: int, topology: Topology) -> str:
    """Return the evidence of a fault without a healthy past; the usual time of its piece is that of its peers.

    `kind`: of the verdict. `costs_ns`: typical cost for an iteration, ns. `seen`: iterations in which it was seen.
    """
    cost = f"it costs {duration(costs_ns)} of each iteration, seen in {counted(seen, 'iteration')}"
    if kind == "slow_stage":
        return f"all ranks of the stage of rank {piece.rank} work longer than those of the other stages; {cost}"
    if kind == "imbalance":
        return f"{_IN_TURN}; {cost}"
    return f"{_what(piece, topology)} (its peers {usual_duration(piece.usual_ns)}); {cost}"


def hang_text(hang: Hang, topology: Topology) -> str:
    """Return the evidence of a hang: who waits where, and for whom."""
    if hang.mismatch is not None:
        return mismatch_text(hang.mismatch, topology)
    if hang.circle:
        # Which ranks wait for each other, and in which calls
        stands = [
            f"rank {one.rank} in {_call(one.operator, one.sequence)}"
            + (f" {'to' if one.operator == SEND else 'from'} rank {one.peer}" if one.operator in P2P else "")
            for one in hang.circle[:_CIRCLE_SHOWN]
        ]
        more = f" and {len(hang.circle) - _CIRCLE_SHOWN} more" if len(hang.circle) > _CIRCLE_SHOWN else ""
        names = {OPERATORS[one.operator] for one in hang.circle}
        calls = f"{len(hang.circle)} {'calls' if len(names) > 1 else f'{names.pop()}s'}"
        return (f"a circle of {calls} on {_name(hang.communicator, topology)}: {', '.join(stands)}{more}; each waits "
                "for a call of the next one that it never reaches: the order of calls is at fault")  # fmt: skip
    where = f"{_call(hang.operator, hang.sequence)} on {_name(hang.communicator, topology)}"
    waits = ("1 rank waits" if hang.waiting == 1 else f"{hang.waiting} ranks wait") + " in operators that never ended"
    if not hang.ranks and not hang.silent:
        return f"{waits}, most of them in {where}, and all behind ranks that log nothing"
    if not hang.ranks:
        return f"{waits}; {hang.silent} ranks that belong to {where} log nothing"
    ranks = _named(hang.ranks)
    if hang.silent:
        belong = "belongs" if hang.silent == 1 else "belong"
        return f"{waits}; {ranks} {belong} to {where}, and nothing was logged there"
    if hang.is_shared:
        return _shared_text(hang.places, topology)
    nobody = "" if hang.accused else ": more ranks than wait for them, so that none of them stands out"
    if hang.has_arrived:
        return f"{where} ended on other ranks and never on {ranks}{_ahead_text(hang, topology)}{nobody}"
    return f"{waits}; {ranks} never arrived in {where}{nobody}"


def _shared_text(places: Sequence[Standing], topology: Topology) -> str:
    """Name the operators in which ranks hang although all known members have entered them."""
    calls = grouped(((one.communicator, one.operator, one.sequence), one.rank) for one in places)
    largest = sorted(calls.items(), key=lambda call: (-len(call[1]), call[1]))
    told = [
        f"{_named(ranks)} stand{'s' if len(ranks) == 1 else ''} in {_call(operator, sequence)} on "
        f"{_name(communicator, topology)}"
        for (communicator, operator, sequence), ranks in largest[:_SIDES_SHOWN]
    ]
    told += [f"{len(largest) - _SIDES_SHOWN} more calls are open"] if len(largest) > _SIDES_SHOWN else []
    if any(len(topology.members.get(communicator, ())) == 1 for communicator, _, _ in calls):
        return f"{', and '.join(told)}; who else belongs to that group, and is waited for, is not told"
    all_have = "all have entered it, and none came out" if len(calls) == 1 else "all have entered these"
    return f"{', and '.join(told)}, and nobody is missing: {all_have}"


def _ahead_text(hang: Hang, topology: Topology) -> str:
    """Add by how many calls the rank that is furthest ahead leads the accused ones, where that is known."""
    one = hang.ahead
    if one is None or hang.sequence is None:
        return ""
    silent = sorted(set(topology.members.get(one.communicator, ())) & topology.unlogged)
    unknown = f"; {name_ranks(silent)} log{'s' if len(silent) == 1 else ''} nothing" if silent else ""
    calls = number_of(one.sequence) - number_of(hang.sequence)
    behind = f"{calls} call{'' if calls == 1 else 's'} behind rank {one.rank}"
    return f": {behind}, which stands in {_call(one.operator, one.sequence)}{unknown}"


def _placed(ranks: Sequence[int], topology: Topology) -> str:
    """Name ranks, a single one with the host on which its stack is to be looked at."""
    host = topology.place(ranks[0]).host if len(ranks) == 1 else None
    return name_ranks(ranks) + (f" on {host}" if host else "")


def mismatch_text(mismatch: Mismatch, topology: Topology) -> str:
    """Return the evidence of a mismatch: the calls of each side where they first differ, and how many agree.

    "rank 2 called all_gather of 4.19 MB where ranks 0-1, 3 called all_reduce of 16.8 MB: call 652 on default_pg, the
    first that differs; the 651 compared before it agree".
    """
    most, *others = mismatch.sides
    where = f"call {mismatch.sequence}" if mismatch.sequence < UNNUMBERED else "a call"
    told = " and ".join(f"{_placed(side.ranks, topology)} called {_side(side)}" for side in others[:_SIDES_SHOWN])
    told += f" and {len(others) - _SIDES_SHOWN} other sides differ too" if len(others) > _SIDES_SHOWN else ""
    text = f"{told} where {name_ranks(most.ranks)} called {_side(most)}: {where} on "
    text += f"{_name(mismatch.communicator, topology)}, the first that differs"
    if mismatch.agreed:
        one = mismatch.agreed == 1
        text += "; the one before it agrees" if one else f"; the {mismatch.agreed} compared before it agree"
    if mismatch.extra is not None:
        rest = next(side for side in mismatch.sides if side != mismatch.extra)
        lack = "lacks" if len(rest.ranks) == 1 else "lack"
        made = f"{OPERATORS[mismatch.extra.operator]}, which {name_ranks(mismatch.extra.ranks)} made"
        text += f"; from there on {name_ranks(rest.ranks)} {lack} this {made}, and all calls after it are one apart"
    elif mismatch.is_swapped:
        text += "; the next call is the other one on each side: the two were made in another order"
    return text


def _side(side: Side) -> str:
    return OPERATORS[side.operator] + ("" if math.isnan(side.size_bytes) else f" of {size(side.size_bytes)}")


def _call(operator: int, sequence: int | None) -> str:
    """Name a call by its operator and, if it has one, its number."""
    if sequence is not None and sequence in UNTOLD_CALLS:
        return f"collective {number_of(sequence)}" if number_of(sequence) else "the next collective"
    is_numbered = sequence is not None and sequence < UNNUMBERED and operator not in P2P
    return f"{OPERATORS[operator]} {sequence}" if is_numbered else OPERATORS[operator]


def _named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))}{more}"


_SIDES_SHOWN: Final = 3
_CIRCLE_SHOWN: Final = 8
_MANY_PLACES: Final = 1.5  # times the largest piece: below, the other places of a cause add little to it


def how_often_text(seen: int, tried: int, first: int) -> str:
    """Say in how many slow iterations a cause was seen: of those that were looked into since its first one.

    They took longer than the job's noise explains; not all of them are δ-irregular.

    >>> how_often_text(20, 30, 60), how_often_text(3, 3, 60), how_often_text(1, 1, 60)
    ('in 20 of the 30 slow iterations since 60', 'in each of 3 slow iterations since 60', 'in iteration 60')
    """
    if seen == tried:
        return f"in iteration {first}" if tried == 1 else f"in each of {tried} slow iterations since {first}"
    return f"in {seen} of the {tried} slow iterations since {first}"


def evidence_text(piece: Piece, costs_ns: float, how_often: str, topology: Topology) -> str:
    """Return the evidence of a cause: the typical largest piece of the critical path, and how regularly it was seen.

    `costs_ns`: of all its pieces, in a typical iteration: a slow rank is late at each operator that waits for it.
    """
    text = f"{_what(piece, topology)} (usual {usual_duration(piece.usual_ns)}), {how_often}"
    if costs_ns > _MANY_PLACES * piece.excess_ns:
        text += f"; all such places of an iteration: {duration(costs_ns)} longer"
    return text


def in_turn_text(costs_ns: float, how_often: str) -> str:
    """Return the same where many ranks came last in turn; ``costs_ns`` is the typical cost for an iteration."""
    return f"{_IN_TURN}; it cost {duration(costs_ns)}, {how_often}"


def unlogged_text(piece: Piece, topology: Topology) -> str:
    """Name the ranks that log nothing for which a slow transfer may have waited; empty if all its ranks log."""
    if piece.lane.kind not in ("collective", "pair"):
        return ""
    ranks = sorted(topology.lane_set(piece.lane) & topology.unlogged)
    if not ranks:
        return ""
    if len(ranks) == 1:
        return f"; rank {ranks[0]} of them logs nothing, and may be what it waited for"
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"; ranks {shown} of them log nothing, and one of these may be what it waited for"


def recovery_text(recovers_ratio: float, elapsed_ns: float, usual_ns: float) -> str:
    """Return how long an iteration would have taken with the first suspect as usual.

    `recovers_ratio`: share of the iteration's excess that would come back, 0 to 1. `elapsed_ns`, `usual_ns`:
    how long it took, and how long one usually takes, ns.

    >>> recovery_text(0.95, 355e6, 235e6)
    'without it the iteration would have taken 241 ms'
    """
    without_ns = elapsed_ns - recovers_ratio * (elapsed_ns - usual_ns)
    return f"without it the iteration would have taken {duration(without_ns)}"


def _what(piece: Piece, topology: Topology) -> str:
    operator, name = OPERATORS[piece.operator], _name(piece.communicator, topology)
    elapsed = duration(piece.elapsed_ns)
    if piece.lane.kind == "nic":
        return f"an iteration took {elapsed} while one NIC alone moved at a steady rate below its usual peak"
    if piece.lane.kind == "work":
        return f"rank {piece.rank} took {elapsed} of its own before {operator} on {name}, and others waited for it"
    if piece.lane.kind == "pair":
        return f"rank {piece.lane.first} to rank {piece.lane.second} on {name} took {elapsed} after both had arrived"
    return f"{operator} on {name} took {elapsed} after its last rank had arrived"


def _name(communicator: int, topology: Topology) -> str:
    return topology.names[communicator] if communicator < len(topology.names) else f"communicator {communicator}"
