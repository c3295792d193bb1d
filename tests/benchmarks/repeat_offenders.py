"""Which nodes fail again: ranks nodes by their past faults, and counts which of the later faults the first tenth has.

    python -m tests.benchmarks.repeat_offenders FAULT_TRACE.JSON

The file is ``fault_trace.json`` of stepfun-ai/InfiniteHBD-Trace (Apache-2.0; SIGCOMM 2025): 584 faults of 400 nodes
in 348 days. The half-life with which faults are forgotten is chosen on the first half of the days, and judged on the
second. On 27 November 2026: 7 days; the first tenth of the nodes held 23 % of the faults of the next 30 days (10 % by
chance, 15 % without forgetting), and the area under the curve was 0.614.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

NODES = 400  # of the trace; 169 of them had no fault
DAYS, HORIZON, STEP = 348, 30, 15  # a ranking every 15 days, held against the faults of the 30 days after it
FIRST = 60  # days of history before the first ranking
HALF_LIVES = (7.0, 15.0, 30.0, 60.0, 90.0, float("inf"))


class Score(NamedTuple):
    """How well rankings foretell: means over the days on which nodes were ranked."""

    area: float  # under the receiver's curve: nodes that fail again before those that do not; 0.5 by chance
    in_first_tenth: float  # share of the later faults on the first tenth of the nodes; 0.1 by chance
    rankings: int


def faults_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the days of the faults, and a number for the node of each."""
    events = json.loads(path.read_text())
    begun = sorted((one["event_time"], one["node_id"]) for one in events if one["event_type"] == "fault_start")
    numbers = {node: number for number, node in enumerate(sorted({node for _, node in begun}))}
    return np.array([day for day, _ in begun]), np.array([numbers[node] for _, node in begun])


def score(day: np.ndarray, node: np.ndarray, half_life: float, ranked_on: Iterable[int]) -> Score:
    """Rank the nodes on each of some days by their faults so far, older ones counting less."""
    areas, shares = [], []
    for today in ranked_on:
        past, later = day < today, (day >= today) & (day < today + HORIZON)
        weight = np.bincount(node[past], 0.5 ** ((today - day[past]) / half_life), NODES)
        faults = np.bincount(node[later], minlength=NODES)
        areas.append(_area(weight, faults > 0))
        first = np.argsort(-weight, kind="stable")[: NODES // 10]
        shares.append(faults[first].sum() / faults.sum())
    return Score(float(np.mean(areas)), float(np.mean(shares)), len(areas))


def _area(weight: np.ndarray, fails: np.ndarray) -> float:
    _, place, counts = np.unique(weight, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place]
    own, others = int(fails.sum()), int((~fails).sum())
    return float((rank[fails].sum() - own * (own + 1) / 2) / (own * others))


def main(arguments: Sequence[str]) -> None:
    day, node = faults_of(Path(arguments[0]))
    middle = DAYS // 2
    chosen_on, judged_on = range(FIRST, middle - HORIZON + 1, STEP), range(middle, DAYS - HORIZON + 1, STEP)
    best = max(HALF_LIVES, key=lambda half_life: score(day, node, half_life, chosen_on).in_first_tenth)
    print(f"{len(day)} faults on {len(set(node.tolist()))} of {NODES} nodes; half-life chosen: {best:g} days")
    print("| half-life, days | area, days to choose | area, days to judge | later faults in the first tenth |")
    print("|---|---|---|---|")
    for half_life in HALF_LIVES:
        chosen, judged = (score(day, node, half_life, days) for days in (chosen_on, judged_on))
        print(f"| {half_life:g} | {chosen.area:.3f} | {judged.area:.3f} | {judged.in_first_tenth:.0%} |")


if __name__ == "__main__":
    main(sys.argv[1:])
