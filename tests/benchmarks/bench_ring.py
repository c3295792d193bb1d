"""A throttled link in a ring: what the patterns of its members show, by how often the counters are read.

One all_reduce runs in a ring whose member 3 sends over a link of a quarter of the rate of the others (`Ring`); the
counters of all NICs are read. `tests/detectors/test_ring_experiment.py` holds what must be so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.nics.behaviour_patterns import Executions, Intervals, merge_executions, statistics
from irregulars.detectors.nics.pattern_distances import Patterns
from irregulars.detectors.nics.steadiness import steady_ends, swings_of

Array = np.ndarray

CULPRIT = 3
FAST, SLOW = 25e9, 6.25e9
RINGS = ((8, 1), (8, 16), (16, 64))  # members, and in how many parts the payload is worked through


class Seen(NamedTuple):
    """What the counters of a ring's members show: per member mean rate of all samples, peak, and σ / μ trimmed."""

    mean: Array
    peak: Array
    swing: Array
    patterns: Patterns


def ring_of(members: int, loops: int, culprit: int | None = CULPRIT) -> Ring:
    """512 MB in a ring; `culprit` None: no link is throttled."""
    rates = tuple(SLOW if member == culprit else FAST for member in range(members))
    return Ring(rates, 512e6, 1e6, loops)


def watch(ring: Ring, period_ns: float) -> Seen:
    """Read the counters, and make the pattern of the one all_reduce on each member."""
    times, tx, rx = ring.samples(period_ns)
    count = len(tx)
    whole = merge_executions(Executions(np.zeros(1, np.int64), np.zeros(1), np.array([ring.sends()[1].max()])))
    sent, received = (
        [statistics(whole, Intervals(times - period_ns, times, rate), 1) for rate in rates] for rates in (tx, rx)
    )
    columns = [np.array([getattr(own, name)[0] for own in ways]) for ways in (sent, received)
               for name in ("mean", "deviation")]  # fmt: skip
    patterns = Patterns(
        np.arange(count), np.zeros(count, np.int64), np.zeros(count, np.int64), np.ones(count), *columns
    )
    return Seen(tx.mean(axis=1), tx.max(axis=1), columns[1] / columns[0], patterns)


def steady_senders(seen: Seen) -> list[int]:
    """Members whose sending the rule of `detectors.nics.steadiness` finds steady."""
    ranks = seen.patterns.rank.tolist()
    topology = Topology(
        len(ranks), {rank: Place(f"h{rank}", 0, "eth0") for rank in ranks}, {0: tuple(ranks)}, ("ring",)
    )
    ends = steady_ends(0, ranks, [swings_of(seen.patterns, {0}, {})], topology)
    return [nic.ranks[0] for (nic, way), is_steady in ends.items() if is_steady and way == 0]


Floats = NDArray[np.float64]

_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Ring:
    """A ring all_reduce: member i sends to member i + 1, the last one to the first."""

    rates_bytes_per_s: tuple[float, ...]  # of the link that leaves each member
    size_bytes: float  # payload of one member
    chunk_bytes: float  # what is sent at once
    # The payload is worked through in so many parts, one after the other (NCCL: as small ones as its buffers are;
    # gloo: all at once). Each part takes 2 (n - 1) steps, each of which sends the n-th of it.
    loops: int = 1
    latency_ns: float = 5_000.0  # from the end of a chunk to the moment at which the receiver can send it on

    @property
    def chunks_per_step(self) -> int:
        return max(round(self.size_bytes / self.loops / len(self.rates_bytes_per_s) / self.chunk_bytes), 1)

    def sends(self) -> tuple[Floats, Floats]:
        """When each member begins and ends to send each chunk, ns; shapes ``(members, chunks)``.

        A chunk of the first step of a loop is there from the beginning; any other one was received a step before.
        """
        members, step = len(self.rates_bytes_per_s), self.chunks_per_step
        loop = 2 * (members - 1) * step
        own_ns = self.chunk_bytes / np.array(self.rates_bytes_per_s) * _NS_PER_S
        begin, end = np.zeros((members, loop * self.loops)), np.zeros((members, loop * self.loops))
        for at in range(loop * self.loops):
            free = end[:, at - 1] if at else np.zeros(members)
            if at % loop >= step:  # what the neighbour before has sent
                free = np.maximum(free, np.roll(end[:, at - step], 1) + self.latency_ns)
            begin[:, at] = free
            end[:, at] = free + own_ns
        return begin, end

    @property
    def step_ns(self) -> float:
        """How long the slowest link takes for one step: so long are the bursts and pauses of the others."""
        return self.chunks_per_step * self.chunk_bytes / min(self.rates_bytes_per_s) * _NS_PER_S

    def samples(self, period_ns: float) -> tuple[Floats, Floats, Floats]:
        """Counters of each member's NIC, read each `period_ns` from beginning to end.

        Returns
        -------
        Times of the readings in ns, shape ``(samples,)``, and mean rates sent and received since the reading before,
        bytes per second, each of shape ``(members, samples)``.
        """
        begin, end = self.sends()
        times = np.arange(1.0, np.ceil(end.max() / period_ns) + 1.0) * period_ns
        sent = np.stack([self._sent_until(times, *own) for own in zip(begin, end, strict=True)])
        tx = np.diff(sent, axis=1, prepend=0.0) * _NS_PER_S / period_ns
        return times, tx, np.roll(tx, 1, axis=0)

    def _sent_until(self, times: Floats, begin: Floats, end: Floats) -> Floats:
        """Bytes that one member has sent by some times: they rise while a chunk is on its way, and then rest."""
        edges = np.stack([begin, end], axis=1).ravel()
        chunks = np.arange(len(begin) + 1, dtype=np.float64) * self.chunk_bytes
        return np.interp(times, edges, np.repeat(chunks, 2)[1:-1])
