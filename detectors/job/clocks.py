"""Offsets of hosts' clocks, from the times of the operators themselves.

In collectives in which everybody waits for everybody the members leave together, up to a small spread: the end that
each host's clock shows for one collective, less those of the others, is that clock's offset. Hosts which no chain of
collectives connects are joined by their sends and recvs, as NTP does it: the shortest way from the start of a send to
the end of its recv, in both directions, differs by twice the offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import medians, robust_sigma
from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.arrays.runs import places_in_runs, run_starts, starts_of
from irregulars.detectors.job.thresholds import DRIFT_NS, JOB
from irregulars.dtypes import Column, Floats, Ints
from irregulars.messages.records import RECV, ROOTED, SEND, UNKNOWN


@dataclass(frozen=True, slots=True)
class Clocks:
    """How far each rank's clock is ahead of the mean of those it can be compared with, and how it drifts."""

    ahead_ns: Mapping[int, int] = field(default_factory=dict)  # of each rank, at the time `origin_ns` of its clock
    # By how much that grows per ns; ranks whose clocks keep pace are left out
    drift_ratio: Mapping[int, float] = field(default_factory=dict)
    origin_ns: int = 0

    def ahead(self, rank: Ints, time_ns: Ints) -> Ints:
        """Return by how much the clock of each rank is ahead at a time of its own, int64, ns."""
        size = int(rank.max(initial=0)) + 1
        ahead_ns, drift_ratio = np.zeros(size, dtype=np.int64), np.zeros(size)
        for table, known in ((ahead_ns, self.ahead_ns), (drift_ratio, self.drift_ratio)):
            for one, value in known.items():
                # The tables end at the highest rank that is asked for.
                if one < size:
                    table[one] = value
        if not self.drift_ratio:
            return np.asarray(ahead_ns[rank])
        since_ns = np.where(time_ns == UNKNOWN, 0, time_ns - self.origin_ns)
        return np.asarray(ahead_ns[rank] + np.rint(drift_ratio[rank] * since_ns).astype(np.int64))

    def ahead_of(self, rank: int, time_ns: int) -> int:
        """Return how far the clock of one rank is ahead at a time of its own, ns."""
        drift_ratio = self.drift_ratio.get(rank, 0.0)
        return self.ahead_ns.get(rank, 0) + (round(drift_ratio * (time_ns - self.origin_ns)) if drift_ratio else 0)


def estimate_clocks(columns: Mapping[str, Column], host_of: Mapping[int, str]) -> Clocks:
    """Estimate offsets of hosts' clocks at the end of some iterations, and how they have moved since their middle.

    `columns`: rows as `detectors.path.operator_graph.build_graph` takes them. `host_of`: host of each rank. Hosts
    that nothing connects keep their own time.
    """
    newest = _estimate(columns, host_of)
    offsets_ns = newest.offsets_ns
    ahead_ns = {rank: offsets_ns[host] for rank, host in host_of.items()}
    is_timed = columns["start_ns"] != UNKNOWN
    if not is_timed.any():
        return Clocks(ahead_ns)
    iteration = columns["iteration"]
    # A second estimate, by the older half, shows how offsets have moved since.
    is_older = iteration <= np.median(np.unique(iteration))
    origin_ns = int(columns["start_ns"][is_timed].max())
    older_ns = int(columns["start_ns"][is_timed & is_older].max(initial=UNKNOWN))
    between_ns = origin_ns - older_ns
    if older_ns == UNKNOWN or between_ns < DRIFT_NS:
        return Clocks(ahead_ns, {}, origin_ns)
    before = _estimate({name: column[is_older] for name, column in columns.items()}, host_of, newest.joined)
    if not np.array_equal(newest.part, before.part):  # offsets of other sets of hosts do not compare
        return Clocks(ahead_ns, {}, origin_ns)
    moved_ns = {host: ns - before.offsets_ns[host] for host, ns in offsets_ns.items()}
    # By how much offsets may seem to move between two estimates of clocks that keep pace, ns. Messages that are
    # slower one way put an offset wrong, by up to half of there and back. As long as there and back take what they
    # took, they put it wrong by as much in both estimates.
    old_ns = {(way.one, way.two): way.bound_ns for way in before.joined}
    apart_ns = [abs(way.bound_ns - old_ns.get((way.one, way.two), 0.0)) for way in newest.joined]
    noise_ns = JOB.noise_sigmas * max(newest.noise_ns, before.noise_ns)
    least_ns = max(JOB.least_drift_ns, noise_ns, *apart_ns)
    most_ns = 2 * JOB.drift_ratio * between_ns
    # A clock that moved further was set, and does not drift.
    drifts = {host: ns / between_ns for host, ns in moved_ns.items() if least_ns < abs(ns) <= most_ns}
    return Clocks(ahead_ns, {rank: drifts[host] for rank, host in host_of.items() if host in drifts}, origin_ns)


def follow_clocks(clocks: Clocks, columns: Mapping[str, Column], host_of: Mapping[int, str]) -> Clocks:
    """Return the clocks as the collectives of a later iteration show them.

    A drift that is extrapolated over the minutes that an incident lasts is wrong by milliseconds: a clock's rate
    changes with its temperature, and where NTP slews it. How hosts that share collectives have moved against one
    another is taken from them, as far as clocks can have drifted since. Hosts that only messages join move by what
    causality demands, as no recv ends before its send begins; messages that are slow one way show no more.

    `clocks`: as estimated from earlier iterations. `columns`, `host_of`: as `estimate_clocks` takes them; the later
    iteration, as far as it was read.
    """
    is_timed = np.isfinite(columns["elapsed_ns"]) & (columns["start_ns"] != UNKNOWN)
    rows = {name: column[is_timed] for name, column in columns.items()}
    now_ns = int(rows["start_ns"].max(initial=clocks.origin_ns))
    since_ns = now_ns - clocks.origin_ns
    if not clocks.ahead_ns or since_ns < DRIFT_NS:
        return clocks
    ranks, at = np.unique(rows["rank"], return_inverse=True)
    hosts, host = np.unique([host_of[rank] for rank in ranks.tolist()], return_inverse=True)
    start_ns = (rows["start_ns"] - rows["start_ns"].min()).astype(np.float64)
    ends = _shared_ends(rows, host[at], start_ns + rows["elapsed_ns"])
    offsets_ns, noise_ns = _by_collectives(ends, len(hosts))
    drifted_ns = np.zeros(len(hosts))
    drifted_ns[host] = [clocks.ahead_of(rank, now_ns) for rank in ranks.tolist()]
    moved_ns = offsets_ns - drifted_ns
    part = np.unique(_connected(ends, len(hosts)), return_inverse=True)[1]
    moved_ns -= medians(part, moved_ns)[part]  # one clock that was set moves no other
    most_ns = 2 * JOB.drift_ratio * since_ns
    is_drift = np.abs(moved_ns) > max(JOB.least_drift_ns, JOB.noise_sigmas * noise_ns)
    found_ns = drifted_ns + np.where(is_drift & (np.abs(moved_ns) <= most_ns), moved_ns, 0.0)
    for way in _ways(rows, host[at], start_ns):
        apart_ns = found_ns[way.one] - found_ns[way.two]
        possible_ns = min(max(apart_ns, way.ahead_ns - way.bound_ns), way.ahead_ns + way.bound_ns)
        if abs(possible_ns - apart_ns) <= most_ns:
            _join(way._replace(ahead_ns=possible_ns), found_ns, part)
    ahead = dict(zip(hosts.tolist(), np.rint(found_ns).astype(np.int64).tolist(), strict=True))
    ahead_ns = {rank: ahead.get(host_of[rank], clocks.ahead_of(rank, now_ns)) for rank in clocks.ahead_ns}
    return Clocks(ahead_ns, clocks.drift_ratio, now_ns)


class _Ends(NamedTuple):
    """Ends of collectives that span hosts: one row per member."""

    end_ns: Floats
    host: Ints
    group: Ints


class _Way(NamedTuple):
    """Offset of two hosts' clocks by their messages: `one` is ahead of `two` by `ahead_ns`, within `bound_ns`."""

    bound_ns: float
    one: int
    two: int
    ahead_ns: float


class _Estimate(NamedTuple):
    """Offsets of hosts' clocks, and the evidence that they rest on."""

    offsets_ns: dict[str, int]
    noise_ns: float  # robust spread of the ends of collectives around them, ns
    part: Ints  # for each host which hosts it is compared with
    joined: tuple[_Way, ...] = ()  # the messages that joined hosts which no chain of collectives connects


def _estimate(
    columns: Mapping[str, Column], host_of: Mapping[int, str], joined: Sequence[_Way] | None = None
) -> _Estimate:
    """Estimate offsets; `joined` are the ways of another estimate, and the hosts are joined by no others."""
    hosts = sorted(set(host_of.values()))
    code = {host: at for at, host in enumerate(hosts)}
    is_timed = np.isfinite(columns["elapsed_ns"]) & (columns["start_ns"] != UNKNOWN)
    rows = {name: column[is_timed] for name, column in columns.items()}
    # Without times each host is compared with itself alone.
    if len(rows["rank"]) == 0:
        return _Estimate(dict.fromkeys(hosts, 0), 0.0, np.arange(len(hosts)))
    ranks, at = np.unique(rows["rank"], return_inverse=True)
    host = np.array([code[host_of[rank]] for rank in ranks.tolist()], dtype=np.int64)[at]
    # Since the first start: float64 counts single ns up to 104 days, and since 1970 in steps of 256 ns.
    start_ns = (rows["start_ns"] - rows["start_ns"].min()).astype(np.float64)
    ends = _shared_ends(rows, host, start_ns + rows["elapsed_ns"])
    offsets_ns, noise_ns = _by_collectives(ends, len(hosts))
    part = _connected(ends, len(hosts))
    ways = _ways(rows, host, start_ns)  # later ones between hosts that are joined already are not used
    if joined is not None:
        by_hosts = {(way.one, way.two): way for way in ways}
        ways = [by_hosts[way.one, way.two] for way in joined if (way.one, way.two) in by_hosts]
    joining = tuple(way for way in ways if _join(way, offsets_ns, part))
    part = np.unique(part, return_inverse=True)[1]  # numbered by their hosts, in whichever order they were joined
    part = np.unique(part, return_index=True)[1][part]
    offsets_ns -= (np.bincount(part, offsets_ns) / np.maximum(np.bincount(part), 1))[part]
    found = {name: round(ns) for name, ns in zip(hosts, offsets_ns.tolist(), strict=True)}
    return _Estimate(found, noise_ns, part, joining)


def _shared_ends(rows: Mapping[str, Column], host: Ints, end_ns: Floats) -> _Ends:
    """Return the ends of the newest collectives in which all wait for all, and that span hosts."""
    # Members of a rooted operator need not leave it together.
    picked = np.flatnonzero(~np.isin(rows["operator"], [SEND, RECV, *ROOTED]))
    communicator = rows["communicator"][picked]
    group, first = group_rows([communicator, rows["sequence"][picked]])
    owner = communicator[first]  # ascending, as the groups are
    # Sequences ascend within a communicator: 1 for its newest collective, 2 for the one before.
    newest_first = np.searchsorted(owner, owner, side="right") - np.arange(len(owner))
    ended_ns = np.full(len(first), -np.inf)
    np.maximum.at(ended_ns, group, end_ns[picked])
    newest_ns = np.maximum.reduceat(ended_ns, run_starts(owner)) if len(owner) else ended_ns
    is_recent = ended_ns >= newest_ns[np.unique(owner, return_inverse=True)[1]] - JOB.newest_ns
    is_new = (is_recent & (newest_first <= JOB.often))[group]
    picked, group = picked[is_new], np.unique(group[is_new], return_inverse=True)[1]
    lowest = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    highest = np.full(len(lowest), -1)
    np.minimum.at(lowest, group, host[picked])
    np.maximum.at(highest, group, host[picked])
    spans = (lowest < highest)[group]
    return _Ends(end_ns[picked][spans], host[picked][spans], group[spans])


def _by_collectives(ends: _Ends, hosts: int) -> tuple[Floats, float]:
    """Least squares of ``end = time of the collective + offset of the host``; then once more without outliers.

    Returns offsets of the hosts, and the robust spread of the ends around them, ns.
    """
    if len(ends.end_ns) == 0:
        return np.zeros(hosts), 0.0
    offsets_ns, left_ns = _least_squares_of_some(ends, hosts)
    sigma_ns = robust_sigma(left_ns)
    is_good = np.abs(left_ns) <= JOB.sigmas * max(sigma_ns, 1.0)
    if is_good.all():
        return offsets_ns, sigma_ns
    good = _Ends(ends.end_ns[is_good], ends.host[is_good], ends.group[is_good])
    return _least_squares_of_some(good, hosts)[0], sigma_ns


def _least_squares_of_some(ends: _Ends, hosts: int) -> tuple[Floats, Floats]:
    """Solve for the hosts that have ends; the others get 0. Few of a large job are read, and the cost is cubic."""
    some, host = np.unique(ends.host, return_inverse=True)
    offsets_ns = np.zeros(hosts)
    offsets_ns[some], left_ns = _least_squares(ends._replace(host=host), len(some))
    return offsets_ns, left_ns


def _least_squares(ends: _Ends, hosts: int) -> tuple[Floats, Floats]:
    """Return the offsets of the hosts and the residual of each row; the collectives' own times are eliminated.

    Differences fix the offsets up to one constant for each connected part of the hosts. Their sum is made zero, which
    also makes the matrix (the graph's Laplacian) invertible.
    """
    groups = int(ends.group.max()) + 1
    sizes = np.maximum(np.bincount(ends.group, minlength=groups), 1)
    centred_ns = ends.end_ns - (np.bincount(ends.group, weights=ends.end_ns, minlength=groups) / sizes)[ends.group]
    normal = np.diag(np.bincount(ends.host, minlength=hosts)) - _met(ends, hosts)
    sums_ns = np.bincount(ends.host, weights=centred_ns, minlength=hosts)
    part = _connected(ends, hosts)
    normal += (part[:, None] == part[None, :]) / np.bincount(part, minlength=hosts)[part]
    offsets_ns = np.linalg.solve(normal, sums_ns)
    means_ns = np.bincount(ends.group, weights=offsets_ns[ends.host], minlength=groups) / sizes
    return np.asarray(offsets_ns, dtype=np.float64), centred_ns - offsets_ns[ends.host] + means_ns[ends.group]


def _met(ends: _Ends, hosts: int) -> Floats:
    """Sum over the collectives, for each pair of hosts, the pairs of their members over the collective's size.

    By pairs of hosts that have members, since most collectives have few: a table of collectives by hosts would be
    nearly empty.
    """
    cell, members = np.unique(ends.group * hosts + ends.host, return_counts=True)
    group, host = cell // hosts, cell % hosts
    sizes, cells = np.bincount(ends.group), np.bincount(group)
    partners = cells[group]
    one = np.repeat(np.arange(len(group)), partners)
    first_of_group = starts_of(cells)[group]
    two = first_of_group[one] + places_in_runs(partners)
    weights = members[one] * members[two] / sizes[group[one]]
    met = np.bincount(host[one] * hosts + host[two], weights=weights, minlength=hosts * hosts)
    return np.asarray(met.reshape(hosts, hosts))


def _connected(ends: _Ends, hosts: int) -> Ints:
    """Number the connected parts of the hosts: spread the least number over collectives until nothing changes."""
    part = np.arange(hosts)
    while len(ends.group):
        least = np.full(int(ends.group.max()) + 1, hosts)
        np.minimum.at(least, ends.group, part[ends.host])
        renewed = part.copy()
        np.minimum.at(renewed, ends.host, least[ends.group])
        if np.array_equal(renewed, part):
            break
        part = renewed
    return part


def _ways(rows: Mapping[str, Column], host: Ints, start_ns: Floats) -> list[_Way]:
    """Compare hosts by the shortest time from the start of a new send to the end of its recv, the tightest first."""
    sends, recvs = np.flatnonzero(rows["operator"] == SEND), np.flatnonzero(rows["operator"] == RECV)
    # A send and its recv have one key: communicator, sender, receiver, sequence.
    ends = (("communicator", "rank", "peer", "sequence"), ("communicator", "peer", "rank", "sequence"))
    keys = [np.concatenate([rows[one][sends], rows[two][recvs]]) for one, two in zip(*ends, strict=True)]
    pair, _ = group_rows(keys)
    recv_of = np.full(int(pair.max(initial=-1)) + 1, -1)
    recv_of[pair[len(sends) :]] = recvs
    matched = recv_of[pair[: len(sends)]]
    sends, matched = sends[matched >= 0], matched[matched >= 0]
    way_ns = start_ns[matched] + rows["elapsed_ns"][matched] - start_ns[sends]
    hosts = int(host.max(initial=0)) + 1
    # Only of pairs between which something was sent: a table of all pairs of 10,000 hosts would take 800 MB.
    cell, pair = np.unique(host[sends] * hosts + host[matched], return_inverse=True)
    newest_ns = np.full(len(cell), -np.inf)
    np.maximum.at(newest_ns, pair, start_ns[sends])
    is_new = start_ns[sends] >= newest_ns[pair] - JOB.newest_ns
    shortest_ns = np.full(len(cell), np.inf)
    np.minimum.at(shortest_ns, pair[is_new], way_ns[is_new])
    found = {divmod(at, hosts): ns for at, ns in zip(cell.tolist(), shortest_ns.tolist(), strict=True)}
    # Messages within one host compare its clock with itself, and those of one direction alone nothing.
    both = [(*pair, ns, found[pair[::-1]]) for pair, ns in found.items() if pair[0] < pair[1] and pair[::-1] in found]
    return sorted(_Way((there_ns + back_ns) / 2, a, b, (back_ns - there_ns) / 2) for a, b, there_ns, back_ns in both)


def _join(way: _Way, offsets_ns: Floats, part: Ints) -> bool:
    """Shift the second host's part as the way says, unless the two are one part; return whether it shifted."""
    if part[way.one] == part[way.two]:
        return False
    moved = part == part[way.two]
    offsets_ns[moved] += offsets_ns[way.one] - way.ahead_ns - offsets_ns[way.two]
    part[moved] = part[way.one]
    return True
