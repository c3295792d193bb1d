from __future__ import annotations

import numpy as np
import pytest

from irregulars.producers.simulator.network import Network, SlowDevice
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.topology import Topology

SETTINGS = SimulatorSettings(nvlink_latency_us=0.0, network_latency_us=0.0)


@pytest.fixture
def topology() -> Topology:
    return Topology(SETTINGS)


def number(topology: Topology, name: str) -> int:
    return [c.id for c in topology.groups.communicators].index(name)


def test_a_group_inside_a_host_crosses_no_nic(topology: Topology) -> None:
    network = Network(topology)
    tensor_parallel = number(topology, "tp_p0_d0")
    assert not network.is_between_hosts[tensor_parallel]
    _, ns_per_byte = network.path_times()
    assert ns_per_byte[tensor_parallel] == pytest.approx(1e9 / SETTINGS.nvlink_bytes_per_s)


def test_bytes_of_a_collective_are_split_between_the_nics_of_a_host(topology: Topology) -> None:
    network = Network(topology)
    _, ns_per_byte = network.path_times()
    alone = 1e9 / SETTINGS.nic_bytes_per_s
    # two members on each host: half the bytes over each of two NICs
    assert ns_per_byte[number(topology, "dp_p1_t1")] == pytest.approx(alone / 2)
    down = len(topology.groups.communicators)
    assert ns_per_byte[down + 1] == pytest.approx(alone)


def test_each_nic_of_a_ring_sends_and_receives_once(topology: Topology) -> None:
    network = Network(topology)
    own = network.hop_path == number(topology, "world")
    assert sorted(network.hop_source[own].tolist()) == list(range(64))
    assert sorted(network.hop_destination[own].tolist()) == list(range(64))
    assert network.hop_load[own].sum() == pytest.approx(8)  # every host passes all bytes on


def test_a_group_is_as_slow_as_its_slowest_nic(topology: Topology) -> None:
    network = Network(topology)
    _, healthy = network.path_times()
    latency, slow = network.path_times([SlowDevice("nic", (17,), 8.0, 2e6)])
    changed = np.flatnonzero(slow > healthy * 1.01)
    down = len(topology.groups.communicators)
    up = down + 64
    groups = [number(topology, "world"), number(topology, "dp_p1_t1")]
    assert changed.tolist() == sorted([*groups, down + 1, down + 17, up + 1, up + 17])
    assert np.flatnonzero(latency > 1e6).tolist() == changed.tolist()


def test_faults_on_the_same_path_multiply(topology: Topology) -> None:
    network = Network(topology)
    _, healthy = network.path_times()
    _, slow = network.path_times([SlowDevice("nic", (17,), 3.0), SlowDevice("link", (1, 17), 2.0)])
    down = len(topology.groups.communicators)
    assert slow[down + 1] == pytest.approx(6 * healthy[down + 1])
    assert slow[down + 17] == pytest.approx(3 * healthy[down + 17])
