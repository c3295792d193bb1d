"""Whether evidence alone shows that a large job may have a standing fault, and whom to read to find it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.blame.slow_switches import lanes_of_slow_switch
from irregulars.detectors.blame.standing_causes import late_against_stage
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.detectors.path.ranks_to_read import LaneSums, ends_of, lane_sums, lanes_by_role

Array = np.ndarray

_ODD_SHARE: Final = 0.5
"""Something is odd if it may cost this share of what δ allows."""

_MOST_ODD: Final = 16
_PEERS: Final = 16  # of each stage: more than the ranks of a host, so that a slow host is odd among them


class ToReview(NamedTuple):
    """Whether there is anything odd; the ranks to begin with; and the peers to hold them against."""

    is_odd: bool
    ranks: set[int]
    peers: set[int]


def ranks_to_review(
    rows: Sequence[IterationRows], codes: Mapping[str, int], topology: Topology, delta: float
) -> ToReview:
    """Look through regular iterations: late ranks, slow lanes and heavy stages, against peers."""
    worth_ns = _ODD_SHARE * (delta - 1) * median(one.elapsed_ns for one in rows)
    late = [late_of(one, topology, rows) for one in rows]
    sums = [lane_sums(one.summaries(codes)) for one in rows]
    odd = _odd_ranks(late, worth_ns)
    roles = [lanes_by_role(one, topology) for one in sums]
    slow = _slow_lanes(sums, roles, worth_ns)
    below = lanes_of_slow_switch(sums, roles, topology)
    is_uneven = median(max(one.values(), default=0.0) for one in late) > worth_ns
    is_odd = bool(odd or slow or below) or is_uneven or _has_heavy_stage(rows, topology, worth_ns)
    slowest = int(rows[-1].columns["rank"][np.argmax(rows[-1].columns["elapsed_ns"])])
    oddest = list(dict.fromkeys([*odd, *_ends_in_order(slow, topology)]))[:_MOST_ODD]
    ranks = {slowest, *oddest, *ends_of(below, topology)}
    return ToReview(is_odd, ranks, _some_of_each_stage(rows[-1], topology))


def _ends_in_order(lanes: Sequence[Lane], topology: Topology) -> list[int]:
    return [rank for lane in lanes for rank in sorted(ends_of([lane], topology))]


def late_of(rows: IterationRows, topology: Topology, others: Iterable[IterationRows] = ()) -> dict[int, float]:
    """By how much each rank works longer than its stage, ns; ``others``: iterations that lost other rows."""
    columns = rows.columns
    most = _most_operators([rows, *others])[columns["rank"]]
    return late_against_stage(columns["rank"], columns["work_ns"], columns["operators"], topology, most)


def _most_operators(iterations: Sequence[IterationRows]) -> Array:
    """By rank: how many operators it logged at most in one of some iterations."""
    rank, operators = (np.concatenate([one.columns[name] for one in iterations]) for name in ("rank", "operators"))
    most = np.zeros(int(rank.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(most, rank, operators)
    return most


def _odd_ranks(late: Sequence[Mapping[int, float]], worth_ns: float) -> list[int]:
    """Ranks whose median lateness matters, the latest first."""
    typical = {rank: median(one.get(rank, 0.0) for one in late) for rank in late[-1]}
    return sorted((r for r, ns in typical.items() if ns > worth_ns), key=lambda r: -typical[r])[:_MOST_ODD]


def _slow_lanes(
    iterations: Sequence[LaneSums], roles: Sequence[Sequence[Sequence[Lane]]], worth_ns: float
) -> list[Lane]:
    """Lanes that always lose so much to the lower median of those in the same role, the slowest ones."""
    excess: dict[Lane, list[float]] = {}
    for sums, of_role in zip(iterations, roles, strict=True):
        for lanes in of_role:
            own = sorted((sums.mean_ns[lane] * sums.counts[lane], lane) for lane in lanes)
            usual_ns = own[(len(own) - 1) // 2][0]
            for ns, lane in own:
                excess.setdefault(lane, []).append(ns - usual_ns)
    typical = {lane: median(own) for lane, own in excess.items() if max(own) > worth_ns}
    return sorted((lane for lane, ns in typical.items() if ns > worth_ns), key=lambda lane: -typical[lane])[
        :_MOST_ODD
    ]


def _has_heavy_stage(rows: Sequence[IterationRows], topology: Topology, worth_ns: float) -> bool:
    excess = []
    for one in rows:
        stage = topology.stages(one.columns["rank"])
        work = [float(np.median(one.columns["work_ns"][stage == number])) for number in np.unique(stage)]
        excess.append(max(work) - median(work) if len(work) > 1 else 0.0)
    return median(excess) > worth_ns


def _some_of_each_stage(rows: IterationRows, topology: Topology) -> set[int]:
    rank = rows.columns["rank"]
    stage = topology.stages(rank)
    peers: set[int] = set()
    for number in np.unique(stage):
        own = rank[stage == number]
        peers.update(own[np.linspace(0, len(own) - 1, min(_PEERS, len(own))).astype(np.int64)].tolist())
    return peers
