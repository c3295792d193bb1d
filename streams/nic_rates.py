"""Peak rates of the NICs in one iteration, against what is usual for them or for their peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from detectors.capped_rates import Rates, relative_peaks, usual_peaks
from detectors.topology import Topology
from streams.iteration_rows import IterationRows

Array = np.ndarray


def rates_against_usual(rows: IterationRows, usual: Sequence[IterationRows]) -> Rates:
    """Divide the peak rates by the typical ones of regular iterations."""
    if not np.isfinite(rows.columns["nic_tx_peak"]).any():
        return {}
    peaks = [_peaks(one.columns) for one in usual]
    return relative_peaks(*_peaks(rows.columns), usual_peaks(*map(np.concatenate, zip(*peaks, strict=True))))


def rates_against_stage(rows: IterationRows, topology: Topology) -> Rates:
    """Divide the peak rates by the typical ones of the same stage."""
    rank, tx, rx = _peaks(rows.columns)
    stage = topology.stages(rank)
    typical = usual_peaks(stage, tx, rx)
    usual = {one: typical[own] for one, own in zip(rank.tolist(), stage.tolist(), strict=True) if own in typical}
    return relative_peaks(rank, tx, rx, usual)


def _peaks(columns: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    return columns["rank"], columns["nic_tx_peak"], columns["nic_rx_peak"]
