"""The sentence that says what a verdict rests on."""

from __future__ import annotations

from typing import Final

from irregulars.detectors.hang.find_hang import Hang
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.path.critical_path import Piece
from irregulars.messages.records import OPERATORS
from irregulars.words import duration

_IN_TURN: Final = "in each iteration another rank works longer than its peers, as with uneven data"


def standing_text(kind: str, piece: Piece, costs_ns: float, seen: int, topology: Topology) -> str:
    """Say what was seen of a fault without a healthy past, whose piece's usual time is its peers'.

    Parameters
    ----------
    kind
        Of the verdict.
    costs_ns
        What it typically costs an iteration.
    seen
        Iterations in which it was seen.
    """
    cost = f"it costs {duration(costs_ns)} of each iteration, seen in {seen}"
    if kind == "slow_stage":
        return f"all ranks of the stage of rank {piece.rank} work longer than those of the other stages; {cost}"
    if kind == "imbalance":
        return f"{_IN_TURN}; {cost}"
    return f"{_what(piece, topology)} (its peers {duration(piece.usual_ns)}); {cost}"


def hang_text(hang: Hang, topology: Topology) -> str:
    """Say who waits where, and for whom."""
    where = f"{OPERATORS[hang.operator]} on {_name(hang.communicator, topology)}"
    who = "1 rank waits" if hang.waiting == 1 else f"{hang.waiting} ranks wait"
    if not hang.ranks:
        return f"{who} in operators that never ended; {hang.silent} ranks that belong to {where} log nothing"
    ranks = f"rank {hang.ranks[0]}" if len(hang.ranks) == 1 else f"ranks {', '.join(map(str, hang.ranks[:8]))}"
    ranks += f" and {len(hang.ranks) - 8} more" if len(hang.ranks) > 8 else ""
    if hang.silent:
        belong = "belongs" if hang.silent == 1 else "belong"
        return f"{who} in operators that never ended; {ranks} {belong} to {where}, and nothing was logged there"
    if hang.is_shared:
        return f"{ranks} entered {where}, and none of them came out; nobody else is missing"
    if hang.has_arrived:
        return f"{where} ended on other ranks and never on {ranks}"
    return f"{who} in operators that never ended; {ranks} never arrived in {where}"


def evidence_text(piece: Piece, seen: int, tried: int, topology: Topology) -> str:
    """Say what the typical piece of the critical path shows, and how regularly.

    Parameters
    ----------
    piece
        The piece.
    seen, tried
        Iterations in which the cause was seen, and all slow ones meanwhile: those that were looked into since they
        took longer than the job's noise explains. Not all of them are δ-irregular.
    """
    return f"{_what(piece, topology)} (usual {duration(piece.usual_ns)}), in {seen} of {tried} slow iterations"


def in_turn_text(costs_ns: float, seen: int, tried: int) -> str:
    """Say the same where many ranks came last in turn; ``costs_ns`` is what that typically cost an iteration."""
    return f"{_IN_TURN}; it cost {duration(costs_ns)}, in {seen} of {tried} slow iterations"


def unlogged_text(piece: Piece, topology: Topology) -> str:
    """Say which ranks that log nothing a slow transfer may have waited for; empty if all its ranks are logged."""
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
    """Say how long an iteration would have taken with the first suspect as usual.

    Parameters
    ----------
    recovers_ratio
        Share of what the iteration took longer that would come back, 0 to 1.
    elapsed_ns, usual_ns
        How long it took, and how long one usually takes, ns.

    Examples
    --------
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
