"""Reports on a trace: steady NICs where there is nothing to judge, ranks that arrived last, metrics of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from irregulars.detectors.arrays.runs import run_starts
from irregulars.detectors.job.topology import topology_of
from irregulars.detectors.nics.steadiness import Traffic, steady_stretches
from irregulars.detectors.path.last_arrivals import Arrivals, find_arrivals
from irregulars.detectors.path.rank_metrics import (
    Bandwidths,
    Difference,
    find_differences,
    join_windows,
    measure_bandwidth,
    name_metric,
    text_of_difference,
    text_of_value,
    windows_of,
)
from irregulars.dtypes import Column
from irregulars.messages.device_events import Summary, events_of
from irregulars.messages.records import OPERATORS, UNKNOWN
from irregulars.producers.importers.kineto_kernels import sample_iterations, summarize
from irregulars.producers.trace.directory import Trace
from irregulars.producers.trace.iterations import job_columns
from irregulars.streams.rank_hop.message_rows import part_of
from irregulars.streams.rank_hop.nic_samples import NicSamples, joined_samples
from irregulars.words import duration, ordinal, rate

_ALL_NS = int(np.iinfo(np.int64).max)


def report_traffic(trace: Trace) -> Iterator[str]:
    """Yield a line for each stretch in which one NIC was steady and capped; none if there is anything to judge."""
    if trace.commops or trace.iterations or not trace.bandwidth:
        return
    topology = topology_of(trace.announcements, {})
    traffic = {}
    for one in trace.announcements:
        if one.rank in trace.bandwidth:
            samples = NicSamples(one.nic)
            samples.add(part_of(trace.bandwidth[one.rank], -1))
            own = Traffic(*joined_samples(samples.take(_ALL_NS)))
            if trace.clock == "per_host" and len(own.tx):  # nothing connects the clocks: let all begin at once
                first_ns = own.begin_ns[0]
                own = own._replace(begin_ns=own.begin_ns - first_ns, end_ns=own.end_ns - first_ns)
            traffic[one.rank] = own
    for stretch in steady_stretches(traffic, topology):
        (nic, way), place = stretch.end, topology.place(stretch.end[0].ranks[0])
        ranks = ", ".join(map(str, nic.ranks))
        where = f"NIC {place.nic or 'of unknown name'}{f' on {place.host}' if place.host else ''} (rank {ranks})"
        yield (
            f"{where} {'received' if way else 'sent'} a steady {stretch.bytes_per_s * 8 / 1e6:.4g} Mbit/s "
            f"(± {stretch.swing:.0%}) from {stretch.begin_s:.1f} s to {stretch.past_s:.1f} s of the recording, "
            "while the other NICs burst and idled"
        )


_MOSTLY = 0.8  # share of all waiting in the collectives of a kind: for whom ranks wait by chance they wait less
_APART = 0.1  # share of the time of a collective by which the ends of its shares differ, and elapsed times with them
_MOST_PLACES = 16  # of an operator in an iteration: people compare some, and the layers of FSDP are hundreds


class LateRank(NamedTuple):
    """Who kept others waiting the most in the collectives of one kind and place in the iteration."""

    communicator: str
    operator: str
    place: int | None  # 2: in the second of each iteration; None: in any
    collectives: int  # how many of this kind were compared
    # rank, last_in, waited_s: the rank; how often it arrived last; how long the first to arrive waited for it, in all
    # of them together
    rank: int
    last_in: int
    waited_s: float
    waited_for_all_s: float  # the same, summed over all ranks that were last
    took_s: float  # how long all of the collectives took once their last rank was there

    @property
    def is_telling(self) -> bool:
        """Whether nearly all waiting was for it, in most of them, and longer than ends of a collective lie apart."""
        is_mostly = self.waited_s >= _MOSTLY * self.waited_for_all_s and 2 * self.last_in > self.collectives
        return is_mostly and self.waited_s > _APART * self.took_s

    def text(self) -> str:
        """Put it into words.

        >>> LateRank("dp0", "all_reduce", 2, 3, 5, 3, 0.026, 0.026, 0.004).text()
        'rank 5 was last in all 3 of the 2nd all_reduces on dp0, and was waited for 26 ms'
        """
        which = self.operator if self.place is None else f"{ordinal(self.place)} {self.operator}"
        if self.collectives == 1:
            where = f"the one {which}"
        elif self.last_in == self.collectives:
            where = f"all {self.collectives} of the {which}s"
        else:
            where = f"{self.last_in} of {self.collectives} of the {which}s"
        waited = duration(self.waited_s * 1e9)
        return f"rank {self.rank} was last in {where} on {self.communicator}, and was waited for {waited}"


def arrivals_of(trace: Trace) -> tuple[Arrivals, tuple[str, ...]]:
    """Compare the shares of all collectives; with the ids that the codes of communicators stand for."""
    columns, names = _joined_operators(trace)
    return find_arrivals(columns), names


def _joined_operators(trace: Trace) -> tuple[dict[str, Column], tuple[str, ...]]:
    """Return the operators of all ranks, with communicators by their place among the sorted names."""
    columns, kinds = job_columns(trace)
    places = {name: place for place, name in enumerate(sorted(kinds))}
    columns["communicator"] = np.array([places[name] for name in kinds], dtype=np.int64)[columns["communicator"]]
    return columns, tuple(places)


def late_ranks(arrivals: Arrivals, names: Sequence[str]) -> list[LateRank]:
    """For each communicator, operator and place the rank that kept others waiting the most; worst first."""
    found = []
    # All later places together are place 0, which is shown as any.
    places = np.where(arrivals.place <= _MOST_PLACES, arrivals.place, 0)
    keys = [arrivals.communicator, arrivals.operator, places]
    order = np.lexsort(keys[::-1])
    for own in np.split(order, run_starts(*(key[order] for key in keys))[1:]) if len(order) else ():
        communicator, operator, place = (int(key[own[0]]) for key in keys)
        last, waited_ns = arrivals.last_rank[own], arrivals.waited_ns[own]
        ranks, at = np.unique(last, return_inverse=True)
        sums = np.bincount(at, weights=waited_ns)
        worst = int(np.argmax(sums))
        found.append(
            LateRank(
                communicator=names[communicator],
                operator=OPERATORS[operator],
                place=place or None,
                collectives=len(own),
                rank=int(ranks[worst]),
                last_in=int((last == ranks[worst]).sum()),
                waited_s=round(float(sums[worst]) / 1e9, 9),
                waited_for_all_s=round(float(waited_ns.sum()) / 1e9, 9),
                took_s=round(float(arrivals.took_ns[own].sum()) / 1e9, 9),
            )
        )
    return sorted(found, key=lambda late: (-late.waited_s, late.communicator, late.operator))


def collectives_json(arrivals: Arrivals, names: Sequence[str], most: int) -> list[dict[str, object]]:
    """Return the first `most` collectives as JSON objects."""
    listed: list[dict[str, object]] = []
    for at in range(min(len(arrivals.shares), most)):
        iteration, apart_ns = int(arrivals.iteration[at]), float(arrivals.ends_apart_ns[at])
        listed.append(
            {
                "communicator": names[int(arrivals.communicator[at])],
                "operator": OPERATORS[int(arrivals.operator[at])],
                "sequence": int(arrivals.sequence[at]),
                "iteration": None if iteration == UNKNOWN else iteration,
                "shares": int(arrivals.shares[at]),
                "last_rank": int(arrivals.last_rank[at]),
                "waited_ns": int(arrivals.waited_ns[at]),
                "ends_apart_ns": None if np.isnan(apart_ns) else int(apart_ns),
            }
        )
    return listed


class Metrics(NamedTuple):
    """The five metrics of a trace's ranks, and the ranks that are unlike their peers."""

    ranks: Mapping[int, Mapping[str, Summary]]
    bandwidths: Bandwidths
    communicators: Sequence[str]
    differences: Sequence[Difference]

    def to_json(self) -> dict[str, object]:
        """Return them as a JSON object."""
        return {
            "ranks": [
                {"rank": rank, **{name: _summary_json(one) for name, one in own.items()}}
                for rank, own in self.ranks.items()
            ],
            "bandwidths": [
                {"communicator": name, "operator": operator, **dict(zip(_BANDWIDTH, values, strict=True))}
                for name, operator, *values in self._bandwidths()
            ],
            "differences": [one._asdict() | {"text": text_of_difference(one)} for one in self.differences],
        }

    def lines(self, most: int) -> Iterator[str]:
        """Yield who is unlike its peers, then a row for each rank and each kind of collective: `most` of each."""
        yield from (text_of_difference(one) for one in self.differences[:most])
        columns = list(dict.fromkeys(name for own in self.ranks.values() for name in own))
        rows = [["rank", *map(name_metric, columns)]]
        rows += [
            [str(rank), *(text_of_value(name, own[name].value) if name in own else "-" for name in columns)]
            for rank, own in list(self.ranks.items())[:most]
        ]
        yield from _aligned(rows)
        rows = [["communicator", "operator", "collectives", "ranks", "algbw", "busbw"]]
        for name, operator, count, shares, members, algbw, busbw in self._bandwidths()[:most]:
            seen = f"{members}" if shares == members else f"{shares} of {members}"
            rows.append([name, operator, f"{count}", seen, rate(algbw), rate(busbw)])
        if len(rows) > 1:
            yield from _aligned(rows)
        if any(row[3].count("of") for row in rows):
            yield "Where rows of ranks are missing, waiting for them is in the bandwidth."

    def _bandwidths(self) -> list[tuple[str, str, int, int, int, float, float]]:
        own = self.bandwidths
        columns = (own.communicator, own.operator, own.count, own.shares, own.members, own.algbw, own.busbw)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [(self.communicators[name], OPERATORS[operator], *values) for name, operator, *values in rows]


_BANDWIDTH = ("collectives", "ranks_seen", "ranks", "algbw_bytes_per_s", "busbw_bytes_per_s")


def measure_trace(trace: Trace) -> Metrics:
    """Measure the ranks of a trace: by their profiles, where they have one."""
    ranks = {}
    for rank in sorted({*trace.commops, *trace.iterations}):
        events = events_of(trace.events[rank]) if rank in trace.events else ()
        windows = [*windows_of(events).get(rank, {}).values()]
        if not windows and rank in trace.iterations:
            columns = trace.iterations[rank].columns
            _, first = np.unique(columns["iteration"], return_index=True)  # audits and pauses are rows beside theirs
            windows = [summarize(sample_iterations(columns["elapsed_ns"][first], columns["tokens"][first]))]
        ranks[rank] = join_windows(windows)
    columns, names = _joined_operators(trace)
    sizes = {one.id: len(one.ranks) for announcement in trace.announcements for one in announcement.communicators}
    members = np.array([sizes[name] for name in names], dtype=np.int64)
    bandwidths = measure_bandwidth(columns, members, is_shared_clock=trace.clock == "shared")
    stages = topology_of(trace.announcements, {}).stages(np.array(list(ranks), dtype=np.int64))
    differences = find_differences(ranks, dict(zip(ranks, stages.tolist(), strict=True)))
    return Metrics(ranks, bandwidths, names, differences)


def _summary_json(one: Summary) -> dict[str, float]:
    low, middle, high = one.quantiles[[0, 5, 10]].tolist()
    return {"value": one.value, "p5": low, "p50": middle, "p95": high, "count": one.count}


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
