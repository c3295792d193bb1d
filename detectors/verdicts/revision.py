"""How a verdict is put: one revision of it, with its suspects, their places and what it rests on."""

from __future__ import annotations

import math
from statistics import median
from typing import Final

from irregulars.detectors.blame.likelihoods import calibrated
from irregulars.detectors.blame.observation import Observation, explained_ns
from irregulars.detectors.hang.find_hang import Hang
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.steadiness import WHOLE, steady_text
from irregulars.detectors.path.critical_path import Piece
from irregulars.detectors.verdicts.open_verdict import OpenVerdict
from irregulars.detectors.verdicts.reasons import reasons_of, reasons_of_hang
from irregulars.detectors.verdicts.text import (
    evidence_text,
    hang_text,
    in_turn_text,
    recovery_text,
    standing_text,
    unlogged_text,
)
from irregulars.detectors.verdicts.thresholds import VERDICTS
from irregulars.messages.judgements import Suspect, Verdict


def revision_of(
    verdict: OpenVerdict, event: str, job: str, attempt: int, topology: Topology, close_reason: str | None = None
) -> Verdict:
    """Put a verdict into words and numbers, as it is now.

    Parameters
    ----------
    event, close_reason
        As `messages.judgements.Verdict` says.
    """
    cause, ratio = verdict.cause, verdict.recovers_ratio
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
        suspects=tuple(suspect_of(device, p, topology) for device, p in calibrated(cause.suspects)),
        evidence=_text(verdict, topology) + _recovery_text(verdict, ratio),
        attempt=attempt,
        world_size=topology.world_size,
        time_ns=verdict.time_ns,
        close_reason=close_reason,
        event=event,
        severity=verdict.severity,
        recovers_ratio=None if ratio is None else round(ratio, 3),
        lasted_s=round(verdict.lasted_ns / 1e9, 6),
        explanation=reasons_of(verdict, topology),
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
    suspects = (suspect_of(Device("gpu", hang.ranks), _hang_probability(hang), topology),) if hang.ranks else ()
    return Verdict(
        verdict_id=verdict_id,
        revision=1,
        state="open" if reason == "silent" else "closed",
        job=job,
        kind="hang",
        iterations=(last.iteration, last.iteration + 1),
        delta=round(1 + lost_ns / last.reference_ns, 3) if lost_ns and last.reference_ns else math.nan,
        lost_s=round(lost_ns / 1e9, 6),
        communicator=topology.names[hang.communicator],
        suspects=suspects,
        evidence=hang_text(hang, topology),
        attempt=attempt,
        world_size=topology.world_size,
        time_ns=last.time_ns,
        close_reason=None if reason == "silent" else reason,
        event="opened",
        severity="page",  # whatever was lost so far: nothing moves until somebody acts
        explanation=reasons_of_hang(hang, last, topology),
    )


def _hang_probability(hang: Hang) -> float:
    if hang.silent:
        return VERDICTS.silent_hang_probability
    return VERDICTS.shared_hang_probability if hang.is_shared else VERDICTS.hang_probability


SUREST: Final = 0.99  # no suspect is said to be more probable: what was not thought of is in none of the likelihoods


def suspect_of(device: Device, probability: float, topology: Topology) -> Suspect:
    """Put a suspect into the fields of a verdict, with the place of its first rank."""
    rank = device.ranks[0]
    place = topology.place(rank)
    return Suspect(
        device=device.kind,
        rank=rank,
        ranks=device.ranks,
        probability=round(min(probability, SUREST), 4),
        peer=device.ranks[1] if device.kind == "link" else None,
        host=place.host,
        gpu=None if device.kind == "host" else place.gpu,
        nic=None if device.kind == "host" else place.nic,
        switch=place.switch,
    )


def _text(verdict: OpenVerdict, topology: Topology) -> str:
    standing = verdict.standing
    if standing is None and not verdict.cause.lanes:
        return in_turn_text(_typical_cost_ns(verdict), verdict.seen, verdict.tried)
    if standing is None:
        piece = _typical_piece(verdict)
        text = evidence_text(piece, verdict.seen, verdict.tried, topology)
        return text + unlogged_text(piece, topology) + _rates_text(verdict, piece)
    piece = _typical_piece(verdict) if verdict.cause.lanes else _piece_of_stage(verdict, standing.costs_ns)
    text = standing_text(verdict.cause.kind, piece, standing.costs_ns, verdict.seen, topology)
    return text + unlogged_text(piece, topology) + _rates_text(verdict, piece)


def _recovery_text(verdict: OpenVerdict, recovers_ratio: float | None) -> str:
    """Add how long the typical iteration would have taken without the first suspect, where that is known."""
    if recovers_ratio is None:
        return ""
    elapsed_ns = median(one.elapsed_ns for one in verdict.kept)
    return f"; {recovery_text(recovers_ratio, elapsed_ns, median(one.reference_ns for one in verdict.kept))}"


def _rates_text(verdict: OpenVerdict, piece: Piece) -> str:
    """Add how the accused NIC moved, where that is known."""
    device = verdict.first_device
    if device is None or device.kind not in ("nic", "link"):
        return ""
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
    largest.sort(key=lambda piece: piece.excess_ns)
    return largest[len(largest) // 2]


def _typical_cost_ns(verdict: OpenVerdict) -> float:
    """Return what the cause cost the median iteration, ns."""
    return median(explained_ns(verdict.cause, o.attribution) for o in verdict.kept if o.attribution is not None)


def _piece_of_stage(verdict: OpenVerdict, costs_ns: float) -> Piece:
    """Make up a piece that stands for a stage, or for nobody: the path need not hold one that shows its excess."""
    device = verdict.first_device
    rank = -1 if device is None else device.ranks[0]
    return Piece(Lane("work", rank), rank, 0, 0, costs_ns, 0.0)
