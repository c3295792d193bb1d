"""Counters of the NICs, made of the transfers that cross them.

Bytes of a flow are spread evenly over the time that it takes. A sample is the mean rate over the period before it,
as a reader of counters gets it; hosts read theirs at different moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from irregulars.producers.simulator.engine import Contention, Engine, Run
from irregulars.producers.simulator.network import count_up
from irregulars.producers.simulator.settings import NS_PER_MS
from irregulars.producers.simulator.topology import Ints

Floats = NDArray[np.float64]
_NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of all NICs: ``time_ns``, ``tx_bytes_per_s``, ``rx_bytes_per_s``, each of shape ``(nics, samples)``.

    ``number`` is how many samples each NIC had before.
    """

    number: int
    time_ns: Floats
    tx_bytes_per_s: Floats
    rx_bytes_per_s: Floats


class BandwidthSampler:
    """Turns transfers into samples. `engine`: the job whose runs come to `add`, each once and in order."""

    def __init__(self, engine: Engine) -> None:
        topology, network = engine.topology, engine.network
        self._hop_load = network.hop_load
        self._crossings = {id(plan): Contention.of(topology, network, plan) for plan in engine.plans.values()}
        self._workload_factor = engine.settings.workload_factor
        self._period_ns = engine.settings.bandwidth_period_ms * NS_PER_MS
        self._phase_ns = self._period_ns * topology.nic_host / len(topology.nic_host)
        self._taken = 0
        self._sent = np.zeros((2, len(topology.nic_host), 0))

    def add(self, run: Run) -> None:
        """Count the bytes of one iteration."""
        found, flows = self._crossings[id(run.plan)], run.plan.flows
        begin_ns, length_ns = run.begin_ns[flows.transfer[found.flow]], run.flow_ns[found.flow]
        sent_bytes = flows.wire_bytes[found.flow] * self._hop_load[found.hop]
        sent_bytes *= np.where(flows.is_scaled[found.flow], self._workload_factor(run.iteration), 1.0)
        happens = np.isfinite(begin_ns + length_ns)
        begin_ns, length_ns, sent_bytes = begin_ns[happens], length_ns[happens], sent_bytes[happens]
        self._reserve(float((begin_ns + length_ns).max(initial=0.0)))
        for direction, nic in enumerate(found.nics):
            self._sent[direction] += self._binned(nic[happens], begin_ns, length_ns, sent_bytes)

    def take(self, until_ns: float) -> Samples:
        """Return the samples up to a moment before which no further transfer will begin; each sample once."""
        count = max(int((until_ns - self._phase_ns.max(initial=0.0)) // self._period_ns) + 1 - self._taken, 0)
        self._reserve(until_ns)
        number = self._taken
        time_ns = self._phase_ns[:, None] + np.arange(number, number + count) * self._period_ns
        rates = self._sent[:, :, :count] * (_NS_PER_S / self._period_ns)
        self._sent = self._sent[:, :, count:]
        self._taken += count
        return Samples(number, time_ns, rates[0], rates[1])

    def _reserve(self, until_ns: float) -> None:
        wanted = int(until_ns // self._period_ns) + 2 - self._taken - self._sent.shape[2]
        if wanted > 0:
            self._sent = np.pad(self._sent, ((0, 0), (0, 0), (0, wanted)))

    def _binned(self, nic: Ints, begin_ns: Floats, length_ns: Floats, sent_bytes: Floats) -> Floats:
        """Return the bytes of each NIC in each period not taken yet; a transfer may reach over several."""
        period_ns, phase_ns = self._period_ns, self._phase_ns[nic]
        first = np.ceil((begin_ns - phase_ns) / period_ns).astype(np.int64)
        last = np.ceil((begin_ns + length_ns - phase_ns) / period_ns).astype(np.int64)
        flow, period = count_up(first, last - first + 1)
        edge_ns = phase_ns[flow] + period * period_ns
        inside_ns = np.minimum(begin_ns[flow] + length_ns[flow], edge_ns) - np.maximum(
            begin_ns[flow], edge_ns - period_ns
        )
        sent = sent_bytes[flow] * np.maximum(inside_ns, 0) / length_ns[flow]
        shape = self._sent.shape[1:]
        place = nic[flow] * shape[1] + period - self._taken
        binned = np.bincount(place, sent, minlength=shape[0] * shape[1])
        return np.asarray(binned.reshape(shape), dtype=np.float64)
