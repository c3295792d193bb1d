"""The reasons that a verdict carries: the path of waiting ranks, and the alternatives that were ruled out.

Nothing is judged a second time: the attributions are those of the verdict's own iterations, and the rules are the
judge's: `blame.slow_lanes` for slow lanes, `JOB.part` for a cause that shows in an iteration.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from irregulars.detectors.blame.observation import Observation, explained_ns
from irregulars.detectors.blame.slow_lanes import observe_lanes, stands_out, typical_excess
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.critical_path import Attribution
from irregulars.detectors.path.find_hang import Hang
from irregulars.detectors.verdicts.open_verdict import OpenVerdict
from irregulars.messages.reasons import MOST_STEPS, Considered, Reasons, Step
from irregulars.messages.records import OPERATORS

_RANKS_SHOWN: Final = 2  # of a link both ends; of a switch enough to see how it was compared


def reasons_of(verdict: OpenVerdict, topology: Topology) -> Reasons | None:
    """Return the reasons of a verdict as it is now; None where none of its iterations was looked into."""
    kept = [one for one in verdict.kept if one.attribution is not None]
    if not kept:
        return None
    middle_ns = median(one.elapsed_ns for one in kept)
    # The iteration of median length, as a typical one; of equals the first.
    shown = min(kept, key=lambda one: (abs(one.elapsed_ns - middle_ns), one.iteration))
    found = reasons_of_iteration(shown, verdict.cause.lanes, topology, tuple(_considered(verdict, kept, topology)))
    # A whole stage is held against the other stages: a path by peers inside of it leads elsewhere
    return replace(found, path=()) if verdict.first_device is not None and not verdict.cause.lanes else found


def reasons_of_iteration(
    shown: Observation, accused: Collection[Lane], topology: Topology, considered: tuple[Considered, ...] = ()
) -> Reasons:
    """Return the reasons that one iteration shows; `accused`: lanes of the accused device."""
    attribution = shown.attribution
    is_by_peers = attribution is not None and attribution.is_by_peers
    return Reasons(
        iteration=shown.iteration,
        elapsed_ns=_known(shown.elapsed_ns),
        usual_ns=_known(shown.reference_ns),
        against="peers" if is_by_peers else "past",
        path=() if attribution is None else steps_of(attribution, accused, topology),
        considered=considered,
    )


def reasons_of_hang(hang: Hang, last: Observation, topology: Topology) -> Reasons:
    """Return the reasons of a verdict on a hang: the ranks that others wait for, where, and how many wait."""
    what = "transfer" if hang.has_arrived else "absence"
    held_up = tuple(
        Step(what, rank, OPERATORS[hang.operator], _name(hang.communicator, topology), None, None,
             is_accused=True, waiting=hang.waiting)
        for rank in (() if hang.is_program_error else hang.accused[:MOST_STEPS])
    )  # fmt: skip
    return Reasons(last.iteration, None, _known(last.reference_ns), "past", path=held_up)


def steps_of(attribution: Attribution, accused: Collection[Lane], topology: Topology) -> tuple[Step, ...]:
    """Return the costliest parts of an iteration's critical path, by cost, with the accused ones last."""
    pieces = [piece for piece in attribution.pieces.values() if piece.excess_ns > 0 and piece.lane.kind != "nic"]
    pieces.sort(key=lambda piece: (piece.lane in accused, piece.excess_ns))
    steps = []
    for piece in pieces[-MOST_STEPS:]:
        is_work, has_waits = piece.lane.kind == "work", piece.waiting > 0
        rank, peer = (piece.lane.first, piece.lane.second) if piece.lane.kind == "pair" else (piece.rank, None)
        steps.append(Step(
            "work" if is_work else "transfer", rank, OPERATORS[piece.operator], _name(piece.communicator, topology),
            _known(piece.elapsed_ns), _known(piece.usual_ns), piece.lane in accused, peer=peer, waiting=piece.waiting,
            waited_rank=piece.waited_rank if has_waits else None, waited_ns=piece.waited_ns if has_waits else None,
        ))  # fmt: skip
    return tuple(steps)


# --- alternatives ---------------------------------------------------------------------------------------------------


def _considered(verdict: OpenVerdict, kept: Sequence[Observation], topology: Topology) -> Iterator[Considered]:
    device = verdict.first_device
    attributions = [one.attribution for one in kept if one.attribution is not None]
    if device is None or not device.ranks:
        return
    # A cause that explains less of an iteration than this does not show in it, by the judge's own rule.
    least_ns = JOB.part * median(explained_ns(verdict.cause, one) for one in attributions)
    if device.traits.is_worker:
        yield _transfers(device.ranks[0], attributions, least_ns, topology)
    else:
        for rank in device.ranks[:_RANKS_SHOWN]:
            yield _own_work(rank, attributions, least_ns)
        yield _ways(verdict, device, attributions, topology)
    if not attributions[-1].is_by_peers:  # against peers, an excess that all ranks share is not seen
        excess_ns = median(one.path_excess_ns.get(EVERYBODY, 0.0) for one in attributions)
        yield Considered("everybody", excess_ns < least_ns, excess_ns=round(excess_ns, 1))


def _own_work(rank: int, attributions: Sequence[Attribution], least_ns: float) -> Considered:
    known = [one.work_excess_ns[rank] for one in attributions if rank in one.work_excess_ns]
    if not known:
        return Considered("own_work", None, rank)
    excess_ns = median(known)
    return Considered("own_work", excess_ns < least_ns, rank, _known(excess_ns))


def _transfers(rank: int, attributions: Sequence[Attribution], least_ns: float, topology: Topology) -> Considered:
    """Consider the NIC of a rank that works long: its transfers would be slow as well."""
    typical = {lane: typical_excess(lane, attributions) for lane in _lanes_of(rank, attributions, topology)}
    known = {lane: one for lane, one in typical.items() if one is not None}
    if not known:
        return Considered("its_transfers", None, rank)
    slow = sum(one.excess_ns >= least_ns and stands_out(lane, attributions) for lane, one in sorted(known.items()))
    worst = max(known.values(), key=lambda one: one.excess_ns)
    return Considered(
        "its_transfers", not slow, rank, _known(worst.excess_ns), _known(worst.usual_ns), slow, len(known)
    )


def _ways(
    verdict: OpenVerdict, device: Device, attributions: Sequence[Attribution], topology: Topology
) -> Considered:
    """Consider a whole NIC in place of a link, or a single link in place of a NIC or switch."""
    what, rank = "whole_nic" if device.traits.is_way else "one_link", device.ranks[0]

    def cost_ns(lane: Lane) -> float:
        return median(one.path_excess_ns.get(lane, 0.0) for one in attributions)

    accused = max(sorted(verdict.cause.lanes), key=cost_ns, default=None)
    if accused is None:
        return Considered(what, None, rank)
    seen = observe_lanes(accused, attributions)
    own = {lane: seen[lane] for lane in _lanes_of(rank, attributions, topology) if lane in seen}
    slow = [lane for lane, times_slow in own.items() if times_slow]
    if len(own) < 2:  # one way alone can't be told from its carrier
        return Considered(what, None, rank, slow=len(slow), known=len(own))
    is_wide = len(slow) > 1 or any(lane.kind != "pair" for lane in slow)
    return Considered(what, len(slow) < len(own) if device.traits.is_way else is_wide, rank,
                      slow=len(slow), known=len(own))  # fmt: skip


def _lanes_of(rank: int, attributions: Sequence[Attribution], topology: Topology) -> list[Lane]:
    lanes = {lane for one in attributions for lane in one.lanes}
    return sorted(lane for lane in lanes if lane.kind in ("collective", "pair") and rank in topology.lane_set(lane))


def _name(communicator: int, topology: Topology) -> str | None:
    return topology.names[communicator] if 0 <= communicator < len(topology.names) else None


def _known(value: float) -> float | None:
    return round(float(value), 1) if math.isfinite(value) else None
