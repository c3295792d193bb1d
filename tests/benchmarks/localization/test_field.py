from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from irregulars.producers.simulator.effects import fault_ranks
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.presets import SHAPES
from tests.benchmarks.localization.blameless import draw_blameless, draw_further
from tests.benchmarks.localization.cases import draw_cases
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
from tests.benchmarks.localization.report import field_sections
from tests.benchmarks.localization.topologies import SPLITS

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


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    incident = next(case for case in draw_field("development") if case.kind == "slow_rank" and case.excess == 1.0)
    healthy = draw_healthy_field("development", 1)[0]
    return {"field": [run_field(incident, 1.1)], "field_healthy": [run_healthy_field(healthy, 1.1)]}


def test_rows_are_scored_as_those_of_the_suite(rows: dict[str, Any]) -> None:
    incident, healthy = rows["field"][0], rows["field_healthy"][0]
    assert incident["measured_excess"] == pytest.approx(1.0, rel=0.1)
    assert {"is_top1", "is_nobody", "promises", "truth", "iterations_to_verdict"} <= incident.keys()
    assert incident["iterations"] == ITERATIONS
    assert healthy["iterations"] == 250
    assert 0.005 < healthy["variation"] < 0.08


def test_the_report_has_tables_of_both_and_nothing_where_none_was_run(rows: dict[str, Any]) -> None:
    text = "\n".join(line for section in field_sections(rows) for line in section)
    assert "## Field: by shape of the job" in text
    assert "| ddp | " in text
    assert "## Field: nobody to blame, accusations per 1,000 iterations" in text
    assert "| clean | 250 | " in text
    assert field_sections({"field": [], "field_healthy": []}) == []
