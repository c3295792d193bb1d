"""One ring all_reduce chunk by chunk: who sends when, and what counters that are read often show of it.

`producers.simulator.network` knows how long a transfer takes and spreads its bytes evenly. That is what counters
show when they are read less often than a step takes. Read more often, they show bursts: a member of a ring sends a
chunk at full rate as soon as it has arrived from its neighbour, and then waits for the next one. Only who sends over
the slowest link is never out of work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        """How many chunks each step has."""
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
