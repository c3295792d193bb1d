"""Which nodes fail again: those ranked by their past faults, held against the faults of the days after each ranking.

    python -m tests.benchmarks.repeat_offenders fault_trace.json    # of github.com/stepfun-ai/InfiniteHBD-Trace

584 faults of 400 nodes in 348 days (Apache-2.0; SIGCOMM 2025). The half-life with which a fault is forgotten is
chosen on the first half of the days and judged on the second; the question `repeat_offenders` has the chosen one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tests.benchmarks.markdown import table

NODES, DAYS = 400, 348  # of the trace; 169 nodes had no fault
FIRST, STEP, HORIZON = 60, 15, 30  # days: before the first ranking, between rankings, and held against each
HALF_LIVES = (7.0, 30.0, 90.0, float("inf"))


def score(day: np.ndarray, node: np.ndarray, half_life: float, ranked_on: Iterable[int]) -> tuple[float, float]:
    """Return the area under the curve (0.5 by chance), and the share of later faults on the first tenth (0.1)."""
    areas, shares = [], []
    for today in ranked_on:
        past, later = day < today, (day >= today) & (day < today + HORIZON)
        weight = np.bincount(node[past], 0.5 ** ((today - day[past]) / half_life), NODES)
        faults = np.bincount(node[later], minlength=NODES)
        own, others = weight[faults > 0, None], weight[faults == 0]
        areas.append(np.mean((own > others) + (own == others) / 2))
        shares.append(faults[np.argsort(-weight, kind="stable")[: NODES // 10]].sum() / faults.sum())
    return float(np.mean(areas)), float(np.mean(shares))


def main(path: str) -> None:
    events = [one for one in json.loads(Path(path).read_text()) if one["event_type"] == "fault_start"]
    day = np.array([one["event_time"] for one in events])
    names, node = np.unique([one["node_id"] for one in events], return_inverse=True)
    halves = range(FIRST, DAYS // 2 - HORIZON + 1, STEP), range(DAYS // 2, DAYS - HORIZON + 1, STEP)
    chosen, judged = ({one: score(day, node, one, days) for one in HALF_LIVES} for days in halves)
    best = max(chosen, key=lambda one: chosen[one][1])
    print(f"{len(day)} faults on {len(names)} of {NODES} nodes; half-life chosen: {best:g} days\n")
    rows = [[f"{one:g}", *(f"{x:.3f}" for half in (chosen, judged) for x in half[one])] for one in HALF_LIVES]
    print("\n".join(table(["half-life, days", "area, to choose", "share", "area, to judge", "share"], rows)))


if __name__ == "__main__":
    main(*sys.argv[1:])
