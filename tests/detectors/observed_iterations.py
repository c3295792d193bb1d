"""Judged iterations of a job of four ranks, made up lane by lane."""

from __future__ import annotations

from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.path.critical_path import Attribution, Piece

MS = 1e6
TOPOLOGY = Topology(4, {rank: Place(f"h{rank}", 0, "eth0") for rank in range(4)}, {0: (0, 1, 2, 3)}, ("world", "pp0"))
PAIR = Lane("pair", 1, 3)


def work(rank: int) -> Lane:
    return Lane("work", rank)


def observation(number: int, path_ms: dict[Lane, float] | None = None) -> Observation:
    """One iteration, 100 ms when regular; with `path_ms` an irregular one."""
    if path_ms is None:
        return Observation(number, 100 * MS, 100 * MS, 1000 + number, None)
    path = {lane: ms * MS for lane, ms in path_ms.items()}
    slow = {lane: LaneExcess(ns, MS, 1000.0, 1e6) for lane, ns in path.items() if lane.kind == "pair"}
    healthy = {Lane("pair", a, b): LaneExcess(0.0, MS, 1000.0, 1e6) for a, b in ((1, 2), (0, 3), (0, 2))}
    pieces = {lane: Piece(lane, max(lane.first, 0), 0, 1, ns + MS, MS) for lane, ns in path.items()}
    attribution = Attribution(number, path, pieces, {**healthy, **slow}, {})
    return Observation(number, 100 * MS + sum(path.values()), 100 * MS, 1000 + number, attribution)


Step = dict[Lane, float] | None


def late(rank: int, ms: float = 50.0) -> Step:
    return {work(rank): ms}
