"""How NICs sent and received in one iteration: their peak rates against the usual ones, and how steady they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from irregulars.detectors.blame.nic_ends import attribute_by_bandwidth
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.iteration_rows import IterationRows
from irregulars.detectors.nics.peak_caps import relative_peaks, usual_peaks
from irregulars.detectors.nics.steadiness import WHOLE, Peaks, swings_of
from irregulars.detectors.path.critical_path import Attribution
from irregulars.dtypes import Column, Floats, Ints


def usual_rates(usual: Sequence[IterationRows]) -> Peaks:
    """Return the typical peak rates of each rank's NIC in regular iterations."""
    peaks = [_peaks(one.columns) for one in usual]
    return usual_peaks(*map(np.concatenate, zip(*peaks, strict=True))) if peaks else {}


def stage_rates(rows: IterationRows, topology: Topology) -> Peaks:
    """Return for each rank the typical peak rates of its stage in an iteration."""
    rank, tx, rx = _peaks(rows.columns)
    stage = topology.stages(rank)
    typical = usual_peaks(stage, tx, rx)
    return {one: typical[own] for one, own in zip(rank.tolist(), stage.tolist(), strict=True) if own in typical}


def with_rates(attribution: Attribution, rows: IterationRows, usual: Peaks, codes: Mapping[str, int]) -> Attribution:
    """Add the peak rates of the NICs, and how steady their rates were while the path's slow communicators ran.

    Where no operator has a start time, the iteration as a whole takes their place.

    `usual`: the peak rates with which both are compared. `codes`: the job's code of each communicator.
    """
    if not np.isfinite(rows.columns["nic_tx_peak"]).any():
        return attribution
    slow = {lane.first for lane, ns in attribution.path_excess_ns.items() if lane.kind == "collective" and ns > 0}
    return replace(
        attribution,
        rates=relative_peaks(*_peaks(rows.columns), usual),
        swings=swings_of(rows.behaviour(codes), {WHOLE} if rows.is_untimed else slow, usual),
    )


def has_operators(rows: IterationRows) -> bool:
    """Whether any rank logged an operator: otherwise only samples of the NICs can show anything."""
    return bool(rows.columns["operators"].any())


def attribute_rates(rows: IterationRows, usual_ns: float, usual: Peaks, topology: Topology) -> Attribution:
    """Return where an iteration's time went, by the rates of the NICs alone."""
    codes = dict.fromkeys(rows.names, 0)  # any will do: only the iteration as a whole is looked at
    swings = swings_of(rows.behaviour(codes), {WHOLE}, usual) if rows.has_patterns else ()
    return attribute_by_bandwidth(rows.number, rows.elapsed_ns, usual_ns, swings, topology)


def _peaks(columns: Mapping[str, Column]) -> tuple[Ints, Floats, Floats]:
    return columns["rank"], columns["nic_tx_peak"], columns["nic_rx_peak"]
