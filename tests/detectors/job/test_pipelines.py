"""Pipelines told from who sends to whom."""

from __future__ import annotations

from itertools import pairwise

import pytest

from irregulars.detectors.job.pipelines import stages_from_transfers

Counts = dict[tuple[int, int], int]


def chain(*ranks: int, count: int = 8) -> Counts:
    steps = list(pairwise(ranks))
    return dict.fromkeys([*steps, *((b, a) for a, b in steps)], count)


def round_trip(*ranks: int, count: int = 8, back: int = 6) -> Counts:
    return chain(*ranks, count=count) | dict.fromkeys([(ranks[-1], ranks[0]), (ranks[0], ranks[-1])], back)


def test_neighbours_that_send_both_ways_are_stages() -> None:
    assert stages_from_transfers(chain(0, 2, 4) | chain(1, 3, 5)) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


def test_interleaved_chunks_return_to_the_first_stage_less_often() -> None:
    assert stages_from_transfers(round_trip(0, 2, 4) | round_trip(1, 3, 5)) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


def test_two_chunks_of_one_micro_batch_each_are_enough() -> None:
    counts = round_trip(0, 2, 4, count=2, back=1) | round_trip(1, 3, 5, count=2, back=1)
    assert stages_from_transfers(counts) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param({}, id="nothing is sent"),
        pytest.param(round_trip(0, 2, 4, back=8) | round_trip(1, 3, 5, back=8), id="rings that turn both ways"),
        pytest.param(
            round_trip(0, 2, 4, count=25, back=24) | round_trip(1, 3, 5, count=25, back=24),
            id="rings that lost a row",
        ),
        pytest.param({(0, 2): 8, (2, 4): 8, (4, 0): 8, (1, 3): 8, (3, 5): 8, (5, 1): 8}, id="rings"),
        pytest.param(round_trip(0, 2, 4, count=1, back=0) | round_trip(1, 3, 5, count=1, back=0), id="once each"),
        pytest.param(chain(0, 2, 4), id="one pipeline: nobody has a peer"),
        pytest.param(chain(0, 2) | chain(1, 3), id="pairs may be rings"),
        pytest.param(chain(0, 2, 4) | chain(1, 3), id="of other lengths"),
        pytest.param(chain(0, 4, 2) | chain(1, 3, 5), id="not in order"),
        pytest.param(chain(0, 2, 4) | chain(1, 3, 5) | {(0, 3): 1}, id="one that sends elsewhere"),
    ],
)
def test_whatever_is_no_pipeline_has_no_stages(counts: Counts) -> None:
    assert stages_from_transfers(counts) == {}


def test_who_logs_nothing_is_of_the_stage_of_those_it_works_with() -> None:
    counts = chain(0, 4, 8) | chain(1, 5, 9)
    groups = [(0, 1, 2, 3), (4, 5, 6), (2, 6, 10), tuple(range(11))]
    known = {0: 0, 1: 0, 4: 1, 5: 1, 8: 2, 9: 2}
    assert stages_from_transfers(counts, groups) == known | {2: 0, 3: 0, 6: 1}
