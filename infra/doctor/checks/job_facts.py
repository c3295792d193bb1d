"""Jobs as their announcements and heartbeats tell of them, and clocks of hosts as the log's order tells of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from irregulars.infra.doctor.checks.facts import JobFacts
from irregulars.messages.announcements import Announcement, Heartbeat, contradiction_of

_Start = tuple[int, str]
"""Attempt number, and id of the start; empty: it has none."""

_BESIDE_S: Final = 5.0


class Beat(NamedTuple):
    """A heartbeat as it stands in the log: partition, time of the message (s since 1970), and what it says."""

    partition: int
    time_s: float
    heartbeat: Heartbeat


class Announced(NamedTuple):
    """An announcement, with the time of its message."""

    time_s: float
    announcement: Announcement


@dataclass(slots=True)
class _Gathered:
    announced: dict[int, Announced] = field(default_factory=dict)  # newest of each rank
    first: dict[int, Announced] = field(default_factory=dict)
    beats: dict[int, Beat] = field(default_factory=dict)

    @property
    def announced_s(self) -> float:
        """When the newest of its ranks announced itself, s since 1970."""
        return max((one.time_s for one in self.announced.values()), default=0.0)

    def contradiction(self, rank: int) -> str | None:
        """In which respect the newest announcement of a rank contradicts its first."""
        return contradiction_of(self.first[rank].announcement, self.announced[rank].announcement)

    def hosts_since(self, since_s: float) -> set[str]:
        """Return the hosts of ranks that were heard to run more than `_BESIDE_S` after a time."""
        running = (rank for rank, beat in self.beats.items() if beat.heartbeat.state != "ended"
                   and beat.time_s > since_s + _BESIDE_S and rank in self.announced)  # fmt: skip
        return {host for rank in running if (host := self.announced[rank].announcement.host) is not None}


def jobs_of(
    announced: Iterable[Announced],
    beats: Iterable[Beat],
    evidence_s: Mapping[str, float],
    since_s: float,
) -> tuple[JobFacts, ...]:
    """Return the newest starts of the jobs that were heard or announced since a time; the last heard first.

    Parameters
    ----------
    evidence_s
        By job: when its newest iteration closed, s since 1970.
    """
    found: defaultdict[str, defaultdict[_Start, _Gathered]] = defaultdict(lambda: defaultdict(_Gathered))
    for one in sorted(announced, key=lambda one: one.time_s):
        said = one.announcement
        gathered = found[said.job][said.attempt, said.start or ""]
        gathered.announced[said.rank] = one
        gathered.first.setdefault(said.rank, one)
    for beat in beats:
        own = found[beat.heartbeat.job][beat.heartbeat.attempt, beat.heartbeat.start or ""].beats
        if beat.heartbeat.rank not in own or own[beat.heartbeat.rank].time_s <= beat.time_s:
            own[beat.heartbeat.rank] = beat
    jobs = [_job(name, starts, evidence_s.get(name)) for name, starts in found.items()]
    recent = [job for job in jobs if max((*job.heard_s.values(), job.announced_s)) >= since_s]
    return tuple(sorted(recent, key=lambda job: -max((*job.heard_s.values(), job.announced_s))))


def _job(name: str, starts: Mapping[_Start, _Gathered], evidence_s: float | None) -> JobFacts:
    newest = max(starts, key=lambda start: (starts[start].announced_s, start))
    own, (attempt, _) = starts[newest], newest
    said = {rank: one.announcement for rank, one in own.announced.items() if one.announcement.is_logged}
    lost: defaultdict[str, int] = defaultdict(int)
    for beat in own.beats.values():
        for source, progress in beat.heartbeat.sources.items():
            lost[source] += progress.lost_rows
    return JobFacts(
        job=name,
        attempt=attempt,
        logged_ranks=max((one.logged_ranks for one in said.values()), default=0),
        announced=frozenset(said),
        announced_s=own.announced_s,
        heard_s={rank: beat.time_s for rank, beat in own.beats.items()},
        ended=frozenset(rank for rank, beat in own.beats.items() if beat.heartbeat.state == "ended"),
        lost_rows=dict(lost),
        clocks=frozenset(one.clock for one in said.values()),
        hosts={rank: one.host for rank, one in said.items() if one.host is not None},
        unsampled=frozenset(rank for rank, one in said.items() if "bandwidth" not in one.sources),
        without_marks=frozenset(rank for rank, one in said.items() if "iterations" not in one.sources),
        evidence_s=evidence_s,
        contradicts=next(filter(None, map(own.contradiction, own.announced)), None),
        beside=frozenset(
            host for start, other in starts.items() if start != newest for host in other.hosts_since(own.announced_s)
        ),
    )


def host_clocks(beats: Sequence[Beat], hosts: Mapping[tuple[str, int], str], now_s: float) -> dict[str, float]:
    """Return by host how far its clock is off, s, at least; 0 where nothing shows.

    A message bears its sender's time, and the log its order. A clock is behind by as much as each of its host's
    messages is older than one that came before it; it is ahead of ours by as much as its newest one lies in the
    future, and its messages count as that much older.

    Parameters
    ----------
    beats
        Of each partition in the order of the log.
    hosts
        By job and rank.

    Examples
    --------
    >>> beat = lambda rank, time_s: Beat(0, time_s, Heartbeat("j", 0, rank))
    >>> log = [beat(0, 10.0), beat(1, 3.0), beat(0, 11.0), beat(1, 5.0)]
    >>> host_clocks(log, {("j", 0): "a", ("j", 1): "b"}, 11.0)
    {'a': 0.0, 'b': -6.0}
    """
    newest: dict[int, float] = {}
    behind: dict[str, float] = {}
    ahead: dict[str | None, float] = {}
    by_host = [(hosts.get((one.heartbeat.job, one.heartbeat.rank)), one) for one in beats]
    for host, one in by_host:
        ahead[host] = max(ahead.get(host, 0.0), one.time_s - now_s)
    for host, (partition, time_s, _) in by_host:
        time_s -= ahead[host]
        before_s = newest.get(partition, time_s)
        newest[partition] = max(before_s, time_s)
        if host is not None:
            behind[host] = min(behind.get(host, float("inf")), max(before_s - time_s, 0.0))
    return {host: ahead[host] or 0.0 - behind[host] for host in behind}
