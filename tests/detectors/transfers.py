"""Transfers of a job of eight ranks, on the lanes between them: which took longer, and which as always."""

from __future__ import annotations

from collections.abc import Iterable

from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.path.critical_path import Attribution

MS = 1e6
RANKS = range(8)
ITERATIONS = 5
WORLD, OF_1_AND_2 = Lane("collective", 0), Lane("collective", 1)
MEMBERS = {0: tuple(RANKS), 1: (1, 2), 2: (0, 1, 2, 3)}
APART = Topology(8, {rank: Place(f"h{rank}", 0, "nic0", f"leaf-{rank // 4}") for rank in RANKS}, MEMBERS)
"""Eight hosts of one rank, four below each of two switches."""
TOGETHER = Topology(8, {rank: Place(f"h{rank // 2}", rank % 2, f"nic{rank % 2}") for rank in RANKS}, MEMBERS)
"""Four hosts of two ranks, each with a NIC of its own."""


def pair(source: int, target: int) -> Lane:
    return Lane("pair", source, target)


PAIRS = [pair(one, two) for one in RANKS for two in RANKS if one != two]

NORMAL = LaneExcess(0.0, 10 * MS, 0.02 * MS, 1e6, 1.0, 4)
SLOW = LaneExcess(30 * MS, 10 * MS, 0.02 * MS, 1e6, 4.0, 4)
Seen = dict[Lane, LaneExcess]


def small(excess_ns: float, usual_ns: float = 20_000.0) -> LaneExcess:
    """Four messages of 8 bytes, all of them longer by as much: of what slows down a megabyte they show nothing."""
    return LaneExcess(excess_ns, usual_ns, 100.0, 8.0, 4.0, 4)


def times(excess: LaneExcess, by: float) -> LaneExcess:
    """A lane with so much more of everything: bytes, usual time, noise and excess."""
    size = excess._replace(excess_ns=excess.excess_ns * by, usual_ns=excess.usual_ns * by)
    return size._replace(noise_ns=excess.noise_ns * by, size_bytes=excess.size_bytes * by)


def lanes_of(slow: Iterable[Lane], normal: Iterable[Lane]) -> Seen:
    return dict.fromkeys(normal, NORMAL) | dict.fromkeys(slow, SLOW)


def irregular(seen: Seen, count: int = ITERATIONS) -> list[Attribution]:
    return [Attribution(number, {}, {}, seen, {}) for number in range(count)]


def touching(*ranks: int) -> list[Lane]:
    return [one for one in PAIRS if {one.first, one.second} & set(ranks)]
