from __future__ import annotations

from collections import Counter
from itertools import pairwise, product

import pytest

from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.presets import SUITE
from irregulars.producers.simulator.settings import SimulatorSettings
from tests.benchmarks.localization.blameless import draw_blameless, draw_further
from tests.benchmarks.localization.cases import (
    BASES,
    BEFORE,
    EXCESSES,
    ITERATIONS,
    KINDS,
    NETWORK_KINDS,
    SHAPES,
    SIZES,
    SPLITS,
    Base,
    Case,
    choose_quick,
    draw_cases,
)
from tests.benchmarks.localization.places import draw_fault, plain_hosts, plain_links, plain_nics, plain_switches

DEVELOPMENT, TEST = (draw_cases(split) for split in SPLITS)
ALL_BASES = [Base(split, size, number) for split in SPLITS for size in SIZES for number in range(BASES)]


@pytest.mark.parametrize("cases", [DEVELOPMENT, TEST], ids=SPLITS)
def test_kinds_shapes_dimensions_clocks_and_samples_have_equal_shares_in_every_size(cases: list[Case]) -> None:
    wanted = sorted(product(EXCESSES, KINDS, SHAPES))
    assert len({case.name for case in cases}) == len(cases)
    for size in SIZES:
        own = [case for case in cases if case.base.ranks == size]
        assert sorted((case.excess, case.kind, case.shape) for case in own) == wanted
        bases = [case.base for case in own]
        assert set(Counter(base.dimensions for base in bases).values()) <= {32, 33, 34}
        assert Counter(base.number % 2 for base in bases) == {0: 50, 1: 50}
        assert 48 <= sum(base.has_bandwidth for base in bases) <= 52


def test_the_splits_share_no_seed_and_no_topology() -> None:
    seeds, shapes = [], []
    for split, cases in zip(SPLITS, (DEVELOPMENT, TEST), strict=True):
        others = [*draw_blameless(split), *draw_further(split)]
        seeds.append({case.seed for case in [*cases, *others]} | {case.base.settings().seed for case in cases})
        plain = [case.base.settings() for case in cases] + [case.settings() for case in others]
        shapes.append({(s.dp, s.pp, s.tp, s.cp, s.ep, s.shards) for s in plain})
    assert not seeds[0] & seeds[1]
    assert not shapes[0] & shapes[1]


def test_bases_are_what_they_say() -> None:
    for base in ALL_BASES:
        settings = base.settings()
        sizes = (settings.dp, settings.pp, settings.tp, settings.cp, settings.ep, settings.shards)
        assert settings.world_size == base.ranks
        assert sum(size > 1 for size in sizes) == base.dimensions
        assert settings.clock == ("per_host" if base.number % 2 else "shared")
        assert all(getattr(settings, name) == value for name, value in SUITE.items())


def test_faults_act_where_their_shape_says() -> None:
    for case in DEVELOPMENT[:100]:
        assert all(0 <= first < past <= case.iterations <= ITERATIONS for first, past in case.spans)
        match case.shape:
            case "from_start":
                assert case.spans == ((0, ITERATIONS),)
            case "spike":
                recurs = case.kind in NETWORK_KINDS and not case.base.has_bandwidth
                assert len(case.spans) == (3 if recurs else 1)
                assert all(past == first + 1 for first, past in case.spans)
                firsts = [first for first, _ in case.spans]
                assert all(later - earlier >= 4 for earlier, later in pairwise(firsts))
        assert case.shape == "from_start" or case.spans[0][0] >= BEFORE


def test_the_quick_sample_has_every_kind_with_every_shape_and_all_excesses_alike() -> None:
    quick = choose_quick(DEVELOPMENT)
    assert sorted((case.kind, case.shape) for case in quick) == sorted(product(KINDS, SHAPES))
    assert set(Counter(case.excess for case in quick).values()) == {4}
    assert {case.base.ranks for case in quick} == {min(SIZES)}


# --- places ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "number"), [(SPLITS[number % 2], number) for number in range(BASES)])
def test_every_fault_of_the_smallest_jobs_has_a_plain_place(split: str, number: int) -> None:
    base = Base(split, 512, number)
    engine = Engine(base.settings())
    links, nics = set(map(tuple, plain_links(engine).tolist())), set(plain_nics(engine).tolist())
    for case in (case for case in draw_cases(split, (512,)) if case.base == base):
        fault = draw_fault(case, engine)
        assert fault == draw_fault(case, engine)
        assert (fault.excess, fault.shape, (fault.first, fault.past)) == (case.excess, case.shape, case.spans[0])
        if case.kind == "slow_link":
            assert (fault.rank, fault.peer) in links
        if case.kind == "slow_nic":
            assert int(engine.topology.nic[fault.rank]) in nics


def test_links_of_a_ring_without_other_traffic_are_no_plain_place() -> None:
    engine = Engine(SimulatorSettings(dp=4, pp=1, tp=8, iterations=1))  # one ring over four hosts for each place
    assert len(plain_links(engine)) == 0
    assert len(plain_nics(engine)) == 0


def test_pairs_of_the_pipeline_are_plain_and_the_ring_beside_them_makes_nics_plain() -> None:
    engine = Engine(SimulatorSettings(dp=4, pp=2, tp=8, iterations=1))
    pairs = {(rank, rank + 32) for rank in range(32)} | {(rank + 32, rank) for rank in range(32)}
    assert set(map(tuple, plain_links(engine).tolist())) == pairs
    assert set(plain_nics(engine).tolist()) == set(range(64))


def test_a_nic_that_serves_one_link_only_is_no_plain_place() -> None:
    engine = Engine(SimulatorSettings(dp=1, pp=2, tp=8, iterations=1))  # both NICs of a pair carry the same
    assert len(plain_nics(engine)) == 0
    assert len(plain_links(engine)) == 16


def test_a_host_that_is_a_stage_is_no_plain_place() -> None:
    assert len(plain_hosts(Engine(SimulatorSettings(dp=1, pp=4, tp=8, iterations=1)))) == 0
    assert len(plain_hosts(Engine(SimulatorSettings(dp=2, pp=4, tp=8, iterations=1)))) == 8
    assert len(plain_hosts(Engine(SimulatorSettings(dp=1, pp=4, tp=4, iterations=1)))) == 0  # two whole stages


def test_a_switch_that_all_traffic_crosses_is_no_plain_place() -> None:
    assert len(plain_switches(Engine(SimulatorSettings(dp=2, pp=2, tp=8, iterations=1)))) == 0  # one switch
    found = plain_switches(Engine(SimulatorSettings(dp=4, pp=4, tp=8, hosts_per_switch=2, iterations=1)))
    assert found.tolist() == list(range(8))
