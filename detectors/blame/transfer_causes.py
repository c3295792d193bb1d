"""Which device makes transfers slow: NIC, link, switch, or a communicator as such.

Each of them would slow down certain lanes and leave others alone, and what was seen tells them apart: Bayes' rule
over the lanes that touch a candidate. A lane counts by how surely it differs from what is usual, over all iterations
that are looked at, and not by what it costs: a NIC at a ninth of its speed shows in each of its sends, also where
they are a hundredth of the iteration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MEDIAN_ERROR
from irregulars.detectors.blame.nic_ends import passes_nics, telling_ends
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.measured_time import LEAST_RESOLUTION_NS
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.peak_caps import End, log_odds
from irregulars.detectors.path.critical_path import Attribution


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a lane counts as slow, as normal, or says nothing.

    Parameters
    ----------
    sigmas
        A slow lane's excess stands this many standard errors out: with thousands of lanes and noise of heavy tails, 4
        keeps chance below one lane in a job.
    least_ratio
        ... and is at least this share of its usual time: below, drift of a job's own traffic looks the same.
    like_accused
        ... and this share of what the accused lane's slow-down predicts for it. What slows by less met the fault's
        traffic in the fabric; it did not cross the device.
    telling
        A lane says something by being normal if what is predicted for it is this many times what would be noticed:
        one standard error more, at which five in six would be noticed.
    queue_ns
        Excess of each transfer, ns, above which a lane is slow for which nothing that could be noticed is predicted:
        a small message waits as long behind whatever traffic a busy port carries, and a slow communicator's traffic
        keeps the port busy for longer.
    model_error
        Standard error of a lane's usual time besides its noise, as a share of it: ten iterations are few.
    """

    sigmas: float = 4.0
    least_ratio: float = 0.1
    like_accused: float = 0.15
    telling: float = 1.25
    queue_ns: float = 100_000.0
    model_error: float = 0.03


@dataclass(frozen=True, slots=True)
class Chances:
    """Chances that a lane is seen slow, by what a hypothesis says of it.

    Not 0 or 1, since a ring may pass by a slow link, so that even a lane that crosses the device can look normal.

    Parameters
    ----------
    accused
        The lane that a hypothesis is about.
    pair_crosses, group_crosses
        A pair or a group whose only member on a host is the slow NIC's.
    group_shares
        A group with several members on the NIC's host: its ring may enter and leave by other NICs.
    inside
        A lane inside a host, for a NIC or switch of that host: gloo and NCCL without P2P send it over the NIC, NVLink
        does not.
    group_has_link
        A larger group that has both ends of a slow link: they may be neighbours in its ring.
    by_chance, nobody
        A lane that the device does not touch; any lane, if no device is to blame.
    unlogged
        A collective with members that log nothing, whoever is to blame: for all that is known it waited for them.
    """

    accused: float = 0.95
    pair_crosses: float = 0.9
    group_crosses: float = 0.9
    group_shares: float = 0.8
    inside: float = 0.2
    group_has_link: float = 0.4
    by_chance: float = 0.05
    nobody: float = 0.15
    unlogged: float = 0.5


THRESHOLDS: Final = Thresholds()
CHANCES: Final = Chances()

UNSEEN: Final = "unseen"
"""Kind of a device that stands for ranks without a log, one of which may have come late to a collective."""

FABRIC: Final = "fabric"
"""Kind of a device that stands for all that joins the switches of the job: spines, which no log names."""

NOBODY: Final = Device("none", ())
FABRIC_DEVICE: Final = Device(FABRIC, ())
_BOTH, _OUT, _IN, _UPLINK = 0, 1, 2, 3
_WAYS: Final = {
    "nic": {_BOTH: 0.5, _OUT: 0.3, _IN: 0.2},
    "link": {_BOTH: 0.5, _OUT: 0.25, _IN: 0.25},
    "switch": {_BOTH: 0.5, _UPLINK: 0.5},
}
"""Which part of a slow device is slow, and how often. Queues build where a NIC sends. Of a switch it is its ports, so
that all that its ranks send is slow, or its uplink, so that what stays below it is as always."""

PRIORS: Final = {
    "nic": 1.0, "link": 0.5, "switch": 0.3, "communicator": 0.3, FABRIC: 0.1, "none": 0.05, UNSEEN: 1.0,
}  # fmt: skip


def rank_devices(
    lane: Lane, attributions: Sequence[Attribution], topology: Topology
) -> tuple[list[tuple[Device, float]], frozenset[Lane]]:
    """Say which devices may have slowed a lane, with the probability of each, best first.

    Returns
    -------
    The devices; and the lanes that were seen slow, the accused one with them.
    """
    seen = observe_lanes(lane, attributions)
    low = telling_ends(lane, attributions, topology)
    is_sampled = bool(low) and passes_nics(lane, attributions, topology)
    devices = [*_candidates(lane, seen, topology, is_sampled), *_unseen(lane, topology)]
    weights = _weights(devices, lane, seen, low, topology)
    most = max(weights)  # once: a collective of a large job has thousands of candidates
    odds = [math.exp(weight - most) for weight in weights]
    total = sum(odds)
    ranked = sorted(((d, o / total) for d, o in zip(devices, odds, strict=True)), key=lambda p: (-p[1], p[0]))
    return ranked, frozenset(one for one, is_slow in seen.items() if is_slow)


def is_carried(device: Device, one: Lane, accused: Lane, topology: Topology) -> bool:
    """Whether lane `one` is expected to be slow if `device` slows down `accused`."""
    return _expected(device, one, accused, topology) > CHANCES.nobody


def observe_lanes(accused: Lane, attributions: Sequence[Attribution]) -> dict[Lane, bool]:
    """Say of each lane that tells something whether it was slow; see `Thresholds`.

    A lane in which the accused lane's slow-down would not stand out tells nothing by looking normal, nor by being
    slower by far less than the accused one is: a barrier of a few bytes waits behind all other traffic. One in which
    a single transfer of several hung is not slow: the others passed as always.
    """
    by_lane: dict[Lane, list[LaneExcess]] = {}
    for attribution in attributions:
        for lane, excess in attribution.lanes.items():
            by_lane.setdefault(lane, []).append(excess)
    lanes = {lane: _typical(found) for lane, found in by_lane.items()}
    seen = {accused: True}
    for lane, typical in lanes.items():
        error_ns = _standard_error(typical, len(by_lane[lane]))
        noticed_ns = max(THRESHOLDS.sigmas * error_ns, THRESHOLDS.least_ratio * typical.usual_ns)
        expected_ns = _expected_excess_ns(typical, lanes[accused]) if accused in lanes else 0.0
        is_over = typical.excess_ns > noticed_ns and not typical.is_stray
        if expected_ns > THRESHOLDS.telling * THRESHOLDS.sigmas * error_ns:
            seen.setdefault(lane, is_over and typical.excess_ns > THRESHOLDS.like_accused * expected_ns)
        elif is_over and typical.excess_ns > _beside_ns(typical, lanes.get(accused)):
            seen.setdefault(lane, True)
    return seen


def _beside_ns(typical: LaneExcess, accused: LaneExcess | None) -> float:
    """Excess that a lane may have from waiting behind the accused one's traffic alone, ns."""
    by_time_ns = _by_time_ns(typical, accused) if accused is not None else 0.0
    return max(THRESHOLDS.queue_ns * typical.transfers, THRESHOLDS.like_accused * by_time_ns)


def stands_out(lane: Lane, attributions: Sequence[Attribution]) -> bool:
    """Whether some iterations together show that a lane is slow, beyond the noise of it and of what is usual."""
    typical = typical_excess(lane, attributions)
    if typical is None:
        return False
    error_ns = _standard_error(typical, sum(lane in a.lanes for a in attributions))
    return typical.excess_ns > max(THRESHOLDS.sigmas * error_ns, THRESHOLDS.least_ratio * typical.usual_ns)


def typical_excess(lane: Lane, attributions: Sequence[Attribution]) -> LaneExcess | None:
    """Return the medians, over the iterations, of what is known of a lane; None if nothing is."""
    found = [a.lanes[lane] for a in attributions if lane in a.lanes]
    return _typical(found) if found else None


def _typical(found: Sequence[LaneExcess]) -> LaneExcess:
    if len(found) == 1:
        return found[0]
    return LaneExcess(*(median(values) for values in zip(*found, strict=True)))


def _standard_error(typical: LaneExcess, iterations: int) -> float:
    """Return the standard error of the median excess of a lane: of these iterations and of what is usual, ns."""
    of_noise_ns = typical.noise_ns * math.sqrt(1 / iterations + 1 / _USUAL_ITERATIONS)
    of_clock_ns = LEAST_RESOLUTION_NS * typical.transfers  # roundings that are alike add up
    return math.hypot(MEDIAN_ERROR * of_noise_ns, THRESHOLDS.model_error * typical.usual_ns, of_clock_ns)


_USUAL_ITERATIONS: Final = 6  # at least: `detectors.path.usual_by_past` learns from so many


def _expected_excess_ns(lane: LaneExcess, accused: LaneExcess) -> float:
    """Excess that a lane would have at least if it were slowed as the accused one is.

    By its usual time or by its bytes where the device is slow, by its transfers where each of them is delayed.
    """
    by_time_ns = _by_time_ns(lane, accused)
    by_count_ns = accused.excess_ns * lane.transfers / max(accused.transfers, 1.0)
    least_ns = min(by_time_ns, by_count_ns)
    if lane.size_bytes > 0 and accused.size_bytes > 0:
        return min(least_ns, accused.excess_ns * lane.size_bytes / accused.size_bytes)
    return least_ns


def _by_time_ns(lane: LaneExcess, accused: LaneExcess) -> float:
    """Excess of a lane whose transfers took longer in the accused one's proportion."""
    return accused.excess_ns * lane.usual_ns / max(accused.usual_ns, 1.0)


def _unseen(lane: Lane, topology: Topology) -> list[Device]:
    """Return the members of a collective that log nothing: its transfer may be waiting for one of them."""
    ranks = tuple(rank for rank in topology.lane_ranks(lane) if rank in topology.unlogged)
    return [Device(UNSEEN, ranks)] if lane.kind == "collective" and ranks else []


def _candidates(lane: Lane, seen: Mapping[Lane, bool], topology: Topology, is_sampled: bool) -> list[Device]:
    """Devices that could slow this lane: its ends' NICs and switches, what joins these, a link in it, or none."""
    found = [NOBODY]
    ranks = topology.lane_ranks(lane)
    if lane.kind == "collective":
        found.append(Device("communicator", ranks))
    slow = [lane, *sorted(one for one, is_slow in seen.items() if is_slow)]
    is_crossing = topology.crosses_network(lane) or is_sampled
    crossing = [lane] if is_crossing else [one for one in slow if topology.crosses_network(one)]
    if crossing:
        found += sorted({topology.nic(rank) for rank in ranks})
        found += sorted(topology.switches(ranks))
        found += [FABRIC_DEVICE] if any(topology.crosses_switches(one) for one in crossing) else []
    ways = [(p.first, p.second) for p in slow if p.kind == "pair" and {p.first, p.second} <= set(ranks)]
    ways += [(ranks[0], ranks[1])] if _is_one_link(lane, topology) else []
    both = {frozenset(way): way for way in reversed(ways)}  # both directions are one device: the first one names it
    return found + [Device("link", way) for way in both.values()]


def _is_one_link(lane: Lane, topology: Topology) -> bool:
    """Whether a group is two ranks on two hosts: all that it moves takes the one path between them."""
    hosts = {topology.place(rank).host for rank in topology.lane_ranks(lane)}
    return lane.kind == "collective" and len(topology.lane_ranks(lane)) == len(hosts) == 2 and None not in hosts


def _weights(
    devices: Sequence[Device], accused: Lane, seen: Mapping[Lane, bool], low: Mapping[End, bool], topology: Topology
) -> list[float]:
    """For each device the logarithm of prior times likelihood of what was seen on all lanes, if it were the cause.

    What was seen of NICs' rates (`detectors.nics.peak_caps`) counts likewise. A lane that no candidate touches adds
    the same likelihood to all of them, so these are summed once.
    """
    least = {one: _least_chance(one, topology) for one in seen}
    by_chance = sum(_log_chance(least[one], is_slow) for one, is_slow in seen.items())
    if_nobody = sum(_log_chance(max(CHANCES.nobody, least[one]), is_slow) for one, is_slow in seen.items())
    touching: dict[int, list[Lane]] = {}
    for lane in seen:
        for rank in topology.lane_ranks(lane):
            touching.setdefault(rank, []).append(lane)
    weights = []
    for device in devices:
        ranks = touching if device.kind == FABRIC else device.ranks
        touched = dict.fromkeys(lane for rank in ranks for lane in touching.get(rank, ()))  # a set, in order
        weight = math.log(PRIORS[device.kind]) + (if_nobody if device.kind == "none" else by_chance)
        weight += math.log(len(device.ranks)) if device.kind == UNSEEN else 0.0  # as likely, each, as a slow NIC
        lanes = [one for one in touched if seen[one]] if device.kind == UNSEEN else list(touched)
        lanes = [accused] if device.kind == "communicator" else lanes
        ways = [
            math.log(share)
            + sum(_log_odds(_expected(device, one, accused, topology, way), seen[one], least[one]) for one in lanes)
            for way, share in _WAYS.get(device.kind, {_BOTH: 1.0}).items()
        ]
        weights.append(weight + float(np.logaddexp.reduce(ways)) + log_odds(device, low))
    return weights


def _log_chance(expected: float, is_slow: bool) -> float:
    return math.log(expected if is_slow else 1 - expected)


def _log_odds(expected: float, is_slow: bool, least: float) -> float:
    return _log_chance(max(expected, least), is_slow) - _log_chance(least, is_slow)


def _least_chance(lane: Lane, topology: Topology) -> float:
    """Chance that a lane is seen slow, whichever device is to blame."""
    may_wait = lane.kind == "collective" and not topology.unlogged.isdisjoint(topology.lane_set(lane))
    return CHANCES.unlogged if may_wait else CHANCES.by_chance


def _expected(device: Device, one: Lane, accused: Lane, topology: Topology, way: int = _BOTH) -> float:
    """Chance that lane `one` is seen slow if `device`, slow in these directions, causes `accused`'s excess."""
    if device.kind == "none":
        return CHANCES.nobody
    if device.kind in ("communicator", UNSEEN):
        is_its = one == accused or (device.kind == UNSEEN and one.kind == "collective")
        return CHANCES.accused if is_its else CHANCES.by_chance
    if device.kind == FABRIC:
        return CHANCES.group_crosses if topology.crosses_switches(one) else CHANCES.by_chance
    if device.kind == "link":
        return _expected_of_link(device, one, topology, way)
    ranks = topology.lane_set(one)
    own = ranks.intersection(device.ranks)
    if not own:
        return CHANCES.by_chance
    if not topology.crosses_network(one):
        return CHANCES.inside
    if device.kind == "switch":
        return CHANCES.by_chance if way == _UPLINK and len(own) == len(ranks) else CHANCES.group_crosses
    if one.kind == "collective":
        host = topology.host(device.ranks[0])
        is_shared = host is not None and len(ranks.intersection(host.ranks)) > len(own)
        return CHANCES.group_shares if is_shared else CHANCES.group_crosses
    is_slow = way != (_IN if one.first in own else _OUT)
    return CHANCES.pair_crosses if is_slow else CHANCES.by_chance


def _expected_of_link(device: Device, one: Lane, topology: Topology, way: int) -> float:
    if one.kind == "pair":
        slow = {_OUT: [device.ranks], _IN: [device.ranks[::-1]]}.get(way, [device.ranks, device.ranks[::-1]])
        return CHANCES.accused if (one.first, one.second) in slow else CHANCES.by_chance
    if len(topology.lane_set(one)) == 2 and topology.lane_set(one) == set(device.ranks):
        return CHANCES.accused
    return CHANCES.group_has_link if topology.lane_set(one).issuperset(device.ranks) else CHANCES.by_chance
