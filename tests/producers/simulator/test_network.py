from __future__ import annotations

import numpy as np
import pytest

from irregulars.producers.simulator.network import Network, SlowDevice
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.topology import Topology

SETTINGS = SimulatorSettings(nvlink_latency_us=0.0, network_latency_us=0.0)
TOPOLOGY = Topology(SETTINGS)
NAMES = [one.id for one in TOPOLOGY.groups.communicators]
DOWN = len(NAMES)
"""Path of rank 0 as the sender down the pipeline."""


def test_bytes_of_a_collective_are_split_between_the_nics_of_a_host_and_inside_one_cross_none() -> None:
    _, ns_per_byte = Network(TOPOLOGY).path_times()
    alone = 1e9 / SETTINGS.nic_bytes_per_s
    # two members on each host: half the bytes over each of two NICs
    assert ns_per_byte[NAMES.index("dp_p1_t1")] == pytest.approx(alone / 2)
    assert ns_per_byte[DOWN + 1] == pytest.approx(alone)
    assert ns_per_byte[NAMES.index("tp_p0_d0")] == pytest.approx(1e9 / SETTINGS.nvlink_bytes_per_s)


def test_faults_on_the_same_path_multiply_and_their_delays_add_up() -> None:
    network = Network(TOPOLOGY)
    _, healthy = network.path_times()
    devices = SlowDevice("nic", (17,), 3.0, 2e6), SlowDevice("link", (1, 17), 2.0, 1e6)
    latency_ns, slow = network.path_times(devices)
    assert slow[[DOWN + 1, DOWN + 17]] == pytest.approx(healthy[[DOWN + 1, DOWN + 17]] * [6, 3])
    assert latency_ns[[DOWN + 1, DOWN + 17]].tolist() == [3e6, 2e6]
    assert np.flatnonzero(latency_ns).tolist() == np.flatnonzero(slow > healthy * 1.01).tolist()
