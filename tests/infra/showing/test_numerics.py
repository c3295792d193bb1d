"""Loss and norms: bands over ranks, ranks that stand out, and their charts."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from irregulars.infra.runs.analysis import judge_trace
from irregulars.infra.showing.found import gather
from irregulars.infra.showing.from_database import found_in_recording
from irregulars.infra.showing.html_page import numerics_charts, page_of
from irregulars.infra.showing.numerics import Band, bands_of, standing_out
from irregulars.producers.trace.directory import read_trace
from tests.infra.showing.made_up_verdicts import RECORDINGS, verdict_of
from tests.sinks import made_up_job

COLUMNS = made_up_job.rank_iterations()


def charts_of(bands: list[Band]) -> list[tuple[str, str, str]]:
    return list(numerics_charts(bands, [(made_up_job.FLIPPED, "corruption")]))


def test_a_band_is_what_the_known_ranks_say() -> None:
    bands = {(one.quantity, one.iteration): one for one in bands_of(COLUMNS, range(41))}
    assert len(bands) == 3 * made_up_job.ITERATIONS
    first = bands["loss", 0]  # of rank 0 nothing is known
    assert (first.lowest, first.middle, first.highest) == (2.501, 2.502, 2.503)
    flipped = bands["grad_norm", made_up_job.FLIPPED]
    assert (flipped.middle, flipped.highest, flipped.rank, flipped.value) == (1.0, math.inf, 3, math.inf)
    assert [one.iteration for one in bands_of(COLUMNS, [7, 9]) if one.quantity == "loss"] == [7, 9]


def test_a_rank_that_is_far_outside_stands_out_alone_and_any_other_value_where_all_have_one() -> None:
    dice = np.random.default_rng(5)
    rank, iteration = np.tile(np.arange(64), 200), np.repeat(np.arange(200), 64)
    # The norm falls by a hundred times meanwhile: noise is judged as a share of the median.
    norm = np.exp(-iteration / 43) * (1 + 0.02 * dice.standard_normal(len(rank)))
    odd = np.where((iteration == 150) & (rank == 9), 1.5 * norm, norm)
    for values, wanted in ((norm, []), (odd, [(150, 9)])):
        bands = bands_of({"iteration": iteration, "rank": rank, "local_grad_norm": values}, range(200))
        assert [(one.iteration, one.rank) for one in standing_out(bands)] == wanted
    own = [one for one in bands_of(COLUMNS, range(40)) if one.quantity == "grad_norm"]
    assert [(one.iteration, one.rank) for one in standing_out(own)] == [(made_up_job.FLIPPED, 3)]


@pytest.mark.parametrize("changed", [
    {},
    {"loss": np.full(160, np.inf)},
    {"loss": np.zeros(160)},
    {"loss": np.where(np.arange(160) % 2, np.inf, -np.inf)},
    {"local_grad_norm": np.logspace(-8, 3, 160)},
])  # fmt: skip
def test_charts_are_sound_whatever_was_computed(changed: dict[str, np.ndarray]) -> None:
    charts = charts_of(bands_of({**COLUMNS, **changed}, range(40)))
    assert [title.partition(",")[0] for title, _, _ in charts] == [
        "Loss", "Gradient norm", "Gradient norm of each rank",
    ]  # fmt: skip
    for _, chart, _ in charts:
        ElementTree.fromstring(chart)
        assert not re.search("nan|inf", re.sub("<title>.*?</title>", "", chart))
    for _, x, y in re.findall(r'(points="|[\d.]+ )([\d.]+),([\d.]+)', "".join(chart for _, chart, _ in charts)):
        assert 0 <= float(x) <= 720
        assert 0 <= float(y) <= 150


def test_a_chart_points_to_the_rank_and_to_where_the_verdict_began() -> None:
    _, chart, legend = charts_of(bands_of(COLUMNS, range(40)))[1]
    assert "rank 3, iteration 25: inf (median 1)" in chart
    assert "corruption, from iteration 25 on" in chart
    assert "Red: far outside of the others: rank 3 in iteration 25 (inf)." in legend
    assert charts_of([]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["corruption", "loss_spike", "slow_rank"])
def test_a_verdict_on_numbers_shows_numbers_in_place_of_times_of_ranks(kind: str) -> None:
    trace = read_trace(RECORDINGS / "gloo-slow-nic")
    judgements, _ = judge_trace(trace)
    columns = dict(judgements.rank_iterations)
    columns["loss"] = 3 - columns["iteration"] / 100 + columns["rank"] / 1000
    verdict = verdict_of(kind=kind)
    screen = gather(found_in_recording("d", trace, replace(judgements, rank_iterations=columns), verdict))
    page = page_of(screen)
    is_numeric = kind != "slow_rank"
    assert ("<h2>Loss</h2>" in page, "Time between operators" in page) == (is_numeric, not is_numeric)
    assert {one.iteration for one in screen.numerics} == ({*range(20, 101)} if is_numeric else set())
