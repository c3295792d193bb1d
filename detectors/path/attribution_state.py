"""Attributions as JSON values, for snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.nics.steadiness import Swing
from irregulars.detectors.path.critical_path import Attribution, Piece


def attribution_to_state(attribution: Attribution) -> dict[str, Any]:
    """Turn into JSON values."""
    return {
        "iteration": attribution.iteration,
        "path": [[*lane, ns] for lane, ns in attribution.path_excess_ns.items()],
        "pieces": [[*lane, *piece[1:]] for lane, piece in attribution.pieces.items()],
        "lanes": [[*lane, *excess] for lane, excess in attribution.lanes.items()],
        "work": [[rank, ns] for rank, ns in attribution.work_excess_ns.items()],
        "incomplete": sorted(attribution.incomplete),
        "excess_ns": attribution.excess_ns,
        "rates": [[rank, *rates] for rank, rates in attribution.rates.items()],
        "swings": [[*swing] for swing in attribution.swings],
    }


def attribution_from_state(state: Mapping[str, Any]) -> Attribution:
    """Restore."""
    return Attribution(
        iteration=state["iteration"],
        path_excess_ns={Lane(*row[:3]): row[3] for row in state["path"]},
        pieces={Lane(*row[:3]): Piece(Lane(*row[:3]), *row[3:]) for row in state["pieces"]},
        lanes={Lane(*row[:3]): LaneExcess(*row[3:]) for row in state["lanes"]},
        work_excess_ns=dict(state["work"]),
        incomplete=frozenset(state["incomplete"]),
        excess_ns=state["excess_ns"],
        rates={rank: (tx, rx) for rank, tx, rx in state["rates"]},
        swings=tuple(Swing(*swing) for swing in state["swings"]),
    )
