"""What if one device had been as usual: the iteration is run again, and the time that comes back is counted.

A rank may be late and cost nothing, since another one is later; a transfer may be slow beside the work that hides it.
So before a device is accused, `detectors.abnormal_operators.replay` runs the iteration with the gaps of the accused
ranks, or the transfers that the accused device carries, as they usually are, and all others as they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.abnormal_operators.replay import replay
from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.observation import Observation, explained_ns
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.detectors.path.usual_by_past import Reference, follows_lost, incomplete_ranks, usual_times
from irregulars.detectors.path.usual_by_peers import usual_times_of_peers
from irregulars.dtypes import Flags, Floats

_KNOWN: Final = 18  # ratios that are kept: of three causes in each of the six iterations that a verdict rests on


class WhatIf:
    """One iteration that can be run again.

    `graph`: the operators of one iteration, or of several, of all ranks that were read. `reference`: their usual
    times; None: those of their peers in the graph are usual.
    """

    def __init__(self, graph: OperatorGraph, reference: Reference | None, topology: Topology) -> None:
        self._graph, self._reference, self._topology = graph, reference, topology

    @cached_property
    def _usual(self) -> tuple[Floats, Floats]:
        """Gap and transfer that each row usually has, float64, ns; NaN where that is not known."""
        if self._reference is None:
            return usual_times_of_peers(self._graph, self._topology)
        return usual_times(self._graph, self._reference)[:2]

    @cached_property
    def _has_hidden(self) -> Flags:
        """Whether some member of each row's collective or message is not in the graph."""
        graph = self._graph
        codes = range(int(graph.communicator.max(initial=-1)) + 1)
        sizes = np.array([len(self._topology.members.get(code, ())) for code in codes] or [0])
        expected = np.where(graph.is_p2p, 2, sizes[graph.communicator])
        return np.asarray(np.bincount(graph.group)[graph.group] < expected)

    @cached_property
    def _has_lost(self) -> Flags:
        """Whether the rank of each row logged fewer operators than usual."""
        if self._reference is None:
            return np.zeros(len(self._graph), dtype=bool)
        iterations = np.unique(self._graph.iteration).tolist()
        lost = {rank for one in iterations for rank in incomplete_ranks(self._graph, one, self._reference)}
        return np.isin(self._graph.rank, sorted(lost))

    def recovered_ns(self, causes: Sequence[Cause]) -> float:
        """How much sooner the (one) iteration would have ended with the devices of these causes as usual, ns.

        NaN where nothing is known of the device's operators.
        """
        return next(iter(self.recovered_by_iteration(causes).values()), float("nan"))

    def recovered_by_iteration(self, causes: Sequence[Cause]) -> dict[int, float]:
        """How much sooner each iteration would have ended with the devices of these causes as usual, ns.

        A transfer whose partner was not read may be waiting, which comes back with the rank that the partner waited
        for: it counts as long as usual at most (as nothing, where that is not known), before and after, unless a
        cause accuses it. So does the gap of a rank that lost rows: the operator in which it waited may be among them,
        and then its waiting looks like work. Rows that follow the lost first rows of a rank hold up nobody.

        Empty where nothing is known of the device's operators.
        """
        graph, (usual_gap_ns, usual_transfer_ns) = self._graph, self._usual
        works, carries = np.zeros(len(graph), dtype=bool), np.zeros(len(graph), dtype=bool)
        for cause in causes:
            # Rows whose gap is the work of an accused rank
            ranks = {lane.first for lane in cause.lanes if lane.kind == "work"}
            device = cause.first_device
            ranks.update(device.ranks if device is not None and device.traits.is_worker else ())
            works |= np.isin(self._graph.rank, sorted(ranks))
            carries |= self._carries(cause)
        works &= np.isfinite(usual_gap_ns)
        carries &= np.isfinite(usual_transfer_ns)
        if not (works.any() or carries.any()):
            return {}
        gap_ns, transfer_ns = graph.gap_ns.astype(np.float64), graph.transfer_ns.astype(np.float64)
        transfer_ns = _usual_at(self._has_hidden & ~carries, transfer_ns, np.nan_to_num(usual_transfer_ns))
        gap_ns = _usual_at(self._has_lost & ~works, gap_ns, usual_gap_ns)
        gap_ns = np.minimum(gap_ns, self._held_up_by_nothing_ns)
        # Both runs have the doubtful rows set back: their difference is that of the devices alone.
        before_ns = replay(graph, gap_ns, transfer_ns).end_ns
        gap_ns = _usual_at(works, gap_ns, usual_gap_ns)
        transfer_ns = _usual_at(carries, transfer_ns, usual_transfer_ns)
        transfer_ns = np.minimum(transfer_ns, self._alone_ns(carries))
        after_ns = replay(graph, gap_ns, transfer_ns).end_ns
        rows = {one: graph.iteration == one for one in np.unique(graph.iteration).tolist()}
        return {one: float(before_ns[own].max() - after_ns[own].max()) for one, own in rows.items()}

    @cached_property
    def _held_up_by_nothing_ns(self) -> Floats:
        """Upper limit of each row's gap, ns: rows that follow lost ones begin as early as any rank does.

        When a rank entered the iteration is known by its first row; after lost ones it is when all had come, late
        ones too.
        """
        graph = self._graph
        if self._reference is None:
            return np.full(len(graph), np.inf)
        entry_ns = (graph.start_ns - graph.gap_ns).astype(np.float64)
        sooner_ns = entry_ns.min(initial=np.inf) - entry_ns
        return np.where(follows_lost(graph, self._reference), sooner_ns, np.inf)

    def _alone_ns(self, carries: Flags) -> Floats:
        """Upper limit of each row's transfer with these messages as usual, ns: its batch then waits for its others.

        Infinite in batches without such a message.
        """
        graph, usual_ns = self._graph, self._usual[1]
        is_mate = graph.is_batched & ~carries & np.isin(graph.batch, graph.batch[carries])
        return np.where(is_mate & np.isfinite(usual_ns), np.maximum(graph.own_transfer_ns, usual_ns), np.inf)

    def _carries(self, cause: Cause) -> Flags:
        """Rows whose transfer the accused device carries."""
        graph, device = self._graph, cause.first_device
        is_p2p = graph.is_p2p
        found = ~is_p2p & np.isin(
            graph.communicator, sorted({lane.first for lane in cause.lanes if lane.kind == "collective"})
        )
        for lane in cause.lanes:
            if lane.kind == "pair":
                found |= is_p2p & (graph.source == lane.first) & (graph.destination == lane.second)
        if device is None or device.traits.is_worker:
            return found
        # Beyond the cause's own lanes, all that passes the device.
        if device.traits.is_way:
            ends = np.isin(graph.source, device.ranks) & np.isin(graph.destination, device.ranks)
            return np.asarray(found | (is_p2p & ends))
        touched = np.isin(graph.source, device.ranks) | np.isin(graph.destination, device.ranks)
        crossing = {
            code
            for code, members in self._topology.members.items()
            if not set(device.ranks).isdisjoint(members) and self._topology.crosses_network(Lane("collective", code))
        }
        return np.asarray(found | np.where(is_p2p, touched, np.isin(graph.communicator, sorted(crossing))))


class Recovery(NamedTuple):
    """Which share of an iteration's excess came back without a device."""

    iteration: int
    device: Device
    ratio: float


class Recoveries:
    """The shares that came back without a device in the newest iterations in which it was suspect.

    One iteration is a poor witness: where another rank pauses beside a slow one, little comes back without either.
    """

    def __init__(self, known: Iterable[Recovery] = ()) -> None:
        self._known: deque[Recovery] = deque(known, maxlen=_KNOWN)

    def note(self, iteration: int, cause: Cause, ratio: float | None) -> None:
        """Keep the share that came back in an iteration; None, or without a suspect: there is nothing to keep."""
        device = cause.first_device
        if ratio is not None and device is not None:
            self._known.append(Recovery(iteration, device, ratio))

    def typical(self, cause: Cause) -> float | None:
        """Return the median share that came back without a cause's device where it was seen; None: not known."""
        device = cause.first_device
        ratios = [one.ratio for one in self._known if one.device == device and one.iteration in cause.explained_ns]
        return median(ratios) if ratios else None

    def state(self) -> tuple[Recovery, ...]:
        """Everything that the constructor needs."""
        return tuple(self._known)


def _usual_at(rows: Flags, elapsed_ns: Floats, usual_ns: Floats) -> Floats:
    """Let the marked rows take as long as usual at most; where that is not known, as long as they did."""
    return np.where(rows & np.isfinite(usual_ns), np.minimum(elapsed_ns, usual_ns), elapsed_ns)


def recovered_ratio(
    cause: Cause, causes: Sequence[Cause], observation: Observation, what_if: WhatIf | None
) -> float | None:
    """Return the share of a cause's claimed cost in an iteration that comes back without it; None: not known.

    The claim counts as at least half of the iteration's excess, less the time that all ranks worked
    longer.

    Of two ranks that are equally slow each alone brings back nothing. So the time that comes back alone counts, or
    the part of that of all causes together that is missing without this one, whichever is more.
    """
    if what_if is None or observation.attribution is None or not cause.suspects:
        return None
    everybody_ns = max(observation.attribution.path_excess_ns.get(EVERYBODY, 0.0), 0.0)
    longer_ns = max(observation.excess_ns - everybody_ns, 0.0)
    said_ns = min(explained_ns(cause, observation.attribution), longer_ns)
    if said_ns <= 0:
        return None
    claimed_ns = max(said_ns, JOB.most * longer_ns)
    ratio = what_if.recovered_ns([cause]) / claimed_ns
    others = [one for one in causes if one is not cause]
    # With all of the claim back the two further replays are saved.
    if ratio < 1 and others:
        ratio = max(ratio, (what_if.recovered_ns(causes) - what_if.recovered_ns(others)) / claimed_ns)
    return None if np.isnan(ratio) else ratio
