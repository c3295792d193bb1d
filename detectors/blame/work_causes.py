"""Who is to blame where a rank's own work takes longer: the rank, its host, its pipeline stage, or nobody.

The ranks that are as late decide it: if they are nearly the ranks of one host, that host is to blame; if they are
nearly all ranks of the job, it is the job that changed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import median

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MEDIAN_ERROR, nan_medians, robust_sigma, row_medians
from irregulars.detectors.arrays.row_keys import find_sorted
from irregulars.detectors.blame.explanation import Explanation, Unexplained
from irregulars.detectors.irregular.thresholds import LATE_SIGMAS
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.critical_path import Attribution
from irregulars.dtypes import Floats, Ints
from irregulars.messages.kinds import GPU, STAGE


def explain_work(lane: Lane, unexplained: Unexplained) -> Explanation:
    """Explain the excess of one rank's own work."""
    if lane == EVERYBODY:
        return Explanation(None, (), frozenset([lane]))
    host = _host_in_turns(unexplained)
    if host is not None:
        return _blame(host, unexplained)
    attributions, topology = unexplained.attributions, unexplained.topology
    late = _late_as(lane.first, attributions)
    known = {rank for attribution in attributions for rank in attribution.work_excess_ns}
    # Nearly all ranks are late alike: the job changed, as with longer batches.
    if len(late) > 1 and len(late) >= JOB.nearly_all * len(known):
        return Explanation(None, (), frozenset(one for path in unexplained.path_excess_ns for one in path
                                               if one.kind == "work"))  # fmt: skip
    device = _shared_by(lane.first, late, attributions, topology)
    # Most of the late ranks are elsewhere: the device is late with them, by chance.
    if len(late.intersection(device.ranks)) < JOB.part * len(late):
        return Explanation(None, (), _works(late))
    return _blame(device, unexplained)


def _blame(device: Device, unexplained: Unexplained) -> Explanation:
    lanes = _works(device.ranks)
    kind = "slow_stage" if device.kind == STAGE else "slow_rank"
    return Explanation(kind, ((device, unexplained.share(lanes)),), lanes)


def _works(ranks: Sequence[int] | set[int]) -> frozenset[Lane]:
    return frozenset(Lane("work", rank) for rank in ranks)


# --- ranks of one host that are last in turn ------------------------------------------------------------------------


def _host_in_turns(unexplained: Unexplained) -> Device | None:
    """Return the host to whose ranks paths lose most work, now to this one and now to that, or the stage around it.

    Where operators overlap, how long a rank works that is not the last is not seen: it waits for the one that is. So
    the host is not found by ranks that are late together, nor need any of its ranks cost most.
    """
    lost = [
        (excess_ns, {lane.first: ns for lane, ns in path.items() if lane.kind == "work" and lane != EVERYBODY})
        for excess_ns, path in zip(unexplained.excess_ns, unexplained.path_excess_ns, strict=True)
    ]
    lost = [(excess_ns, works) for excess_ns, works in lost if works]
    by_host: dict[Device, float] = {}
    for rank, ns in (one for _, works in lost for one in works.items()):
        owner = unexplained.topology.host(rank)
        if owner is not None:
            by_host[owner] = by_host.get(owner, 0.0) + ns
    host = max(sorted(by_host), key=lambda one: by_host[one], default=None)
    # A host with all ranks that log cannot be told from the job.
    if host is None or unexplained.topology.logged_share(host) == 1:
        return None
    ranks = sorted(unexplained.topology.logged.intersection(host.ranks))
    # Whether its ranks have nearly all of the time lost to work, or of the whole excess
    by_rank = [sum(works.get(rank, 0.0) for _, works in lost) for rank in ranks]
    host_ns = [sum(works.get(rank, 0.0) for rank in ranks) for _, works in lost]
    all_ns = [
        unexplained.to_explain_ns(excess_ns, ns, sum(works.values()))
        for ns, (excess_ns, works) in zip(host_ns, lost, strict=True)
    ]
    own_ns, seen = sum(host_ns), sum(ns >= JOB.most * total_ns for ns, total_ns in zip(host_ns, all_ns, strict=True))
    take_turns = (
        len(lost) >= JOB.often
        and not is_by_chance(host, seen, len(lost), unexplained.topology)
        and own_ns >= JOB.nearly_all * sum(all_ns) > 0
        and max(by_rank) <= JOB.most * own_ns  # one rank takes no turns
    )
    if not take_turns:
        return None
    own_late_ns, others_late_ns = _late_beside_others(ranks, unexplained.attributions)
    if not _are_all_late(own_late_ns):
        return None
    # Of a stage on several hosts the path may pass one alone.
    late = _late_as(ranks[0], unexplained.attributions)
    shared = _shared_by(ranks[0], late, unexplained.attributions, unexplained.topology)
    if shared.kind == STAGE:
        return shared
    # Uneven data make all stages of a replica late, on several hosts; paths pass its last stage, on one or two.
    is_as_late = others_late_ns.sum(axis=0) >= JOB.most * np.median(own_late_ns.sum(axis=0))
    return host if is_as_late.sum() < len(ranks) else None


def _late_beside_others(ranks: Sequence[int], attributions: Sequence[Attribution]) -> tuple[Floats, Floats]:
    """Return by how much some ranks, and all others, work longer than the median one of the others, ns.

    A row for each iteration, and a column for each rank; a rank that is not known in it counts as usual.
    """
    others = np.setdiff1d(_known_ranks(attributions), ranks)
    others_ns = np.nan_to_num(_table(attributions, others)).T
    own_ns = np.nan_to_num(_table(attributions, np.array(ranks, dtype=np.int64))).T
    typical_ns = row_medians(others_ns)[:, None] if len(others) else 0.0
    return own_ns - typical_ns, others_ns - typical_ns


def _are_all_late(late_ns: Floats) -> bool:
    """Whether nearly all ranks of a host work longer than ranks elsewhere, also where another one of them is last.

    Over all iterations together: in each by itself chance makes some late and some quick.
    """
    last_ns = late_ns.max(axis=1)
    is_other = np.arange(late_ns.shape[1]) != late_ns.argmax(axis=1)[:, None]
    times = is_other.sum(axis=0)  # 0 of a rank that is always last
    typical_ns = (late_ns * is_other).sum(axis=0) / np.maximum(times, 1)
    least_ns = float(typical_ns[times > 0].mean()) if times.any() else 0.0
    is_late = (typical_ns >= JOB.most * least_ns) | (times == 0)
    return least_ns > JOB.part * float(last_ns.mean()) > 0 and float(is_late.mean()) >= 1 - JOB.part


def is_by_chance(device: Device, seen: int, count: int, topology: Topology) -> bool:
    """Whether chance may well put as many of the ranks that came last on any one device as large as this one.

    By the binomial distribution for one of them, times as many as there are.
    """
    # Ranks that were not announced have no share of those that log.
    share = topology.logged_share(device) or len(device.ranks) / max(topology.world_size, len(device.ranks))
    chance = sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(seen, count + 1))
    return chance / share > JOB.least_share


# --- ranks that are late together -----------------------------------------------------------------------------------


def _late_as(rank: int, attributions: Sequence[Attribution]) -> set[int]:
    """Return the ranks whose work, on the path or not, takes about as much longer than usual as this one's."""
    ranks = _known_ranks(attributions)
    late_ns = np.nansum(_table(attributions, ranks), axis=1)
    return {rank} | _as_late_as(float(late_ns[ranks == rank].sum()), ranks, late_ns, JOB.most)


def latest_rank(attributions: Sequence[Attribution]) -> tuple[int, float]:
    """Return the rank whose work, on the path or not, typically takes longer than usual by most, and how much, ns."""
    ranks = _known_ranks(attributions)
    if not len(ranks):
        return 0, 0.0
    table = _table(attributions, ranks)
    # Of a rank that few of them know nothing is typical.
    is_known = 2 * np.isfinite(table).sum(axis=1) >= len(attributions)
    typical_ns = np.where(is_known, nan_medians(table), 0.0)
    return int(ranks[np.argmax(typical_ns)]), float(typical_ns.max())


def late_beside(ranks: Collection[int], attributions: Sequence[Attribution]) -> set[int]:
    """Return the other ranks that over all of these iterations are late as each of some ranks.

    One that pauses once beside ranks that are late in each iteration is not among them.
    """
    late = (_late_as(rank, attributions) for rank in ranks)
    return set.intersection(*late).difference(ranks)


def _as_late_as(worst_ns: float, ranks: Ints, late_ns: Floats, share: float) -> set[int]:
    """Return the ranks that are late by this share of `worst_ns`."""
    least_ns = share * worst_ns
    # With a limit of 0 or less all ranks on time would be as late.
    return set(ranks[late_ns >= least_ns].tolist()) if least_ns > 0 else set()


def _shared_by(rank: int, late: set[int], attributions: Sequence[Attribution], topology: Topology) -> Device:
    """Return the device that the late ranks share: their host, or their pipeline stage; else the one rank.

    The device whose ranks and the late ones are most nearly the same set (Jaccard's index) is it, if most are, over
    all iterations and in the typical one: ranks of one device are late together. Uneven data make other ranks late in
    each iteration, and summed up these may be those of one host by chance.
    """
    found, nearest = Device(GPU, (rank,)), max(JOB.most, 1 / len(late))
    for device in (topology.host(rank), topology.stage(rank)):
        if device is None or topology.logged_share(device) == 1:
            continue
        likeness = _likeness(late, device, topology)
        if likeness > nearest and is_late_together(device, attributions, topology):
            found, nearest = device, likeness
    return found


def _likeness(late: set[int], device: Device, topology: Topology) -> float:
    """Return Jaccard's index of the late ranks and those of a device that log anything, 0 to 1."""
    ranks = set(device.ranks) - topology.unlogged
    return len(late & ranks) / len(late | ranks)


def is_late_together(device: Device, attributions: Sequence[Attribution], topology: Topology) -> bool:
    """Whether in the typical iteration in which some rank of a device is late its other ranks are, and few others.

    Of the late ranks as many count as it has, the latest: in a job with noise many are late by a part of that.
    """
    found = []
    for attribution in attributions:
        known, late_ns = attribution.work_columns
        is_own = np.isin(known, device.ranks)
        worst_ns = float(late_ns[is_own].max(initial=0.0))
        if worst_ns > 0:
            latest = np.argsort(-late_ns, kind="stable")[: is_own.sum()]
            late = _as_late_as(worst_ns, known[latest], late_ns[latest], JOB.most / 2)
            found.append(_likeness(late, device, topology))
    # Of two ranks that take turns one half is late in each iteration.
    return bool(found) and median(found) > 0.5


def owner(late: set[int], attributions: Sequence[Attribution], topology: Topology) -> Device | None:
    """Return the one rank, or the host, that these ranks are; None where they are something else, or none."""
    if not late:
        return None
    device = _shared_by(min(late), late, attributions, topology)
    is_one = device.kind != STAGE and _likeness(late, device, topology) > JOB.most
    return device if is_one else None


# --------------------------------------------------------------------------------------------------------------------
# Ranks whose own work is slow at the same time as the transfers that they take part in: they lack processor time.
# A processor that is short of time (a quota, a neighbour) slows what its ranks compute and, in gloo and in NCCL's
# proxy threads, what they send. All who take part wait for that inside of the operator, so most of the cost looks
# like a slow transfer. A slow NIC, link or switch leaves work alone: then nobody's gaps grow.


def starved_ranks(attributions: Sequence[Attribution], least_ns: float) -> set[int]:
    """Find the ranks whose own work takes longer than usual while that of most others does not.

    No fault makes work quicker: by as much as the quickest rank seems to be the comparison itself is wrong, in
    either direction, since usual times come from a few iterations, and a gap may hold waiting that is in no log.
    Ranks are held against the median of all, so that no more than half of them can be late: else the job has changed.

    `attributions`: of some iterations. By how much each rank's work took longer than usual counts, on the critical
    path or not. `least_ns`: below, a rank is not late: polling for a slow transfer takes time as well.

    >>> works = [{0: 1e6, 1: 9e6, 2: 0.0}, {0: 0.0, 1: 20e6, 2: 1e6}] * 3
    >>> starved_ranks([Attribution(0, {}, {}, {}, work) for work in works], least_ns=1e6)
    {1}
    """
    if len(attributions) < JOB.often:
        return set()
    ranks = _known_ranks(attributions)
    if len(ranks) < 2:
        return set()
    table = _table(attributions, ranks)
    is_known = np.isfinite(table)
    if (is_known.sum(axis=1) < JOB.often).any():
        return set()  # a rank that is hardly known may be the one
    typical_ns = nan_medians(table)
    over_ns = typical_ns - np.median(typical_ns)
    deviations_ns = (table - typical_ns[:, None])[is_known]
    error_ns = MEDIAN_ERROR * robust_sigma(deviations_ns) / math.sqrt(table.shape[1])
    wrong_by_ns = max(LATE_SIGMAS * error_ns, JOB.twice * -float(over_ns.min()))
    late = over_ns > max(wrong_by_ns, least_ns, JOB.most * float(over_ns.max()))
    return set(ranks[late].tolist())


def are_in_step(attributions: Sequence[Attribution], ranks: Collection[int]) -> bool:
    """Whether these ranks are late by the same time in each iteration: they wait for one thing, unlogged.

    Who waits for the same slow operator, on a stream or in a later call, waits equally long, up to the noise that all
    ranks have. Processors that are held back stall each at its own moments.

    >>> noise = [{2: 0.0, 3: 2.0, 4: -1.0}, {2: 1.0, 3: -1.0, 4: 0.0}]
    >>> alike = [noise[0] | {0: 10.0, 1: 9.0}, noise[1] | {0: 20.0, 1: 21.0}]
    >>> are_in_step([Attribution(0, {}, {}, {}, work) for work in alike], {0, 1})
    True
    >>> apart = [noise[0] | {0: 30.0, 1: 9.0}, noise[1] | {0: 10.0, 1: 21.0}]
    >>> are_in_step([Attribution(0, {}, {}, {}, work) for work in apart], {0, 1})
    False
    """
    if len(ranks) < 2:
        return False
    late_ns = _table(attributions, np.array(sorted(ranks), dtype=np.int64))
    # A standard deviation needs two ranks in an iteration.
    late_ns = late_ns[:, np.isfinite(late_ns).sum(axis=0) > 1]
    if not late_ns.size:
        return True  # never seen together: in doubt, nobody
    others = np.setdiff1d(_known_ranks(attributions), sorted(ranks))
    noise_ns = _table(attributions, others)
    noise_ns = noise_ns - np.nanmedian(noise_ns, axis=1, keepdims=True)
    apart_ns = np.nanmean(np.nanstd(late_ns, axis=0, ddof=1))
    return bool(apart_ns < JOB.noise_sigmas * robust_sigma(noise_ns[np.isfinite(noise_ns)]))


def _known_ranks(attributions: Sequence[Attribution]) -> Ints:
    """Return the ranks of which work is known in any iteration, ascending."""
    parts = [one.work_columns[0] for one in attributions]
    if all(np.array_equal(parts[0], part) for part in parts):  # mostly all ranks of the job in each
        return np.unique(parts[0])
    return np.unique(np.concatenate(parts))


def _table(attributions: Sequence[Attribution], ranks: Ints) -> Floats:
    """Return a row for each of these ranks (ascending), and a column for each iteration; NaN where not known."""
    table = np.full((len(attributions), len(ranks)), math.nan)
    for row, one in zip(table, attributions, strict=True):
        own, excess_ns = one.work_columns
        if np.array_equal(own, ranks):
            row[:] = excess_ns
        else:
            at, is_asked = find_sorted(ranks, own)
            row[at[is_asked]] = excess_ns[is_asked]
    return np.ascontiguousarray(table.T)
