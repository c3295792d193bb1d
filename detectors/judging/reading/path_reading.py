"""Read one irregular iteration of a large job as far as its critical path can depend on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.detectors.judging.reading.operator_rows import joined
from irregulars.detectors.judging.reading.spans import ReadBack
from irregulars.detectors.judging.reading.usual_operators import UsualOperators
from irregulars.detectors.path.critical_path import Attribution, attribute
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.detectors.path.ranks_to_read import (
    accused_lanes,
    devices_of,
    ends_of,
    is_known,
    lane_sums,
    lanes_beside,
    narrow_groups,
)

if TYPE_CHECKING:
    from irregulars.detectors.judging.reading.operator_reader import OperatorReader

Array = np.ndarray

_WORTH_SHARE: Final = 0.05  # of what is to be explained: a wait that may cost less is not looked into
_LATEST: Final = 2  # ranks that work longest over their usual are read at once


class PathReading:
    """One iteration of a large job, read as far as it takes.

    Parameters
    ----------
    reader, usual
        What is known of the job.
    rows, matters_ns
        The iteration, and how much of its time is to be explained.
    read_back
        Where operators are read from.
    """

    def __init__(
        self,
        reader: OperatorReader,
        usual: UsualOperators,
        rows: IterationRows,
        matters_ns: float,
        read_back: ReadBack,
    ) -> None:
        self._reader, self._usual, self._rows, self._read_back = reader, usual, rows, read_back
        self._worth_ns = _WORTH_SHARE * matters_ns
        self._common_factor = usual.common_factor(rows)
        self._available = set(rows.columns["rank"].tolist())

    def attribute(self) -> tuple[Attribution, OperatorGraph]:
        """Say where the excess went; return that and the graph that says it."""
        work_ns = self._usual.work_excess_ns(self._rows)
        seeds = _seeds(self._rows, work_ns, self._usual.complete_ranks(self._rows))
        read, columns = self._reader.follow(self._rows, seeds, self._worth_ns, self._read_back)
        graph, attribution = self._attribute(read, columns)
        accused = accused_lanes(attribution, self._reader.topology)
        quick: dict[Lane, LaneExcess] = {}
        if accused:
            quick, more = self._beside(accused, read)
            if more:
                columns = joined([columns, self._reader.read([self._rows.only(more)], self._read_back)])
                self._reader.learn(more, self._read_back)
                read |= more
                graph, attribution = self._attribute(read, columns)
        return self._completed(attribution, read, quick, work_ns), graph

    def _attribute(self, read: set[int], columns: dict[str, Array]) -> tuple[OperatorGraph, Attribution]:
        graph = self._reader.build([self._rows.only(read)], columns)
        reference = self._usual.reference(self._reader.build)
        return graph, attribute(graph, self._rows.number, reference, self._common_factor)

    def _beside(self, accused: Sequence[Lane], read: set[int]) -> tuple[dict[Lane, LaneExcess], set[int]]:
        """Lanes beside the accused ones that were quick, and whom else to read to know the others."""
        topology, codes = self._reader.topology, self._reader.codes
        carried = devices_of(accused, topology)
        now = lane_sums(self._rows.summaries(codes))
        quick, slow = lanes_beside(now, self._usual.lanes(codes), carried, topology)
        ends = {rank for lane in accused if lane.kind == "pair" for rank in topology.lane_ranks(lane)}
        more = ends_of([*slow, *narrow_groups(ends, topology)], topology)
        return quick, more.intersection(self._available) - read

    def _completed(
        self, attribution: Attribution, read: set[int], quick: Mapping[Lane, LaneExcess], work_ns: Mapping[int, float]
    ) -> Attribution:
        """Leave out lanes which too few ranks were read of, and add what evidence alone tells."""
        unread = self._available - read
        known = {
            lane: one
            for lane, one in attribution.lanes.items()
            if is_known(lane, read, unread, self._reader.topology)
        }
        return replace(
            attribution,
            lanes={**quick, **known},
            work_excess_ns={**work_ns, **attribution.work_excess_ns},
            incomplete=attribution.incomplete & read,
        )


def _seeds(rows: IterationRows, work_excess_ns: Mapping[int, float], complete: Collection[int]) -> set[int]:
    """Where to begin: the rank that took longest, and those that worked longest over their usual.

    A rank that lost the operator in which it waited for the culprit looks as if it had worked all the while, and its
    partners, who know better, need not be read. So those that lost nothing go first.
    """
    slowest = int(rows.columns["rank"][np.argmax(rows.columns["elapsed_ns"])])
    latest = sorted(work_excess_ns, key=lambda rank: (rank not in complete, -work_excess_ns[rank], rank))[:_LATEST]
    return {slowest, *latest}
