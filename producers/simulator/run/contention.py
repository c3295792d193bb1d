"""Transfers that cross a NIC at the same time share its rate, and so take longer, as long as they overlap.

The rate of a NIC is shared evenly, in each direction by itself. When transfers begin depends on how long those before
them take, so an iteration is run again with the lengths that its own overlaps give. A transfer that others share a
NIC with takes longer by the time that the NIC spends on them meanwhile: exact where they overlap as a whole, as ranks
in lockstep do, and where a short one lies within a long one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from irregulars.producers.simulator.job.network import Network
from irregulars.producers.simulator.job.topology import Ints, Topology
from irregulars.producers.simulator.program.plan import Plan

Floats = NDArray[np.float64]

PASSES: Final = 2
"""How often an iteration is run again. One is enough where transfers begin together, two where one delays others."""


@dataclass(frozen=True, slots=True)
class Contention:
    """Who crosses which NIC in one plan.

    Attributes
    ----------
    flow, hop
        Each crossing of a hop by a flow, in order of flows.
    offsets, flows
        Where the crossings of each flow begin that has some, and which flow it is.
    nics
        NIC of each crossing: the one that sends, and the one that receives.
    """

    flow: Ints
    hop: Ints
    offsets: Ints
    flows: Ints
    nics: tuple[Ints, Ints]

    @classmethod
    def of(cls, topology: Topology, network: Network, plan: Plan) -> Contention:
        """Find all crossings of a plan."""
        paths = np.arange(len(network.is_between_hosts))
        first = np.searchsorted(network.hop_path, paths)
        counts = (np.searchsorted(network.hop_path, paths, side="right") - first)[plan.flows.path]
        flow = np.repeat(np.arange(len(counts)), counts)
        offsets = np.cumsum(counts) - counts
        hop = first[plan.flows.path][flow] + np.arange(len(flow)) - offsets[flow]
        crossing = np.flatnonzero(counts)
        nics = topology.nic[network.hop_source[hop]], topology.nic[network.hop_destination[hop]]
        return cls(flow, hop, offsets[crossing], crossing, nics)

    def extra_ns(self, begin_ns: Floats, flow_ns: Floats, flow_bytes: Floats, hop_ns_per_byte: Floats) -> Floats:
        """How much longer each flow takes because of others.

        Parameters
        ----------
        begin_ns, flow_ns
            Per flow: when it began, and how long it took; a flow that never begins is in nobody's way.
        flow_bytes
            Per flow: what one member sends.
        hop_ns_per_byte
            Per hop: time per byte of a flow, which has the NIC for itself.
        """
        alone_ns = flow_bytes[self.flow] * hop_ns_per_byte[self.hop]
        begin, length = begin_ns[self.flow], flow_ns[self.flow]
        happens = np.isfinite(begin) & np.isfinite(length)
        others_ns = np.zeros(len(alone_ns))
        for nic in self.nics:
            own = others_in_the_way_ns(nic[happens], begin[happens], length[happens], alone_ns[happens])
            others_ns[happens] = np.maximum(others_ns[happens], own)
        result = np.zeros(len(flow_ns))
        if len(self.offsets):
            slowest = np.maximum.reduceat(alone_ns + others_ns, self.offsets)
            result[self.flows] = slowest - np.maximum.reduceat(alone_ns, self.offsets)
        return result


def others_in_the_way_ns(nic: Ints, begin_ns: Floats, length_ns: Floats, alone_ns: Floats) -> Floats:
    """Time that a NIC spends on other transfers while each of these lasts.

    A transfer spreads what it needs of the NIC, ``alone_ns``, evenly over the time it takes. With ``W(t)`` what a NIC
    has done for all of them up to ``t``, that is the increase of ``W`` less the own part.

    >>> two = np.zeros(2)
    >>> others_in_the_way_ns(np.array([3, 3]), two, two + 5.0, two + 5.0).tolist()
    [5.0, 5.0]
    """
    if not len(nic):
        return np.empty(0)
    begin = begin_ns - begin_ns.min()
    end = begin + length_ns
    span = float(end.max()) + 1.0  # each NIC has a stretch of one long time axis for itself
    rate = alone_ns / np.maximum(length_ns, 1.0)
    ramps = [_ramps(nic, at, rate, span) for at in (begin, end)]

    def done_ns(at: Floats) -> Floats:
        started, ended = (_climbed(*ramp, nic, at, span) for ramp in ramps)
        return started - ended

    return np.maximum(done_ns(end) - done_ns(begin) - rate * length_ns, 0.0)


def _ramps(nic: Ints, at: Floats, rate: Floats, span: float) -> tuple[Floats, Floats, Floats]:
    """Ramps in order of NIC and time: their places, and sums over those before of slope and of slope times start."""
    place = nic * span + at
    order = np.argsort(place)
    slope, start = rate[order], at[order]
    return place[order], np.r_[0.0, np.cumsum(slope)], np.r_[0.0, np.cumsum(slope * start)]


def _climbed(place: Floats, slopes: Floats, starts: Floats, nic: Ints, at: Floats, span: float) -> Floats:
    """Sum over the ramps of each NIC of how high they are at a time."""
    past, first = np.searchsorted(place, nic * span + at, side="right"), np.searchsorted(place, nic * span)
    return np.asarray(at * (slopes[past] - slopes[first]) - (starts[past] - starts[first]))
