from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from irregulars.producers.simulator.effects import fault_ranks
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.presets import SHAPES
from tests.benchmarks.localization.blameless import draw_blameless, draw_further
from tests.benchmarks.localization.cases import SPLITS, draw_cases
from tests.benchmarks.localization.field import (
    EVERYTHING,
    ITERATIONS,
    KINDS,
    SORTS,
    STRENGTHS,
    FieldCase,
    draw_field,
    draw_healthy_field,
    field_fault,
    run_field,
    run_healthy_field,
)

ALL = [case for split in SPLITS for case in draw_field(split)]


@pytest.mark.parametrize("split", SPLITS)
def test_every_shape_has_every_kind_that_has_a_place_with_every_strength(split: str) -> None:
    found = sorted((case.job_shape, case.kind, case.excess) for case in draw_field(split))
    assert found == sorted((shape, *one) for shape in KINDS for one in product(KINDS[shape], STRENGTHS))
    assert set(KINDS) == SHAPES.keys() - {"pipeline"}
    assert {case.sort for case in draw_healthy_field(split)} == {*SORTS, EVERYTHING}


def test_splits_share_no_seed_and_no_topology_and_no_seed_of_another_part() -> None:
    seeds, shapes = [], []
    for split in SPLITS:
        cases = [*draw_field(split), *draw_healthy_field(split)]
        others = [*draw_cases(split), *draw_further(split), *draw_blameless(split)]
        own = [case.settings().seed for case in cases]
        assert len(set(own)) == len(own)
        assert not set(own) & {case.seed for case in others}
        seeds.append(set(own))
        jobs = [case.settings() for case in cases]
        shapes.append({(s.dp, s.pp, s.tp, s.cp, s.ep, s.shards, s.gradient_sync, s.is_nic_contended) for s in jobs})
    assert not seeds[0] & seeds[1]
    shared = shapes[0] & shapes[1]
    assert not shared, shared


def test_clocks_resolutions_and_shapes_of_faults_are_mixed() -> None:
    for split in SPLITS:
        cases = draw_field(split)
        settings = [case.settings() for case in cases]
        assert {one.time_resolution_ns for one in settings} == {1, 1_000, 10_000}
        assert 0.4 < np.mean([one.clock == "per_host" for one in settings]) < 0.6
        assert len({case.shape for case in cases}) == 6
        for kind in ("slow_rank", "slow_host"):
            assert len({case.shape for case in cases if case.kind == kind}) >= 4


@pytest.mark.parametrize("case", ALL[::9], ids=lambda case: f"{case.split}-{case.job_shape}-{case.kind}")
def test_every_fault_has_a_place_that_is_logged(case: FieldCase) -> None:
    engine = Engine(case.settings())
    fault = next(field_fault(case, engine))
    assert fault == next(field_fault(case, engine))
    ranks = fault_ranks(fault, engine.topology)
    assert engine.topology.is_logged[ranks].any()
    assert all(22 <= first < past <= ITERATIONS or first == 0 for first, past in case.spans)


def test_rows_are_scored_as_those_of_the_suite() -> None:
    case = next(case for case in draw_field("development") if case.kind == "slow_rank" and case.excess == 1.0)
    incident = run_field(case, 1.1)
    healthy = run_healthy_field(draw_healthy_field("development", 1)[0], 1.1)
    assert incident["measured_excess"] == pytest.approx(1.0, rel=0.1)
    assert {"is_top1", "is_nobody", "promises", "truth", "iterations_to_verdict"} <= incident.keys()
    assert incident["iterations"] == ITERATIONS
    assert healthy["iterations"] == 250
    assert 0.005 < healthy["variation"] < 0.08
