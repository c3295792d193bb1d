"""Read the part of one suspect iteration of a large job on which its critical path can depend."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import TYPE_CHECKING

import numpy as np

from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.detectors.judging.reading.operator_rows import joined
from irregulars.detectors.judging.reading.spans import ReadBack
from irregulars.detectors.judging.reading.thresholds import READING
from irregulars.detectors.judging.reading.usual_operators import UsualOperators
from irregulars.detectors.path.critical_path import Attribution, attribute
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.detectors.path.ranks_to_read import (
    accused_lanes,
    beside,
    devices_of,
    ends_of,
    is_known,
    lane_sums,
    lanes_beside,
    narrow_groups,
)
from irregulars.dtypes import Column

if TYPE_CHECKING:
    from irregulars.detectors.judging.reading.operator_reader import OperatorReader


class PathReading:
    """One iteration of a large job, of which no more is read than it takes to explain it.

    Parameters
    ----------
    reader, usual
        Reads operators and knows the job; and what is usual of it.
    rows, matters_ns
        The iteration, and the excess that is to be explained, ns.
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
        self._worth_ns = READING.wait_share * matters_ns
        self._common_factor = usual.common_factor(rows)
        self._available = set(rows.columns["rank"].tolist())

    def attribute(self) -> tuple[Attribution, OperatorGraph]:
        """Say where the excess went; return that and the graph that shows it."""
        work_ns = self._usual.work_excess_ns(self._rows)
        seeds = _seeds(self._rows, work_ns, self._usual.complete_ranks(self._rows))
        read, columns = self._reader.follow([self._rows], seeds, self._worth_ns, self._read_back)
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

    def _attribute(self, read: set[int], columns: dict[str, Column]) -> tuple[OperatorGraph, Attribution]:
        graph = self._reader.build_now(self._rows.only(read), columns)
        reference = self._usual.reference(self._reader.build)
        return graph, attribute(graph, self._rows.number, reference, self._common_factor)

    def _beside(self, accused: Sequence[Lane], read: set[int]) -> tuple[dict[Lane, LaneExcess], set[int]]:
        """Compare the accused lanes with those of the same devices.

        Returns
        -------
        The lanes that evidence alone shows to be as quick as usual; and the ranks to read to know the others.
        """
        topology, codes = self._reader.topology, self._reader.codes
        carried = devices_of(accused, topology)
        now = lane_sums(beside(self._rows.summaries(codes), carried, topology))
        quick, slow = lanes_beside(now, self._usual.lanes(codes, carried, topology), carried, topology)
        ends = {rank for lane in accused if lane.kind == "pair" for rank in topology.lane_ranks(lane)}
        more = ends_of([*slow, *narrow_groups(ends, topology)], topology)
        return quick, more.intersection(self._available) - read

    def _completed(
        self, attribution: Attribution, read: set[int], quick: Mapping[Lane, LaneExcess], work_ns: Mapping[int, float]
    ) -> Attribution:
        """Leave out lanes of which too few ranks were read, and add what evidence alone tells."""
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
    """Return the ranks to read first: the one that took longest, and those that worked longest over their usual.

    A rank that lost the operator in which it waited for the culprit looks as if it had worked all the while. Its
    partners would show that it had not, but they may never be read. So ranks that lost nothing go first.

    Parameters
    ----------
    work_excess_ns
        For each rank how much longer than usual it worked, ns.
    complete
        Ranks that lost no operator.
    """
    slowest = int(rows.columns["rank"][np.argmax(rows.columns["elapsed_ns"])])
    latest = nsmallest(
        READING.first_ranks, work_excess_ns, key=lambda rank: (rank not in complete, -work_excess_ns[rank], rank)
    )
    return {slowest, *latest}
