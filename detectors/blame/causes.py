"""From the attributions of some irregular iterations to the devices that may have caused them.

Time on the critical path was either a rank's own work, which accuses that rank (or its host, when the host's other
ranks are as late), or transfer. For slow transfers several devices are possible; each of them would slow down certain
lanes and leave others alone, and what was seen tells them apart: Bayes' rule over the lanes that touch a candidate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from irregulars.detectors.blame.by_bandwidth import steady_nic
from irregulars.detectors.blame.starved_ranks import are_in_step, starved_ranks
from irregulars.detectors.blame.transfer_causes import FABRIC, UNSEEN, is_carried, observe_lanes, rank_devices
from irregulars.detectors.blame.transfer_causes import NOBODY as NO_DEVICE
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.critical_path import Attribution

MATCH_SHARE: Final = 0.25
"""A cause is seen in an iteration if it explains this share of the iteration's excess."""

MIN_PROBABILITY: Final = 0.5
"""Nobody is accused below this probability: a wrong accusation costs more than none."""

_MIN_TOTAL_SHARE: Final = 0.2
_MAX_CAUSES: Final = 3
_MOST_TYPICAL: Final = 2.0
_ANY: Final = Device("communicator", ())
_MIN_PROBABILITY: Final = 0.02  # alternatives below are not worth a line
_MIN_NAMED: Final = 0.25  # below, no member of a slow communicator stands out
_LATE_SHARE: Final = 0.5  # a rank is as late as another one if its excess is this share of the other's
_STILL_LATE_SHARE: Final = 0.25  # ... and half of it, once its host or stage is accused: noise moves it to and fro
_MOST: Final = 0.6  # a host or stage is blamed for its ranks if it is so nearly the set of the late ones
_TOGETHER: Final = 0.5  # ... and in the typical iteration
_TOGETHER_SHARE: Final = 0.25  # in one iteration a rank is late with this share of the device's latest rank's excess
_MIN_LIKENESS: Final = 0.2  # nobody is, if so few of the late ones are its: what made the others late is not it
_EVERYBODY: Final = 0.7  # so many of all ranks, and it is the job that changed
_MANY: Final = 16  # ranks of which the quarter that is late least tells what all are
_MOST_COMMON: Final = 0.7  # of what the latest rank is late: if all ranks are late by more, it is not its doing
_TURNS: Final = 4  # iterations in which ranks of one host take turns in being last, at least
_TURNS_SHARE: Final = 0.8  # of what paths lose to ranks is theirs
_TURN_SHARE: Final = 0.05  # of that has a rank that takes part
_MOST_TURNS: Final = 0.6  # of that at most is one rank's
_TAKING: Final = 0.75  # of the host's ranks take part at least
_STARVED_SHARE: Final = 0.05  # of what transfers lost: own work that lost less may be slow since they are
_P_STARVED: Final = 0.9  # of ranks whose work is beyond all noise late when, and only when, their transfers are slow
_NOBODY: Final = ""
_KINDS: Final = {"nic": "slow_nic", "link": "slow_link", "switch": "slow_communicator"}


@dataclass(frozen=True, slots=True)
class Cause:
    """What may be behind some irregular iterations.

    Parameters
    ----------
    kind
        A kind of verdict.
    suspects
        Devices with the probability of each, best first; alternatives.
    lanes
        Lanes whose excess the first suspect explains.
    communicator
        The job's code of the communicator that the excess was seen on; None for own work.
    explained_ns
        For each iteration in which the cause was seen the excess that it explains.
    """

    kind: str
    suspects: tuple[tuple[Device, float], ...]
    lanes: frozenset[Lane]
    communicator: int | None
    explained_ns: Mapping[int, float]


def find_causes(
    attributions: Sequence[Attribution], topology: Topology, accused: Device | None = None
) -> list[Cause]:
    """Find what explains the excess of irregular iterations, the largest first.

    What one cause explains is taken away before the next is looked for, so that two faults at once are two causes.
    ``accused``: what a verdict accuses so far. A host or stage stays accused while its ranks are nearly as late.
    """
    left = [{lane: ns for lane, ns in a.path_excess_ns.items() if ns > 0} for a in attributions]
    totals = [sum(lanes.values()) for lanes in left]
    weights = _iteration_weights(totals)
    causes = []
    for _ in range(_MAX_CAUSES):
        lane = _largest(left, weights)
        if lane is None:
            break
        kind, suspects, lanes = _cause_of(lane, attributions, left, topology, accused)
        explained = [sum(ns for one, ns in of.items() if one in lanes) for of in left]
        weighted = sum(ns * weight for ns, weight in zip(explained, weights, strict=True))
        if weighted < _MIN_TOTAL_SHARE * sum(ns * weight for ns, weight in zip(totals, weights, strict=True)):
            break
        seen = {
            a.iteration: ns
            for a, ns, total, weight in zip(attributions, explained, totals, weights, strict=True)
            if ns >= MATCH_SHARE * total * weight > 0
        }
        if seen and kind != _NOBODY:
            communicator = _communicator(lane, attributions)
            causes.append(Cause(kind, _with_confidence(suspects, seen, attributions), lanes, communicator, seen))
        left = [{one: ns for one, ns in of.items() if one not in lanes} for of in left]
        attributions = [_without(a, lanes) for a in attributions]
    return causes


def _without(attribution: Attribution, lanes: frozenset[Lane]) -> Attribution:
    """Leave out transfers that a cause explains: that they are slow says nothing of what else is."""
    kept = {lane: excess for lane, excess in attribution.lanes.items() if lane not in lanes}
    return attribution if len(kept) == len(attribution.lanes) else replace(attribution, lanes=kept)


def is_sure(cause: Cause) -> bool:
    """Whether a cause may be said aloud: its suspects together are more probable than that it is none of them.

    A communicator without a member that stands out accuses nobody, and uneven data neither.
    """
    if cause.kind in ("slow_communicator", "imbalance") and not cause.suspects:
        return True
    return sum(probability for _, probability in cause.suspects) >= MIN_PROBABILITY


def slow_transfers(cause: Cause, attribution: Attribution, topology: Topology) -> float:
    """Return over how many transfers of one iteration the excess of what a cause carries is spread.

    Infinite for work. The participation number (Σx)² / Σx² of the excesses, over lanes that were slow: near 1 where
    a single transfer hung.
    """
    if all(lane.kind == "work" for lane in cause.lanes):
        return math.inf
    accused = max(sorted(cause.lanes), key=lambda lane: attribution.path_excess_ns.get(lane, 0.0))
    lanes = {accused}
    if cause.suspects:
        seen, device = observe_lanes(accused, [attribution]), cause.suspects[0][0]
        lanes |= {one for one, is_slow in seen.items() if is_slow and is_carried(device, one, accused, topology)}
    found = [attribution.lanes[lane] for lane in lanes if lane in attribution.lanes]
    squares = sum(max(lane.excess_ns, 0.0) ** 2 / lane.slow_transfers for lane in found)
    return sum(max(lane.excess_ns, 0.0) for lane in found) ** 2 / squares if squares else 1.0


def _iteration_weights(totals: Sequence[float]) -> list[float]:
    """Let no iteration count for more than `_MOST_TYPICAL` typical ones: what hung once for long does not recur."""
    limit = _MOST_TYPICAL * median(totals) if totals else 0.0
    return [min(1.0, limit / total) if total > 0 else 0.0 for total in totals]


def _largest(left: Sequence[Mapping[Lane, float]], weights: Sequence[float]) -> Lane | None:
    sums: dict[Lane, float] = {}
    for lanes, weight in zip(left, weights, strict=True):
        for lane, ns in lanes.items():
            sums[lane] = sums.get(lane, 0.0) + weight * ns
    return max(sorted(sums), key=lambda lane: sums[lane], default=None)


def _communicator(lane: Lane, attributions: Iterable[Attribution]) -> int | None:
    if lane.kind in ("work", "nic"):
        return None
    return next((a.pieces[lane].communicator for a in attributions if lane in a.pieces), None)


Suspects = tuple[tuple[Device, float], ...]
Found = tuple[str, Suspects, frozenset[Lane]]


def _with_confidence(suspects: Suspects, seen: Mapping[int, float], attributions: Sequence[Attribution]) -> Suspects:
    """Scale by how regularly the cause was seen between its first and its last iteration."""
    first, last = min(seen), max(seen)
    tried = sum(first <= a.iteration <= last for a in attributions)
    factor = (len(seen) + 0.5) / (tried + 0.5)
    return tuple((device, probability * factor) for device, probability in suspects)


def _cause_of(
    lane: Lane, attributions: Sequence[Attribution], left: Sequence[Mapping[Lane, float]], topology: Topology,
    accused: Device | None,
) -> Found:  # fmt: skip
    """Say what may be behind the excess of a lane."""
    if lane.kind == "work":
        return _work_cause(lane, attributions, left, topology, accused)
    if lane.kind == "nic":
        return _nic_cause(lane, attributions, left, topology)
    found = _transfer_cause(lane, attributions, left, topology)
    return _or_starved(found, lane, attributions, left, topology)


# --- a rank's own work ----------------------------------------------------------------------------------------------


def _work_cause(
    lane: Lane, attributions: Sequence[Attribution], left: Sequence[Mapping[Lane, float]], topology: Topology,
    accused: Device | None,
) -> Found:  # fmt: skip
    if lane == EVERYBODY:
        return _NOBODY, (), frozenset([lane])
    host = topology.host(lane.first)
    is_part = host is not None and 1 < len(host.ranks) < topology.world_size
    if host is not None and is_part and _take_turns(host, left) and _are_all_late(host, attributions):
        lanes = frozenset(Lane("work", rank) for rank in host.ranks)
        return "slow_rank", ((host, _share(lanes, attributions, left)),), lanes
    late = _late_as(lane.first, attributions)
    if len(late) >= _EVERYBODY * _known_ranks(attributions) and len(late) > 1:
        return _NOBODY, (), frozenset(one for of in left for one in of if one.kind == "work")
    device = _shared_by(lane.first, late, attributions, topology)
    if accused is not None and device.kind == "gpu":
        still = _late_as(lane.first, attributions, _STILL_LATE_SHARE)
        if _shared_by(lane.first, still, attributions, topology) == accused:
            device = accused
    if len(late.intersection(device.ranks)) < _MIN_LIKENESS * len(late):
        return _NOBODY, (), frozenset(Lane("work", rank) for rank in late)
    lanes = frozenset(Lane("work", rank) for rank in device.ranks)
    kind = "slow_stage" if device.kind == "stage" else "slow_rank"
    return kind, ((device, _share(lanes, attributions, left)),), lanes


def _take_turns(host: Device, left: Sequence[Mapping[Lane, float]]) -> bool:
    """Whether paths lose their time to the ranks of one host, now to this one and now to that.

    Where operators overlap, how long a rank works that is not the last is not seen: it waits for the one that is.
    """
    works = [{lane.first: ns for lane, ns in of.items() if lane.kind == "work" and lane != EVERYBODY} for of in left]
    works = [work for work in works if work]
    by_rank = {rank: sum(work.get(rank, 0.0) for work in works) for rank in host.ranks}
    own_ns, all_ns = sum(by_rank.values()), sum(sum(work.values()) for work in works)
    taking = sum(ns >= _TURN_SHARE * own_ns for ns in by_rank.values())
    return (
        len(works) >= _TURNS and own_ns >= _TURNS_SHARE * all_ns > 0
        and max(by_rank.values()) <= _MOST_TURNS * own_ns and taking >= _TAKING * len(host.ranks) > 1
    )  # fmt: skip


def _are_all_late(host: Device, attributions: Sequence[Attribution]) -> bool:
    """Whether in the typical iteration nearly all ranks of a host work longer, whoever else seems to."""
    shares = []
    for attribution in attributions:
        late_ns = [attribution.work_excess_ns.get(rank, 0.0) for rank in host.ranks]
        if max(late_ns) > 0:
            shares.append(sum(ns >= _LATE_SHARE * max(late_ns) for ns in late_ns) / len(late_ns))
    return bool(shares) and median(shares) >= _TAKING


def _late_as(rank: int, attributions: Sequence[Attribution], share: float = _LATE_SHARE) -> set[int]:
    """Ranks whose work, on the path or not, takes about as much longer than usual as this one's."""
    late_ns: dict[int, float] = {}
    for attribution in attributions:
        for one, ns in attribution.work_excess_ns.items():
            late_ns[one] = late_ns.get(one, 0.0) + ns
    worst_ns = late_ns.get(rank, 0.0)
    return {rank} | _as_late_as(worst_ns, late_ns, share)


def _as_late_as(worst_ns: float, late_ns: Mapping[int, float], share: float) -> set[int]:
    """Ranks that are late by this share of `worst_ns`, above what all ranks are.

    Where operators overlap, time in which a rank waits for a late one looks like its work: all ranks seem to work
    longer, and the late one still stands out. Where it does not, it is everybody who works longer.
    """
    levels = sorted(late_ns.values())
    common_ns = max(levels[len(levels) // 4], 0.0) if len(levels) >= _MANY else 0.0
    common_ns = common_ns if common_ns < _MOST_COMMON * worst_ns else 0.0
    return {rank for rank, ns in late_ns.items() if ns - common_ns >= share * (worst_ns - common_ns) > 0}


def _known_ranks(attributions: Sequence[Attribution]) -> int:
    return len({rank for attribution in attributions for rank in attribution.work_excess_ns})


def _shared_by(rank: int, late: set[int], attributions: Sequence[Attribution], topology: Topology) -> Device:
    """Return what the late ranks have in common: their host, or their pipeline stage; else the one rank.

    The device whose ranks and the late ones are most nearly the same set (Jaccard's index) is it, if most are, over
    all iterations and in the typical one: ranks of one device are late together. Uneven data make other ranks late in
    each iteration, and summed up these may be those of one host by chance.
    """
    found, nearest = Device("gpu", (rank,)), max(_MOST, 1 / len(late))
    for device in (topology.host(rank), topology.stage(rank)):
        if device is None or not 1 < len(device.ranks) < topology.world_size:
            continue
        likeness = _likeness(late, device)
        if likeness > nearest and is_late_together(device, attributions):
            found, nearest = device, likeness
    return found


def _likeness(late: set[int], device: Device) -> float:
    return len(late.intersection(device.ranks)) / len(late.union(device.ranks))


def is_late_together(device: Device, attributions: Sequence[Attribution]) -> bool:
    """Whether in the typical iteration in which some rank of a device is late its other ranks are, and few others."""
    found = []
    for attribution in attributions:
        late_ns = attribution.work_excess_ns
        worst_ns = max(late_ns.get(rank, 0.0) for rank in device.ranks)
        if worst_ns > 0:
            found.append(_likeness(_as_late_as(worst_ns, late_ns, _TOGETHER_SHARE), device))
    return bool(found) and median(found) > _TOGETHER  # of two ranks that take turns it is half


def _share(
    lanes: frozenset[Lane], attributions: Sequence[Attribution], left: Sequence[Mapping[Lane, float]]
) -> float:
    """Which share of the excess, in iterations where these lanes have any, is theirs."""
    own = [sum(ns for lane, ns in of.items() if lane in lanes) for of in left]
    totals = [_longer_ns(a, ns, sum(of.values())) for a, ns, of in zip(attributions, own, left, strict=True)]
    total = sum(one for one, ns in zip(totals, own, strict=True) if ns > 0)
    return sum(own) / total if total > 0 else 0.0


def _longer_ns(attribution: Attribution, own_ns: float, parts_ns: float) -> float:
    """What an iteration took longer, of which a cause explains `own_ns`: at most what its path's parts add up to."""
    if attribution.excess_ns is None:
        return parts_ns
    return max(own_ns, min(parts_ns, attribution.excess_ns))


# --- transfers ------------------------------------------------------------------------------------------------------


def _transfer_cause(
    lane: Lane, attributions: Sequence[Attribution], left: Sequence[Mapping[Lane, float]], topology: Topology
) -> Found:
    ranked, slow = rank_devices(lane, attributions, topology)
    device, probability = next(pair for pair in [*ranked, (_ANY, 1.0)] if pair[0] != NO_DEVICE)
    on_path = {one for lanes in left for one in lanes if one.kind != "work"}
    if device.kind in ("communicator", UNSEEN) or (probability < _MIN_NAMED and lane.kind == "collective"):
        return "slow_communicator", (), _shared_lanes(lane, ranked, on_path & slow, topology) | {lane}
    # What stays inside a host mostly passes by its NIC: it belongs to the cause where it was slow.
    may_be = (one for one in on_path if one in slow or topology.crosses_network(one))
    lanes = frozenset(one for one in may_be if is_carried(device, one, lane, topology)) | {lane}
    if device.kind == FABRIC:
        return "slow_communicator", (), lanes
    suspects = tuple((d, p) for d, p in ranked if d.kind in _KINDS and p >= _MIN_PROBABILITY)[:4]
    return _KINDS[device.kind], suspects, lanes


def _shared_lanes(
    lane: Lane, ranked: Iterable[tuple[Device, float]], slow: Iterable[Lane], topology: Topology
) -> frozenset[Lane]:
    """Return the slow lanes that belong to a cause whose device stays unknown.

    Where nobody can say which of some switches is slow, each of them carries the same lanes: it is one cause still.
    """

    def chance(one: Lane) -> float:
        return sum(p for device, p in ranked if is_carried(device, one, lane, topology))

    return frozenset(one for one in slow if chance(one) > MIN_PROBABILITY)


def _or_starved(
    found: Found, lane: Lane, attributions: Sequence[Attribution], left: Sequence[Mapping[Lane, float]],
    topology: Topology,
) -> Found:  # fmt: skip
    """Blame ranks rather than their NIC or their communicator where their own work is slow as well.

    See `detectors.blame.starved_ranks`. Of a communicator in which no device stands out it may be any member; a NIC
    or a switch must carry most of its ranks.
    """
    kind, suspects, lanes = found
    device = suspects[0][0] if suspects else None
    if kind not in ("slow_nic", "slow_communicator") or (device is None and lane.kind != "collective"):
        return found
    lost = [sum(ns for one, ns in of.items() if one in lanes) for of in left]
    seen = [a for a, ns in zip(attributions, lost, strict=True) if ns > 0]
    work_ns = [a.work_excess_ns for a in seen]
    late = starved_ranks(work_ns, _STARVED_SHARE * median([ns for ns in lost if ns > 0] or [0.0]))
    starved = _owner(late, seen, topology)
    ranks = set(topology.lane_ranks(lane) if device is None else device.ranks)
    if starved is None or 2 * len(ranks.intersection(starved.ranks)) <= (0 if device is None else len(ranks)):
        return found
    if are_in_step(work_ns, late):
        return found
    works = frozenset(Lane("work", rank) for rank in starved.ranks)
    return "slow_rank", ((starved, max([_P_STARVED, *(p for _, p in suspects[:1])])),), works | lanes


def _owner(late: set[int], attributions: Sequence[Attribution], topology: Topology) -> Device | None:
    """Return the one rank, or the host, that these ranks are; None where they are something else."""
    if not late:
        return None
    device = _shared_by(min(late), late, attributions, topology)
    return device if device.kind in ("gpu", "host") and _likeness(late, device) > _MOST else None


def _nic_cause(
    lane: Lane, attributions: Sequence[Attribution], left: Sequence[Mapping[Lane, float]], topology: Topology
) -> Found:
    """Accuse the NIC that bandwidth alone shows (`detectors.blame.by_bandwidth`): there are no transfers to go by."""
    return "slow_nic", (steady_nic(lane, attributions, topology),), frozenset([lane])
