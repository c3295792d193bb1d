"""What can be said of a recording that has samples of NICs, and neither operators nor iterations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from irregulars.detectors.job.topology import Topology, topology_of
from irregulars.detectors.nics.steady_stretches import Stretch, Traffic, steady_stretches
from irregulars.producers.trace.directory import Trace
from irregulars.streams.rank_hop.message_rows import part_of
from irregulars.streams.rank_hop.nic_samples import NicSamples, joined_samples

_ALL_NS = int(np.iinfo(np.int64).max)


def report_traffic(trace: Trace) -> Iterator[str]:
    """Yield a line for each stretch in which one NIC was steady and capped; none if there is anything to judge."""
    if trace.commops or trace.iterations or not trace.bandwidth:
        return
    topology = topology_of(trace.announcements, {})
    traffic = {a.rank: _traffic(trace, a.rank, a.nic) for a in trace.announcements if a.rank in trace.bandwidth}
    if trace.clock == "per_host":  # nothing connects the clocks: let all recordings begin at once
        traffic = {rank: _since_first(own) for rank, own in traffic.items()}
    for stretch in steady_stretches(traffic, topology):
        yield _line(stretch, topology)


def _traffic(trace: Trace, rank: int, nic: str | None) -> Traffic:
    samples = NicSamples(nic)
    samples.add(part_of(trace.bandwidth[rank], -1))
    return Traffic(*joined_samples(samples.take(_ALL_NS)))


def _since_first(own: Traffic) -> Traffic:
    if not len(own.tx):
        return own
    first_ns = own.begin_ns[0]
    return own._replace(begin_ns=own.begin_ns - first_ns, end_ns=own.end_ns - first_ns)


def _line(stretch: Stretch, topology: Topology) -> str:
    (nic, way), place = stretch.end, topology.place(stretch.end[0].ranks[0])
    ranks = ", ".join(map(str, nic.ranks))
    where = f"NIC {place.nic or 'of unknown name'}{f' on {place.host}' if place.host else ''} (rank {ranks})"
    return (
        f"{where} {'received' if way else 'sent'} a steady {stretch.bytes_per_s * 8 / 1e6:.4g} Mbit/s "
        f"(± {stretch.swing:.0%}) from {stretch.begin_s:.1f} s to {stretch.past_s:.1f} s of the recording, "
        "while the other NICs burst and idled"
    )
