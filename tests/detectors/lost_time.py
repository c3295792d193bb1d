"""Iterations that lost time, made up lane by lane in milliseconds, and the causes found in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irregulars.detectors.blame.causes import find_causes
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.path.critical_path import Attribution, Piece

MS = 1e6
WORK = [Lane("work", rank) for rank in range(6)]
WORLD, TP0 = Lane("collective", 0), Lane("collective", 1)
MEMBERS = {0: (0, 1, 2, 3, 4, 5), 1: (0, 1)}
APART = Topology(6, {rank: Place(f"h{rank}", 0, "eth0") for rank in range(6)}, MEMBERS)
TWO_EACH = Topology(6, {rank: Place(f"h{rank // 2}", rank % 2, f"nic{rank % 2}") for rank in range(6)}, MEMBERS)


def pair(source: int, target: int) -> Lane:
    return Lane("pair", source, target)


def seen(
    iteration: int,
    path: Mapping[Lane, float],
    lanes: Mapping[Lane, float] | None = None,
    work: Mapping[int, float] | None = None,
) -> Attribution:
    """Excesses in ms; `lanes` of transfers usually take 10 ms, give or take 10 µs."""
    path_ns = {lane: ns * MS for lane, ns in path.items()}
    return Attribution(
        iteration=iteration,
        path_excess_ns=path_ns,
        pieces={lane: Piece(lane, 0, 0, 0, ns, 0.0) for lane, ns in path_ns.items()},
        lanes={lane: LaneExcess(ns * MS, 10 * MS, 10_000.0, 1e6) for lane, ns in (lanes or {}).items()},
        work_excess_ns={rank: ns * MS for rank, ns in (work or {}).items()},
    )


def always(count: int, *what: Mapping[Lane, float] | Mapping[int, float]) -> list[Attribution]:
    return [seen(number, *what) for number in range(count)]  # type: ignore[arg-type]


def named(attributions: Sequence[Attribution], topology: Topology = APART) -> list[tuple[str, str, tuple[int, ...]]]:
    causes = find_causes(attributions, topology)
    return [(c.kind, c.suspects[0][0].kind, c.suspects[0][0].ranks) for c in causes if c.suspects]
