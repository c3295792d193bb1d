"""How the NICs moved in one iteration: their peaks against what is usual, and how steady they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from detectors.bandwidth_alone import attribute_by_bandwidth
from detectors.capped_rates import Rates, relative_peaks, usual_peaks
from detectors.critical_path import Attribution
from detectors.steady_rates import WHOLE, swings_of
from detectors.topology import Topology
from streams.iteration_rows import IterationRows
from streams.records import UNKNOWN

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


def with_swings(attribution: Attribution, rows: IterationRows, codes: Mapping[str, int]) -> Attribution:
    """Add how steadily the NICs moved while operators of the path's communicators ran."""
    if not len(rows.patterns.get("share", ())):
        return attribution
    slow = {lane.first for lane, ns in attribution.path_excess_ns.items() if lane.kind == "collective" and ns > 0}
    return replace(attribution, swings=swings_of(rows.behaviour(codes), slow))


def has_timed_operators(rows: IterationRows) -> bool:
    """Whether any rank has an operator with a time: otherwise only samples of the NICs can tell anything."""
    return bool((rows.columns["last_end_ns"] != UNKNOWN).any())


def attribute_rates(
    rows: IterationRows, usual_ns: float, usual: Sequence[IterationRows], topology: Topology
) -> Attribution:
    """Say by the rates of the NICs alone where an iteration's time went."""
    codes = dict.fromkeys(rows.names, 0)  # of communicators, which nobody asks for
    swings = swings_of(rows.behaviour(codes), {WHOLE}) if len(rows.patterns.get("share", ())) else ()
    rates = rates_against_usual(rows, usual)
    return attribute_by_bandwidth(rows.number, rows.elapsed_ns, usual_ns, swings, rates, topology)


def _peaks(columns: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    return columns["rank"], columns["nic_tx_peak"], columns["nic_rx_peak"]
