"""Read operators back and find where an irregular iteration's time went, with as little reading as that takes.

A small job is read whole. Of a large one only those ranks are read on which the critical path can depend
(`detectors.path.ranks_to_read`), in the irregular iteration and in the regular ones that show the usual values. An
iteration that looks like another one of the same incident need not be read at all (`carry_over`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest

import numpy as np

from irregulars.detectors.abnormal_operators.replay import abnormal_ratios
from irregulars.detectors.blame.what_if import WhatIf
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.clocks import Clocks, estimate_clocks, follow_clocks
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Topology, stages_from_transfers, topology_of
from irregulars.detectors.judging.iteration_rows import IterationRows, ReadBack, spans_of
from irregulars.detectors.judging.operator_rows import NO_OPERATORS, gather_rows, joined, on_one_clock
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.detectors.judging.usual_operators import UsualOperators
from irregulars.detectors.path.critical_path import Attribution, attribute, path_collectives, slow_collectives
from irregulars.detectors.path.lane_tables import left_first
from irregulars.detectors.path.operator_graph import OperatorGraph, build_graph
from irregulars.detectors.path.ranks_to_read import (
    accused_lanes,
    beside,
    devices_of,
    ends_of,
    is_known,
    lane_sums,
    lanes_beside,
    narrow_groups,
    wanted_ranks,
)
from irregulars.detectors.path.without_start_times import Work, attribute_untimed, find_waits
from irregulars.dtypes import Column, Floats
from irregulars.messages.announcements import Announcement
from irregulars.messages.records import RECV

Announcements = Mapping[int, Announcement]


@dataclass(slots=True)
class LogTraffic:
    """How much of a job's log was read back."""

    flowed: int = 0  # operators that the job has run
    read: int = 0  # operators in batches that were read back, each time they were


class OperatorReader:
    """Reads operators back, and keeps the job's communicators, stages, clocks and usual times, which they show."""

    def __init__(self) -> None:
        self.traffic = LogTraffic()
        self.codes: dict[str, int] = {}
        self.clocks = Clocks()  # how far each rank's clock is ahead, where clocks differ
        self._topology: Topology | None = None
        self._has_one_clock = True  # as far as ranks were announced
        self._announcements: Announcements = {}
        self._usual: UsualOperators | None = None
        self.stages: dict[int, int] = {}  # inferred from transfers, where no pipeline was announced

    # --- the job ----------------------------------------------------------------------------------------------------

    @property
    def topology(self) -> Topology:
        """Ranks and communicators, as announced."""
        assert self._topology is not None
        return self._topology

    @property
    def announcements(self) -> Announcements:
        """The announcement of each rank."""
        return self._announcements

    def set_announcements(self, announcements: Announcements) -> None:
        """Take in the announcements of all ranks that are known so far; they only ever become more."""
        # As many as before are the same ones; a topology is not rebuilt for each iteration.
        if self._topology is None or len(self._topology.places) != len(announcements):
            self._announcements = announcements
            self._has_one_clock = all(a.clock == "shared" for a in announcements.values())
            self._encode({c.id for a in announcements.values() for c in a.communicators})
            self._rebuild_topology()

    def _encode(self, names: set[str]) -> None:
        """Give codes to new communicators by the order of their ids: verdicts must not depend on who came first."""
        new = sorted(names - self.codes.keys())
        self.codes |= {name: len(self.codes) + at for at, name in enumerate(new)}
        if new and self._topology is not None:
            self._rebuild_topology()

    def _rebuild_topology(self) -> None:
        announced = topology_of(self._announcements.values(), self.codes)
        self._topology = announced if announced.stage_of else replace(announced, stage_of=self.stages)

    def infer_stages(self, rows: IterationRows) -> None:
        """Find the pipeline stages of a job that announced none, from who received from whom."""
        if self.topology.stage_of:
            return
        self._encode(set(rows.names))
        summaries, topology = rows.summaries(self.codes), self.topology
        is_recv = summaries.operator == RECV
        columns = (summaries.peer, summaries.rank, summaries.communicator, summaries.counts)
        counts: dict[tuple[int, int], int] = {}  # how often each sender sent to each receiver
        for sender, receiver, communicator, count in zip(*(c[is_recv].tolist() for c in columns), strict=True):
            # Messages inside announced tensor, data or expert groups do not cross pipeline stages.
            if topology.kinds.get(communicator, "unknown") in ("unknown", "world"):
                counts[sender, receiver] = counts.get((sender, receiver), 0) + count
        self.stages = stages_from_transfers(counts, topology.members.values())
        if self.stages:
            self._rebuild_topology()

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, iterations: Sequence[IterationRows], read_back: ReadBack) -> dict[str, Column]:
        """Read all operators of some ranks and iterations."""
        batches = read_back(spans_of(iterations))
        self.traffic.read += sum(map(len, batches))
        self._encode({name for batch in batches for name in batch.header.names})
        return gather_rows(batches, self.codes, {pair: span for rows in iterations for pair, span in rows.spans()})

    def build(
        self, iterations: Sequence[IterationRows], columns: Mapping[str, Column], clocks: Clocks | None = None
    ) -> OperatorGraph:
        """Build the graph on the common clock.

        `clocks`: None for those that regular iterations have shown, as far as these operators show how they have
        moved since.
        """
        if clocks is None:
            clocks = (
                self.clocks if self._has_one_clock else follow_clocks(self.clocks, columns, self._host_of(columns))
            )
        entries = {pair: ns - clocks.ahead_of(pair[0], ns) for rows in iterations for pair, ns in rows.entries()}
        return build_graph(on_one_clock(columns, clocks), entries)

    def clocks_of(self, columns: Mapping[str, Column]) -> Clocks:
        """Estimate by these operators how far each rank's clock is ahead, unless all share one."""
        return Clocks() if self._has_one_clock else estimate_clocks(columns, self._host_of(columns))

    def _host_of(self, columns: Mapping[str, Column]) -> dict[int, str]:
        """Return the host of each rank: a rank of unknown host, or without announcement, has a clock of its own."""
        ranks = {*np.unique(columns["rank"]).tolist(), *self.clocks.ahead_ns, *self._announcements}
        hosts = {rank: announcement.host for rank, announcement in self._announcements.items()}
        return {rank: hosts.get(rank) or f"rank {rank}" for rank in ranks}

    # --- where the time went ----------------------------------------------------------------------------------------

    @property
    def has_usual(self) -> bool:
        """Whether regular iterations were given that show the usual values."""
        return self._usual is not None

    def forget_usual(self) -> None:
        """Forget the usual values: they are learned anew when they are needed next."""
        self._usual = None

    def set_usual(self, iterations: Sequence[IterationRows], read_back: ReadBack) -> None:
        """Learn from these regular iterations the usual values."""
        is_whole = len(iterations[-1]) <= JUDGING.whole_ranks
        self._usual = UsualOperators(
            list(iterations) if is_whole else list(iterations)[-IRREGULAR.recent :],
            is_whole=is_whole,
        )
        if is_whole:
            self.learn({rank for rows in iterations for rank in rows.columns["rank"].tolist()}, read_back)

    def attribute(
        self, rows: IterationRows, matters_ns: float, read_back: ReadBack
    ) -> tuple[Attribution, OperatorGraph]:
        """Return where the excess of an iteration went, and the graph that shows it.

        `matters_ns`: the excess of the iteration or, if that is more, the least excess that matters, ns. Of large
        jobs nothing is read to explain a small part of it.
        """
        assert self._usual is not None
        is_whole = len(rows) <= JUDGING.whole_ranks
        if is_whole:  # also an iteration of a large job that few of its ranks deliver: theirs may not be learned yet
            self.learn(rows.columns["rank"].tolist(), read_back)
        if rows.is_untimed:
            # No operator has a start time; of large jobs nothing is read for it. Waits inside overlapped operators
            # look as if less were worked.
            usual = self._usual
            usual_ns = dict(zip(usual.work_ranks.tolist(), usual.work_ns.tolist(), strict=True))
            work = Work(rows.work_ns, usual_ns, max(usual.common_factor(rows), 1.0))
            columns = self.read([rows], read_back) if is_whole else NO_OPERATORS
            attribution = attribute_untimed(find_waits(columns), rows.number, usual.untimed(), work)
            return attribution, self.build([], NO_OPERATORS)
        if is_whole:
            graph = self.build([rows], self.read([rows], read_back))
            attribution = attribute(graph, rows.number, self._usual.reference(self.build))
        else:
            attribution, graph = PathReading(self, self._usual, rows, matters_ns, read_back).attribute()
        if self._has_one_clock:
            first = left_first(graph, rows.number, attribution.lanes, self.topology.members)
            attribution = replace(attribution, left_first=first)
        return attribution, graph

    def what_if(self, graph: OperatorGraph) -> WhatIf | None:
        """Return an iteration's graph as one that can be run again; None where operators have no times."""
        if self._usual is None or not len(graph):
            return None
        return WhatIf(graph, self._usual.reference(self.build), self.topology)

    def abnormal_ratios(self, graph: OperatorGraph) -> Floats | None:
        """Return how many times as long each operator took as it would have with nothing slow.

        None for large iterations, where that would cost as much as finding the culprit.
        """
        pieces = None if self._usual is None else self._usual.pieces
        return None if pieces is None or len(graph) > JUDGING.most_replayed_rows else abnormal_ratios(graph, pieces)

    def work_excess_ns(self, rows: IterationRows) -> dict[int, float]:
        """Return how much longer than usual each rank worked, less the factor that all have in common; ns.

        It is known by evidence alone.
        """
        assert self._usual is not None
        return self._usual.work_excess_ns(rows)

    def has_quick(self, rows: IterationRows, read: Attribution) -> bool:
        """Whether evidence alone shows that transfers accused by an earlier attribution are not slow any more."""
        assert self._usual is not None
        accused = accused_lanes(read, self.topology)
        if not accused:
            return False
        ranks = {rank for lane in accused for rank in self.topology.lane_ranks(lane)}
        now = lane_sums(rows.only(ranks).summaries(self.codes))
        quick, _ = lanes_beside(now, self._usual.lanes(self.codes, ranks, self.topology), ranks, self.topology)
        return not quick.keys().isdisjoint(accused)

    def follow(
        self, iterations: Sequence[IterationRows], seeds: Collection[int], worth_ns: float, read_back: ReadBack
    ) -> tuple[set[int], dict[str, Column]]:
        """Read the ranks on which the critical path of these iterations can depend; return them and their operators.

        The first ranks are read, the paths are walked as far as they show them, and the ranks that may have been
        waited for are read next, until each path is certain. All ranks are read in all of the iterations: one that
        was read for one of them may come last in another one, where it waited for somebody else.

        `seeds`: the ranks to begin with. `worth_ns`: waits at large collectives that may cost less are not followed,
        ns.
        """
        summaries = [rows.summaries(self.codes) for rows in iterations]
        available = set(iterations[-1].columns["rank"].tolist())
        read: set[int] = set()
        parts: list[dict[str, Column]] = []
        wanted = available.intersection(seeds)
        for _ in range(JUDGING.most_rounds):
            # However far the path leads, at most twice a job that is read whole; beyond, the path stays uncertain.
            wanted = set(sorted(wanted)[: max(2 * JUDGING.whole_ranks - len(read), 0)])
            if not wanted:
                break
            parts.append(self.read([rows.only(wanted) for rows in iterations], read_back))
            if self._usual is not None:
                self.learn(wanted, read_back)
            else:  # clocks that differ by more than a wait would lead the path astray
                self.clocks = self.clocks_of(joined(parts))
            read |= wanted
            graph = self.build([rows.only(read) for rows in iterations], joined(parts))
            unread, wanted = available - read, set()
            for rows, own in zip(iterations, summaries, strict=True):
                slow = None if self._usual is None else partial(self._slow_collectives, graph, rows.number, worth_ns)
                wanted |= wanted_ranks(graph, rows.number, own, self.topology, unread, worth_ns, slow)
        return read, joined(parts)

    def _slow_collectives(self, graph: OperatorGraph, iteration: int, worth_ns: float) -> set[int]:
        assert self._usual is not None
        rows = path_collectives(graph, iteration)
        usual = self._usual.transfers(np.unique(graph.communicator[rows]).tolist(), self.clocks)
        return slow_collectives(graph, rows, usual, worth_ns)

    def learn(self, ranks: Collection[int], read_back: ReadBack) -> None:
        """Read these ranks in the regular iterations too, so that their usual values are known."""
        usual = self._usual
        assert usual is not None
        new = set(ranks) - usual.ranks
        if not new:
            return
        usual.add(new, self.read([rows.only(new) for rows in usual.iterations], read_back))
        self.clocks = self.clocks_of(usual.columns)


class PathReading:
    """One iteration of a large job, of which no more is read than is needed to explain it.

    `reader`, `usual`: the reader of the job's operators, and the job's usual operators. `rows`, `matters_ns`: the
    iteration, and the excess that is to be explained, ns. `read_back`: where operators are read from.
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
        self._worth_ns = JOB.least_share * matters_ns
        self._common_factor = usual.common_factor(rows)
        self._available = set(rows.columns["rank"].tolist())

    def attribute(self) -> tuple[Attribution, OperatorGraph]:
        """Return where the excess went, and the graph that shows it."""
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
        graph = self._reader.build([self._rows.only(read)], columns)
        reference = self._usual.reference(self._reader.build)
        return graph, attribute(graph, self._rows.number, reference, self._common_factor)

    def _beside(self, accused: Sequence[Lane], read: set[int]) -> tuple[dict[Lane, LaneExcess], set[int]]:
        """Compare the accused lanes with those of the same devices.

        Returns the lanes that evidence alone shows to be as quick as usual; and the ranks to read to know the others.
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
        """Leave out lanes of which too few ranks were read, and add the values that evidence alone gives."""
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

    `work_excess_ns`: for each rank how much longer than usual it worked, ns. `complete`: ranks that lost no operator.
    """
    slowest = int(rows.columns["rank"][np.argmax(rows.columns["elapsed_ns"])])
    latest = nsmallest(
        JOB.another, work_excess_ns, key=lambda rank: (rank not in complete, -work_excess_ns[rank], rank)
    )
    return {slowest, *latest}
