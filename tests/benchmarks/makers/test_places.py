"""Which devices are told from all others by the lanes that they carry."""

from __future__ import annotations

from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.settings import SimulatorSettings
from tests.benchmarks.makers.places import plain_devices, plain_hosts, plain_links, plain_switches


def test_links_of_a_ring_without_other_traffic_are_no_plain_place() -> None:
    engine = Engine(SimulatorSettings(dp=4, pp=1, tp=8, iterations=1))  # one ring over four hosts for each place
    assert len(plain_links(engine)) == 0
    assert len(plain_devices(engine, "nic")) == 0


def test_pairs_of_the_pipeline_are_plain_and_the_ring_beside_them_makes_nics_plain() -> None:
    engine = Engine(SimulatorSettings(dp=4, pp=2, tp=8, iterations=1))
    pairs = {(rank, rank + 32) for rank in range(32)} | {(rank + 32, rank) for rank in range(32)}
    assert set(map(tuple, plain_links(engine).tolist())) == pairs
    assert set(plain_devices(engine, "nic").tolist()) == set(range(64))


def test_a_nic_that_serves_one_link_only_is_no_plain_place() -> None:
    engine = Engine(SimulatorSettings(dp=1, pp=2, tp=8, iterations=1))  # both NICs of a pair carry the same
    assert len(plain_devices(engine, "nic")) == 0
    assert len(plain_links(engine)) == 16


def test_a_host_that_is_a_stage_is_no_plain_place() -> None:
    assert len(plain_hosts(Engine(SimulatorSettings(dp=1, pp=4, tp=8, iterations=1)))) == 0
    assert len(plain_hosts(Engine(SimulatorSettings(dp=2, pp=4, tp=8, iterations=1)))) == 8
    assert len(plain_hosts(Engine(SimulatorSettings(dp=1, pp=4, tp=4, iterations=1)))) == 0  # two whole stages


def test_a_switch_that_all_traffic_crosses_is_no_plain_place() -> None:
    assert len(plain_switches(Engine(SimulatorSettings(dp=2, pp=2, tp=8, iterations=1)))) == 0  # one switch
    found = plain_switches(Engine(SimulatorSettings(dp=4, pp=4, tp=8, hosts_per_switch=2, iterations=1)))
    assert found.tolist() == list(range(8))
