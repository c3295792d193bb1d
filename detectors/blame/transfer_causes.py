"""Which device makes transfers slow: NIC, link, switch, fabric, or a communicator as such.

Each of them would slow down certain lanes and leave others alone (`suspects.py`), and the lanes that were slow
(`slow_lanes.py`) tell them apart: Bayes' rule over the lanes that touch a candidate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median
from typing import Final

import numpy as np

from irregulars.detectors.blame.explanation import Explanation, Unexplained
from irregulars.detectors.blame.likelihoods import LIKELIHOODS
from irregulars.detectors.blame.nic_ends import log_odds, passes_nics, steady_nic, telling_ends
from irregulars.detectors.blame.suspects import (
    FABRIC,
    NOBODY,
    TRANSFER_SUSPECTS,
    Relation,
    Relations,
    Scene,
    chance_in,
    is_carried,
    is_slowed,
)
from irregulars.detectors.blame.work_causes import are_in_step, owner, starved_ranks
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.nics.peak_caps import End
from irregulars.detectors.path.critical_path import Attribution
from irregulars.dtypes import Floats

_MOST_SUSPECTS: Final = 4  # lines of a verdict
_MOST_ASKED: Final = 16  # slow collectives whose NICs are asked
_ANY: Final = Device("communicator", ())

Ranked = list[tuple[Device, float]]  # devices with the probability of each, best first
Ring = tuple[dict[int, int], Counter[int]]  # the place of each rank, and how often each place left first
Look = tuple[bool, float]  # whether a lane was slow, and the chance that it was so slow whoever is to blame


def explain_transfers(lane: Lane, unexplained: Unexplained) -> Explanation:
    """Explain the excess of slow transfers by a device, by nobody in particular, or by starved ranks.

    Where a rank that logs nothing may as well have been late, nobody is accused, unless a device stands out on other
    lanes, or a transfer that is known whole was slow by as much: that rank waited for it.
    """
    topology = unexplained.topology
    found = _or_starved(_slow_device(lane, unexplained), lane, unexplained)
    is_told_by_others = lane.kind == "collective" and bool(found.suspects)
    if is_told_by_others or not topology.hides_late_ranks(lane):
        return found
    hidden = frozenset(one for path in unexplained.path_excess_ns for one in path if topology.hides_late_ranks(one))
    # Of a lane of one rank, or of members that nobody announced, nothing is known whole.
    behind = unexplained.seen.slowest(
        lambda one: topology.unlogged.isdisjoint(topology.lane_set(one)) and len(topology.lane_set(one)) > 1
    )
    typical_ns = median(unexplained.own_ns(hidden))
    if behind is None or behind[1] < JOB.most * typical_ns or behind[0] in unexplained.explained:
        return Explanation(None, (), frozenset([lane]))
    found = explain_transfers(behind[0], unexplained)
    return replace(found, lanes=found.lanes | hidden)


def explain_by_bandwidth(lane: Lane, unexplained: Unexplained) -> Explanation:
    """Accuse the NIC that bandwidth alone shows (`nic_ends.py`): there are no transfers to go by."""
    suspect = steady_nic(lane, unexplained.attributions, unexplained.topology)
    return Explanation("slow_nic", (suspect,), frozenset([lane]))


# --- which device ---------------------------------------------------------------------------------------------------


def _slow_device(lane: Lane, unexplained: Unexplained) -> Explanation:
    """Accuse the likeliest device, or nobody where that has no name or does not stand out of a group's members."""
    topology = unexplained.topology
    times_slow = unexplained.seen.observe(lane, unexplained.explained)
    ranked = rank_devices(lane, unexplained.attributions, topology, times_slow)
    slow = _slow_ones(times_slow)
    # Where chance is the only candidate the communication as such stands in.
    device, probability = next(pair for pair in [*ranked, (_ANY, 1.0)] if pair[0] != NOBODY)
    on_path = {one for path in unexplained.path_excess_ns for one in path if one.kind != "work"}
    accusation = TRANSFER_SUSPECTS[device.kind].accusation
    others = [p for one, p in ranked if one.kind == device.kind and one != device]
    is_alike = TRANSFER_SUSPECTS[device.kind].must_lead and JOB.twice * max(others, default=0.0) > probability
    is_unclear = lane.kind == "collective" and (probability < JOB.part or is_alike)
    if (is_unclear or accusation is None) and not topology.unlogged.isdisjoint(topology.lane_set(lane)):
        return Explanation(None, (), frozenset([lane]))  # it may have waited for a member that logs nothing
    if is_unclear or (accusation is None and device != FABRIC):
        return Explanation("slow_communicator", (), _shared_lanes(lane, ranked, on_path & slow, topology) | {lane})
    # Traffic inside a host mostly bypasses its NIC: it belongs to the cause only where it was slow.
    may_be = (one for one in on_path if one in slow or topology.crosses_network(one))
    lanes = frozenset(one for one in may_be if is_carried(device, one, lane, topology)) | {lane}
    if accusation is None:
        return Explanation("slow_communicator", (), lanes)
    named = [(one, p) for one, p in ranked if TRANSFER_SUSPECTS[one.kind].accusation and p >= JOB.least_share]
    return Explanation(accusation, tuple(named[:_MOST_SUSPECTS]), lanes)


def _shared_lanes(lane: Lane, ranked: Ranked, slow: Iterable[Lane], topology: Topology) -> frozenset[Lane]:
    """Return the slow lanes that belong to a cause whose device stays unknown.

    Where nobody can say which of some switches is slow, each of them carries the same lanes: it is one cause still.
    """

    def chance(one: Lane) -> float:
        return sum(p for device, p in ranked if is_carried(device, one, lane, topology))

    return frozenset(one for one in slow if chance(one) > JOB.most)


def _slow_ones(times_slow: Mapping[Lane, float]) -> frozenset[Lane]:
    return frozenset(lane for lane, times in times_slow.items() if times)


def rank_devices(
    lane: Lane,
    attributions: Sequence[Attribution],
    topology: Topology,
    times_slow: Mapping[Lane, float],
) -> Ranked:
    """Rank the devices that may have slowed a lane; `times_slow`: how slow all but explained lanes were."""
    low = _telling_ends(lane, attributions, topology, times_slow)
    has_moving_nics = any(low.values()) and passes_nics(lane, attributions, topology)
    # Lanes of one iteration that have the same peers have the same usual time.
    peers = {one: own.usual_ns for a in attributions[-1:] if a.is_by_peers for one, own in a.lanes.items()}
    scene = Scene(lane, times_slow, topology, has_moving_nics, peers)
    devices = [device for kind in TRANSFER_SUSPECTS.values() for device in kind.candidates(scene)]
    weights = _log_weights(devices, scene, low, _rings(attributions, topology, times_slow))
    # Less the largest one: over many lanes the exponentials of all would underflow to 0.
    most = max(weights)
    odds = [math.exp(weight - most) for weight in weights]
    total = sum(odds)
    return sorted(((d, o / total) for d, o in zip(devices, odds, strict=True)), key=lambda p: (-p[1], p[0]))


def _telling_ends(
    lane: Lane, attributions: Sequence[Attribution], topology: Topology, times_slow: Mapping[Lane, float]
) -> dict[End, bool]:
    """Return which ends stand out, of the accused lane and of the other collectives that were slow as well.

    Each of these was measured by NICs of its own: where a few ends leave open which switch is slow, all of them
    decide it. Where none of a collective's ends stands out, while those of another do, that is evidence as well.
    """
    low = telling_ends(lane, attributions, topology)
    if lane.kind != "collective" or not topology.crosses_network(lane):
        return low
    others = [one for one in _slow_ones(times_slow) if one.kind == "collective" and topology.crosses_network(one)]
    cost_ns = {one: sum(a.path_excess_ns.get(one, 0.0) for a in attributions) for one in others}
    asked = [lane, *(one for one in sorted(others, key=lambda one: (-cost_ns[one], one)) if one != lane)][
        :_MOST_ASKED
    ]
    for other in asked[1:]:
        low = telling_ends(other, attributions, topology) | low
    if not any(low.values()):
        return low
    sampled = {rank for a in attributions for rank in a.rates}
    nics = {topology.nic(rank) for one in asked for rank in topology.lane_ranks(one) if rank in sampled}
    return {(nic, way): False for nic in nics for way in (0, 1)} | low


def _rings(attributions: Sequence[Attribution], topology: Topology, times_slow: Mapping[Lane, float]) -> list[Ring]:
    """Return the communicators that were slow across the network, as far as somebody left them first."""
    rings: dict[int, Ring] = {}
    for code, rank in (one for a in attributions for one in a.left_first):
        lane = Lane("collective", code)
        if times_slow.get(lane) and topology.crosses_network(lane) and rank in topology.lane_set(lane):
            if code not in rings:
                rings[code] = {one: at for at, one in enumerate(topology.members[code])}, Counter()
            place_of, first = rings[code]
            first[place_of[rank]] += 1
    return list(rings.values())


def _log_odds_of_order(device: Device, rings: Sequence[Ring]) -> float:
    """Return the log odds that who left slow collectives first gives to a device, against any place in the ring.

    Each communicator counts once however often it was slow, and together they count for no more than places took
    turns to be first: they run one algorithm, and one that is no ring (a tree, say) has the same place first in all
    of them, whatever is slow. So the order in a single one tells nothing.
    """
    if not TRANSFER_SUSPECTS[device.kind].is_in_network or len(rings) < 2:
        return 0.0
    told, is_way = 0.0, device.traits.is_way
    for place_of, first in rings:
        own = sorted(place_of[rank] for rank in device.ranks if rank in place_of)
        if not own or (is_way and len(own) < len(device.ranks)):
            continue  # bytes of the ring do not pass it
        ratios = _chance_ratios(len(place_of), tuple(at - own[0] for at in own), is_way)
        odds = {at: math.log1p(LIKELIHOODS.crosses * (float(ratios[at - own[0]]) - 1)) for at in first}
        told += sum(times * odds[at] for at, times in first.items()) / first.total()
    firsts = sum((first for _, first in rings), Counter[int]())
    turns = firsts.total() ** 2 / sum(times**2 for times in firsts.values())  # equal turns of as many places
    return told / len(rings) * min(turns, len(rings))


@lru_cache(maxsize=64)
def _chance_ratios(size: int, own: tuple[int, ...], is_way: bool) -> Floats:
    """Return how much likelier than by chance each place in a ring is first if a device at some places is slow.

    Bytes go round from member to member, in their order, and the further a member is from the slow steps, the sooner
    it leaves (`lane_tables.left_first`). Of four in a ring, 3 is first if the NIC of 1 is slow both ways. If it sends
    slowly, to 0 or to 2 as the ring goes, 3 or the other one of these is. `own`: these places, ascending from 0.
    """
    places, around = np.arange(size), np.array([own[-1] - size, *own, size])
    after = np.searchsorted(around, places, side="right")
    steps = np.minimum(places - around[after - 1], around[after] - places)
    # How far each member is from the slow steps: from the link, from both sides of a device, or from either
    far = (steps,) if is_way else (steps - 1, np.minimum(steps, size / 2 - 0.5) - 0.5)
    shares = [np.maximum(one, 0) / one[one > 0].sum() for one in far if (one > 0).any()]
    ratios: Floats = size * np.mean(shares, axis=0) if shares else np.ones(size)
    return ratios


def _log_weights(
    devices: Sequence[Device], scene: Scene, low: Mapping[End, bool], rings: Sequence[Ring]
) -> list[float]:
    """For each device the logarithm of prior times likelihood of all that was seen, if it were the cause.

    A lane that a candidate does not touch is slow by chance alone. A large job has thousands of lanes and of
    candidates, each of which touches a few. So the likelihood of all lanes by chance, which all candidates share, is
    left out, and of the lanes that a candidate touches only the ratio to chance counts.

    The rates of NICs (`low`, `detectors.nics.peak_caps`) count likewise, and who left first (`rings`).
    """
    looks = _looks(scene)
    weights = []
    for device in devices:
        kind = TRANSFER_SUSPECTS[device.kind]
        told = kind.telling(device, scene)
        relations = _beside_peers(kind.relations(device, told, scene.accused, scene.topology), told, scene)
        seen = Counter(zip(relations, map(looks.__getitem__, told), strict=True))  # a few kinds, of hundreds of lanes
        ways = [math.log(share) + _log_ratio(seen, at) for at, share in enumerate(kind.ways().values())]
        weights.append(math.log(kind.prior_of(device)) + float(np.logaddexp.reduce(ways)) + log_odds(device, low))
        weights[-1] += _log_odds_of_order(device, rings)
    return weights


def _beside_peers(relations: list[Relations], lanes: Iterable[Lane], scene: Scene) -> list[Relations]:
    """Return how lanes are related to a device, in each of its ways, if their peers' time is the usual one.

    A device that would slow most of the peers makes their slow time the usual one: then they look normal, as lanes do
    that it does not touch.
    """
    if not scene.peers:
        return relations
    numbers = [scene.peers.get(lane) for lane in lanes]
    ways: list[list[Relation]] = []
    for way in zip(*relations, strict=True):
        slowed = Counter(one for one, related in zip(numbers, way, strict=True) if is_slowed(related))
        usual = {one for one, number in slowed.items() if one and 2 * number > scene.number_of_peers[one]}
        ways.append(["untouched" if one in usual else own for one, own in zip(numbers, way, strict=True)])
    return list(zip(*ways, strict=True))


def _looks(scene: Scene) -> dict[Lane, Look]:
    """Return how each lane looks.

    The further a collective is beyond what would be noticed, the less it was chance: by the tail of a Pareto
    distribution of index 1, the heaviest of those that have a mean at all. Of pairs many are slow together where two
    NICs are, and a switch above both would gain by each of them. Of lanes in which a rank without a log may have come
    late, these show how often one does (by Jeffreys' prior).
    """
    unlogged, lanes = scene.topology.unlogged, scene.times_slow
    unseen = {one for one in lanes if not unlogged.isdisjoint(scene.topology.lane_set(one))} if unlogged else set()
    late = (sum(lanes[one] > 0 for one in unseen) + 0.5) / (len(unseen) + 1)

    def by_chance(lane: Lane, times_slow: float) -> float:
        if times_slow and lane in unseen:
            return max(late, LIKELIHOODS.untouched)
        times = times_slow if lane.kind == "collective" else min(times_slow, 1.0)
        return LIKELIHOODS.untouched / (times or 1.0)

    return {lane: (times > 0, by_chance(lane, times)) for lane, times in lanes.items()}


def _log_ratio(seen: Mapping[tuple[Relations, Look], int], way: int) -> float:
    """Return the logarithm of how much likelier lanes look as they do if a device is slow in this way.

    A lane of which the device predicts 0.9 and chance 0.05 adds log(0.9 / 0.05) = 2.9 if it was slow, and
    log(0.1 / 0.95) = -2.3 if it was not.

    `seen`: how many lanes are so related to the device and look so. `way`: number of the way, of the kind's `ways`.
    """
    # Lanes that are alike in this way are counted together: each kind costs its two logarithms once.
    numbers: dict[tuple[Relation, Look], int] = {}
    for (relations, look), number in seen.items():
        key = relations[way], look
        numbers[key] = numbers.get(key, 0) + number
    total = 0.0
    for (related, (is_slow, by_chance)), number in numbers.items():
        chance = _chance(related, by_chance)
        total += number * (math.log(chance / by_chance) if is_slow else math.log((1 - chance) / (1 - by_chance)))
    return total


def _chance(related: Relation, by_chance: float) -> float:
    """Return how likely a lane is seen so slow if a device is to blame; bad moments slow many lanes by chance."""
    if related == "untouched":
        return by_chance
    if related == "nobody":
        return max(by_chance, LIKELIHOODS.nobody * min(by_chance / LIKELIHOODS.untouched, 1.0))
    return max(chance_in(related), by_chance)


# --- ranks that lack processor time ---------------------------------------------------------------------------------


def _or_starved(found: Explanation, lane: Lane, unexplained: Unexplained) -> Explanation:
    """Blame ranks rather than their NIC or their communicator where their own work is slow as well.

    See `starved_ranks`. Of a communicator in which no device stands out it may be any member; a NIC or a switch
    must carry most of its ranks.
    """
    device = found.suspects[0][0] if found.suspects else None
    if found.kind not in ("slow_nic", "slow_communicator") or (device is None and lane.kind != "collective"):
        return found
    lost_ns = unexplained.own_ns(found.lanes)
    seen = [a for a, ns in zip(unexplained.attributions, lost_ns, strict=True) if ns > 0]
    typical_ns = median([ns for ns in lost_ns if ns > 0] or [0.0])
    late = starved_ranks(seen, JOB.least_share * typical_ns)
    starved = owner(late, seen, unexplained.topology)
    # Of a rank that works as much longer while transfers are as always, it is no lack of processor time.
    if starved is None or starved in unexplained.working or are_in_step(seen, late):
        return found
    ranks = unexplained.topology.lane_ranks(lane) if device is None else device.ranks
    is_among = 2 * len(set(ranks).intersection(starved.ranks)) > (0 if device is None else len(set(ranks)))
    if not is_among:
        return found
    probability = max([LIKELIHOODS.crosses, *(p for _, p in found.suspects[:1])])
    works = frozenset(Lane("work", rank) for rank in starved.ranks)
    return Explanation("slow_rank", ((starved, probability),), works | found.lanes)
