"""The attributions of a judge's state as columns: nothing is lost, shared ones stay shared, and they are short."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.judging.iteration_judge import JudgeState
from irregulars.detectors.nics.steadiness import Swing
from irregulars.detectors.path.critical_path import Attribution, Piece
from irregulars.errors import RecordError
from irregulars.state_codec import decode_state, encode_state
from irregulars.streams.job_hop.stored_attributions import StoredAttributions, put_back, take_out
from tests.streams.worker.recorded_states import cut


def judge_with(*kept: Attribution, read: Attribution | None = None) -> JudgeState:
    """Return the state of a job with an open verdict that keeps these attributions."""
    judge = cut()[0].monitor._judge.state()
    (verdict,) = judge.tracker.open
    observation = verdict.kept[0]
    own = replace(verdict, kept=type(verdict.kept)(replace(observation, attribution=one) for one in kept))
    return replace(
        judge, tracker=replace(judge.tracker, open=(own,)), read_last=None if read is None else (read, 2.5)
    )


def attribution(number: int, scale: float = 1.0, lanes: int = 3, **changes: Any) -> Attribution:
    pair = [Lane("pair", one, one + 1) for one in range(lanes)]
    values: dict[str, Any] = {
        "path_excess_ns": {pair[1]: 0.3 * scale, Lane("work", 7): -5.0, pair[0]: 96.0},
        "pieces": {pair[1]: Piece(pair[1], 1, 8, 4, 0.7, math.nan), pair[0]: Piece(pair[0], 0, 9, 3, 100.0, 4.0)},
        "lanes": {one: LaneExcess(scale * at, 10.0, 0.1, 1e6, 1.125, 2.0) for at, one in enumerate(pair)},
        "work_excess_ns": {3: scale, 1: -scale / 3, 2: 0.0},
        "rates": {1: (0.25, scale), 0: (1.5, 0.75)},
    }
    return Attribution(number, **(values | changes))


def stored(judge: JudgeState) -> JudgeState:
    """Return what another process puts together again."""
    rest, apart = take_out(judge)
    assert all(one.attribution is None for one in (*rest.tracker.recent, *rest.tracker.open[0].kept))
    again = decode_state(encode_state(apart, 1), StoredAttributions, 1)
    return put_back(decode_state(encode_state(rest, 1), JudgeState, 1), again)


@pytest.mark.parametrize("scale", [1.0, 100.0, 1 / 3, 1e200, math.inf, math.nan])
def test_attributions_are_as_they_were_and_in_their_order(scale: float) -> None:
    swing = Swing(3, 1, 0.5, 0.25, 1.0, 2.0, math.nan, 0.5)
    kept = [
        attribution(5, scale),
        attribution(6, 2.0, lanes=5, incomplete=frozenset([4, 2]), excess_ns=7.5, is_by_peers=True, swings=(swing,)),
        Attribution(7, {}, {}, {}, {}),
    ]
    again = [one.attribution for one in stored(judge_with(*kept)).tracker.open[0].kept]
    assert [repr(one) for one in again] == [repr(one) for one in kept]  # dictionaries in their order, and NaN


def test_one_that_several_observations_share_is_stored_once() -> None:
    one = attribution(5)
    judge = judge_with(one, attribution(6), one, read=one)
    assert len(take_out(judge)[1].heads) <= 2 + len(judge.tracker.recent)
    first, _, last = (found.attribution for found in stored(judge).tracker.open[0].kept)
    assert first is last
    assert repr(stored(judge).read_last) == repr((one, 2.5))


def test_nothing_that_was_read_stays_nothing() -> None:
    assert stored(judge_with(attribution(5))).read_last is None


def test_the_lanes_of_many_iterations_take_a_few_bytes_each() -> None:
    """As records they took 30 bytes each before compression, and ten after it."""
    draw = np.random.default_rng(1)
    kept = []
    for number in range(40):
        excess_ns = np.rint(draw.normal(0, 512, 200)).tolist()
        lanes = {
            Lane("pair", at, at + 1): LaneExcess(ns, 1e7 + at / 7, at / 3, 1e6) for at, ns in enumerate(excess_ns)
        }
        kept.append(Attribution(number, {}, {}, lanes, {}))
    _, apart = take_out(judge_with(*kept))
    assert len(encode_state(apart, 1)) < 3.5 * 40 * 200


def test_attributions_of_another_state_are_refused() -> None:
    _, apart = take_out(judge_with(attribution(5), attribution(6)))
    rest, _ = take_out(judge_with(attribution(5)))
    with pytest.raises(RecordError, match=r"^state must have \d+ observations"):
        put_back(rest, apart)


@pytest.mark.parametrize("change", [{"read_last": 99}, {"read_last": -2}, {"lanes": ()}])
def test_a_number_of_nothing_is_refused(change: dict[str, Any]) -> None:
    _, apart = take_out(judge_with(attribution(5)))
    with pytest.raises(ValueError, match="must be below"):
        replace(apart, **change)
