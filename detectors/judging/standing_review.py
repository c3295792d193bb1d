"""Read regular iterations for a review, and hold them against peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.detectors.blame.standing_causes import Reviewed
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.nic_rates import stage_rates, with_rates
from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.detectors.judging.reading.operator_reader import OperatorReader
from irregulars.detectors.judging.reading.operator_rows import joined
from irregulars.detectors.judging.reading.spans import ReadBack
from irregulars.detectors.judging.review_candidates import ToReview, late_of
from irregulars.detectors.path.critical_path import Attribution, path_work_ns
from irregulars.detectors.path.usual_by_peers import attribute_by_peers
from irregulars.detectors.path.without_start_times import attribute_untimed_by_peers, find_waits
from irregulars.streams.messages.records import RECV

Array = np.ndarray

_WORTH_PART: Final = 10  # of what delta allows: a wait that costs less than a tenth of it is not looked into


def read_paths(
    rows: Sequence[IterationRows], found: ToReview, delta: float, reader: OperatorReader, read_back: ReadBack
) -> tuple[list[IterationRows], dict[str, Array]]:
    """Read the ranks on which the path of any of these iterations of a large job can depend, and their peers.

    Returns
    -------
    The iterations, of those ranks alone, and their operators.
    """
    paths = [  # of each: it need not be the same twice
        reader.follow(one, found.ranks, (delta - 1) * one.elapsed_ns / _WORTH_PART, read_back) for one in rows
    ]
    ranks = found.peers.union(*(read for read, _ in paths))
    more = [one.only(ranks - read) for one, (read, _) in zip(rows, paths, strict=True)]
    columns = joined([*(own for _, own in paths), reader.read(more, read_back)])
    return [one.only(ranks) for one in rows], columns


def look_at(rows: Sequence[IterationRows], columns: Mapping[str, Array], reader: OperatorReader) -> list[Reviewed]:
    """Say of each iteration where its time went beyond what peers take."""
    return (_by_durations if rows[-1].is_untimed else _by_paths)(rows, columns, reader)


def _by_paths(rows: Sequence[IterationRows], columns: Mapping[str, Array], reader: OperatorReader) -> list[Reviewed]:
    topology = reader.topology
    if not reader.has_usual:
        reader.compare_clocks(columns)
    graph = reader.build(rows, columns)
    beside = graph.is_worked_beside[graph.operator == RECV]
    beside_ratio = float(beside.mean()) if len(beside) else 0.0
    found = []
    for one in rows:
        attribution = _without_partial_lanes(attribute_by_peers(graph, one.number, topology), one, topology)
        attribution = with_rates(attribution, one, stage_rates(one, topology), reader.codes)
        found.append(
            Reviewed(
                one.period_ns,
                attribution,
                graph.own_work_ns(one.number),
                path_work_ns(graph, one.number),
                beside_ratio,
            )
        )
    return found


def _by_durations(
    rows: Sequence[IterationRows], columns: Mapping[str, Array], reader: OperatorReader
) -> list[Reviewed]:
    """The same of iterations whose operators do not say when they began."""
    topology, waits = reader.topology, find_waits(columns)
    found = []
    for one in rows:
        late_ns = late_of(one, topology, rows)
        attribution = attribute_untimed_by_peers(waits, one.number, one.work_ns, late_ns, topology)
        found.append(Reviewed(one.period_ns, attribution, one.work_ns, {}))
    return found


def _without_partial_lanes(attribution: Attribution, rows: IterationRows, topology: Topology) -> Attribution:
    """Leave out lanes of which not all ranks were read: who is missing may have come last, and not be slow at all."""
    known = topology.unlogged.union(rows.columns["rank"].tolist())
    lanes = {lane: own for lane, own in attribution.lanes.items() if known.issuperset(topology.lane_ranks(lane))}
    return replace(attribution, lanes=lanes)
