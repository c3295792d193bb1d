"""Read operators back and say where an irregular iteration's time went, with as little reading as that takes.

A small job is read whole. Of a large one only those ranks are read on which the critical path can depend
(`detectors.path.ranks_to_read`), in the irregular iteration and in the regular ones that show what is usual; and an
iteration which looks like another one of the same incident need not be read at all (`detectors.path.same_incident`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from irregulars.detectors.abnormal_operators.replay import abnormal_ratios
from irregulars.detectors.blame.what_if import WhatIf
from irregulars.detectors.job.clocks import Clocks, estimate_clocks
from irregulars.detectors.job.measured_time import logged_resolutions_ns
from irregulars.detectors.job.pipelines import stages_from_transfers
from irregulars.detectors.job.topology import Topology, topology_of
from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.detectors.judging.reading.operator_rows import NO_OPERATORS, gather_rows, joined
from irregulars.detectors.judging.reading.path_reading import PathReading
from irregulars.detectors.judging.reading.spans import ReadBack, spans_of
from irregulars.detectors.judging.reading.usual_operators import MOST_REPLAYED_ROWS, UsualOperators
from irregulars.detectors.path.critical_path import Attribution, attribute, slow_collectives
from irregulars.detectors.path.operator_graph import OperatorGraph, build_graph
from irregulars.detectors.path.ranks_to_read import Summaries, accused_lanes, lane_sums, lanes_beside, wanted_ranks
from irregulars.detectors.path.without_start_times import Work, attribute_untimed, find_waits
from irregulars.streams.messages.announcements import Announcement
from irregulars.streams.messages.records import RECV, UNKNOWN

Array = np.ndarray
Announcements = Mapping[int, Announcement]

WHOLE_RANKS: Final = 512
"""Jobs of up to so many ranks are read whole."""

REFERENCE_ITERATIONS: Final = 6
"""So many regular iterations show what is usual in a job that is not read whole."""

_MOST_RANKS: Final = 512
_MOST_ROUNDS: Final = 12


@dataclass(slots=True)
class Traffic:
    """Operators that the job ran, and those in batches that were read back: the share of the log that moved again."""

    flowed: int = 0
    read: int = 0

    @property
    def read_share(self) -> float:
        """Share of the log that was read back; 0 where nothing flowed."""
        return self.read / self.flowed if self.flowed else 0.0


class OperatorReader:
    """What is known of a job from its operators.

    Parameters
    ----------
    codes
        The job's code of each communicator id seen so far.
    """

    def __init__(self, codes: Mapping[str, int] | None = None) -> None:
        self.traffic = Traffic()
        self.codes: dict[str, int] = dict(codes or {})
        self.clocks = Clocks()  # by how much each rank's clock is ahead, where clocks differ
        self._topology: Topology | None = None
        self._announcements: Announcements = {}
        self._usual: UsualOperators | None = None
        self.stages: dict[int, int] = {}  # told from transfers, where no pipeline was announced

    # --- what is known of the job -----------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """Ranks and communicators, as announced."""
        assert self._topology is not None
        return self._topology

    @property
    def announcements(self) -> Announcements:
        """What ranks said of themselves."""
        return self._announcements

    def know(self, announcements: Announcements) -> None:
        """Take in what ranks said of themselves."""
        if self._topology is None or len(self._topology.places) != len(announcements):
            self._announcements = announcements
            self._encode({c.id for a in announcements.values() for c in a.communicators})
            self._draw()

    def _encode(self, names: set[str]) -> None:
        """Give codes to communicators in the order of their ids, so that no order of arrival shows in a verdict."""
        new = sorted(names - self.codes.keys())
        self.codes |= {name: len(self.codes) + at for at, name in enumerate(new)}
        if new and self._topology is not None:
            self._draw()

    def _draw(self) -> None:
        announced = topology_of(self._announcements.values(), self.codes)
        self._topology = announced if announced.stage_of else replace(announced, stage_of=self.stages)

    def infer_stages(self, rows: IterationRows) -> None:
        """Find the pipeline stages of a job that announced none, from who received from whom."""
        if self.topology.stage_of:
            return
        self._encode(set(rows.names))
        counts = _transfer_counts(rows.summaries(self.codes), self.topology)
        self.stages = stages_from_transfers(counts, self.topology.members.values())
        if self.stages:
            self._draw()

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, iterations: Sequence[IterationRows], read_back: ReadBack) -> dict[str, Array]:
        """Read all operators of some ranks and iterations."""
        batches = read_back(spans_of(iterations))
        self.traffic.read += sum(map(len, batches))
        self._encode({name for batch in batches for name in batch.header.names})
        return gather_rows(batches, self.codes, {pair: span for rows in iterations for pair, span in rows.spans()})

    def build(self, iterations: Sequence[IterationRows], columns: Mapping[str, Array]) -> OperatorGraph:
        """Build the graph on the common clock."""
        clocks, start_ns = self.clocks, columns["start_ns"]
        if clocks.ahead_ns:
            columns = {**columns, "resolution_ns": logged_resolutions_ns(columns)}
            start_ns = np.where(start_ns == UNKNOWN, UNKNOWN, start_ns - clocks.ahead(columns["rank"], start_ns))
        entries = {pair: ns - clocks.ahead_of(pair[0], ns) for rows in iterations for pair, ns in rows.entries()}
        return build_graph({**columns, "start_ns": start_ns}, entries)

    def compare_clocks(self, columns: Mapping[str, Array]) -> None:
        """Find by how much each rank's clock is ahead, unless all share one."""
        if all(a.clock == "shared" for a in self._announcements.values()):
            self.clocks = Clocks()
            return
        host_of = {rank: a.host or f"rank {rank}" for rank, a in self._announcements.items()}
        self.clocks = estimate_clocks(columns, host_of)

    # --- where the time went ----------------------------------------------------------------------------------------

    @property
    def has_usual(self) -> bool:
        """Whether it is known what is usual."""
        return self._usual is not None

    def forget_usual(self) -> None:
        """What was usual is so no more."""
        self._usual = None

    def set_usual(self, iterations: Sequence[IterationRows], read_back: ReadBack) -> None:
        """Let these regular iterations say what is usual."""
        is_whole = len(iterations[-1]) <= WHOLE_RANKS
        self._usual = UsualOperators(
            list(iterations) if is_whole else list(iterations)[-REFERENCE_ITERATIONS:], is_whole=is_whole
        )
        if is_whole:
            self.learn({rank for rows in iterations for rank in rows.columns["rank"].tolist()}, read_back)

    def attribute(
        self, rows: IterationRows, matters_ns: float, read_back: ReadBack
    ) -> tuple[Attribution, OperatorGraph]:
        """Say where the excess of an iteration went; return that and the graph that says it.

        ``matters_ns``: the excess, or what matters if that is more. Small parts of it are not read for.
        """
        assert self._usual is not None
        if rows.is_untimed:
            return self._attribute_untimed(self._usual, rows, read_back), self.build([], NO_OPERATORS)
        if len(rows) <= WHOLE_RANKS:
            graph = self.build([rows], self.read([rows], read_back))
            return attribute(graph, rows.number, self._usual.reference(self.build)), graph
        return PathReading(self, self._usual, rows, matters_ns, read_back).attribute()

    def what_if(self, graph: OperatorGraph) -> WhatIf | None:
        """Return an iteration's graph as one that can be run again; None where operators say no time."""
        if self._usual is None or not len(graph):
            return None
        return WhatIf(graph, self._usual.reference(self.build), self.topology)

    def _attribute_untimed(self, usual: UsualOperators, rows: IterationRows, read_back: ReadBack) -> Attribution:
        """The same where operators do not say when they began; of large jobs nothing is read for it."""
        usual_ns = dict(zip(usual.work_ranks.tolist(), usual.work_ns.tolist(), strict=True))
        factor = max(usual.common_factor(rows), 1.0)  # waits inside overlapped operators look as if less were worked
        work = Work(rows.work_ns, usual_ns, factor)
        columns = self.read([rows], read_back) if len(rows) <= WHOLE_RANKS else NO_OPERATORS
        return attribute_untimed(find_waits(columns), rows.number, usual.untimed(), work)

    def abnormal_ratios(self, graph: OperatorGraph) -> Array | None:
        """How many times as long each operator took as without what was slow; None where that is not worth while."""
        pieces = None if self._usual is None else self._usual.pieces
        return None if pieces is None or len(graph) > MOST_REPLAYED_ROWS else abnormal_ratios(graph, pieces)

    def work_excess_ns(self, rows: IterationRows) -> dict[int, float]:
        """How much longer each rank worked than usual, by evidence alone, less what all did; ns."""
        assert self._usual is not None
        return self._usual.work_excess_ns(rows)

    def has_quick(self, rows: IterationRows, read: Attribution) -> bool:
        """Whether evidence alone shows that transfers which were slow when `read` was read are not slow any more."""
        assert self._usual is not None
        accused = accused_lanes(read, self.topology)
        ranks = {rank for lane in accused for rank in self.topology.lane_ranks(lane)}
        now = lane_sums(rows.only(ranks).summaries(self.codes))
        quick, _ = lanes_beside(now, self._usual.lanes(self.codes), ranks, self.topology)
        return not quick.keys().isdisjoint(accused)

    def follow(
        self, rows: IterationRows, seeds: Collection[int], worth_ns: float, read_back: ReadBack
    ) -> tuple[set[int], dict[str, Array]]:
        """Read the ranks on which the critical path can depend; return them and their operators."""
        summaries = rows.summaries(self.codes)
        available = set(rows.columns["rank"].tolist())
        read: set[int] = set()
        parts: list[dict[str, Array]] = []
        wanted = available.intersection(seeds)
        for _ in range(_MOST_ROUNDS):
            wanted = set(sorted(wanted)[: max(_MOST_RANKS - len(read), 0)])
            if not wanted:
                break
            parts.append(self.read([rows.only(wanted)], read_back))
            if self._usual is not None:
                self.learn(wanted, read_back)
            else:  # a path over clocks that differ by more than what it waited leads anywhere
                self.compare_clocks(joined(parts))
            read |= wanted
            graph = self.build([rows.only(read)], joined(parts))
            slow = None if self._usual is None else partial(self._slow_collectives, graph, rows.number, worth_ns)
            wanted = wanted_ranks(graph, rows.number, summaries, self.topology, available - read, worth_ns, slow)
        return read, joined(parts)

    def _slow_collectives(self, graph: OperatorGraph, iteration: int, worth_ns: float) -> set[int]:
        assert self._usual is not None
        return slow_collectives(graph, iteration, self._usual.reference(self.build), worth_ns)

    def learn(self, ranks: Collection[int], read_back: ReadBack) -> None:
        """Read what is usual of these ranks too."""
        usual = self._usual
        assert usual is not None
        new = set(ranks) - usual.ranks
        if not new:
            return
        usual.add(new, self.read([rows.only(new) for rows in usual.iterations], read_back))
        self.compare_clocks(usual.columns)


def _transfer_counts(summaries: Summaries, topology: Topology) -> dict[tuple[int, int], int]:
    """How often each sender, receiver pair was used, in communicators of which nobody said what they are for."""
    is_recv = summaries.operator == RECV
    counts: dict[tuple[int, int], int] = {}
    columns = (summaries.peer, summaries.rank, summaries.communicator, summaries.counts)
    for sender, receiver, communicator, count in zip(*(c[is_recv].tolist() for c in columns), strict=True):
        if topology.kinds.get(communicator, "unknown") in ("unknown", "world"):
            counts[sender, receiver] = counts.get((sender, receiver), 0) + count
    return counts
