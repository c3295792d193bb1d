"""Attributions survive their way through a snapshot."""

from __future__ import annotations

import json
import math

from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.path.attribution_state import attribution_from_state, attribution_to_state
from irregulars.detectors.path.critical_path import Attribution, Piece
from irregulars.streams.worker.snapshot_codec import pack, unpack

WORK, PAIR, GROUP = Lane("work", 3), Lane("pair", 1, 2), Lane("collective", 0)
FULL = Attribution(
    iteration=2**40,
    path_excess_ns={WORK: 1.5, PAIR: -2.25, GROUP: 0.0},
    pieces={WORK: Piece(WORK, 3, 0, 4, 10.0, 8.5), PAIR: Piece(PAIR, 2, 10, 1, 7.0, 9.25)},
    lanes={GROUP: LaneExcess(1.0, 2.0, 0.5, 64.0), PAIR: LaneExcess(3.0, 4.0, 0.0, 128.0)},
    work_excess_ns={0: 1.0, 3: -4.0},
)


def test_an_attribution_comes_back_equal() -> None:
    assert attribution_from_state(unpack(pack(attribution_to_state(FULL)))) == FULL


def test_the_state_is_json() -> None:
    assert attribution_from_state(json.loads(json.dumps(attribution_to_state(FULL)))) == FULL


def test_an_unknown_size_stays_unknown() -> None:
    one = Attribution(1, {}, {}, {GROUP: LaneExcess(1.0, 2.0, 0.5, math.nan)}, {})
    assert math.isnan(attribution_from_state(unpack(pack(attribution_to_state(one)))).lanes[GROUP].size_bytes)


def test_an_empty_attribution_comes_back_empty() -> None:
    empty = Attribution(0, {}, {}, {}, {})
    assert attribution_from_state(unpack(pack(attribution_to_state(empty)))) == empty
