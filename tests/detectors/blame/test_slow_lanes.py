"""Which lanes count as slow, which as normal, and which tell nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.blame.slow_lanes import SeenLanes, observe_lanes, stands_out, typical_excess
from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.path.critical_path import Attribution
from tests.detectors.transfers import MS, NORMAL, OF_1_AND_2, SLOW, WORLD, irregular, pair, small

ACCUSED, OTHER = pair(1, 5), pair(1, 3)


def seen_as(lane: LaneExcess) -> bool | None:
    """Whether a lane is slow beside the accused one, which took 30 ms longer than 10 ms; None: it tells nothing."""
    return observe_lanes(ACCUSED, irregular({ACCUSED: SLOW, OTHER: lane})).get(OTHER)


@pytest.mark.parametrize(("excess_ms", "is_slow"), [(27.0, False), (34.0, True)])
def test_a_slow_lane_stands_four_standard_errors_out(excess_ms: float, is_slow: bool) -> None:
    """Of noise of 10 ms the median of five iterations, held against six, has a standard error of 7.6 ms."""
    lane = LaneExcess(excess_ms * MS, 0.1 * MS, 10 * MS, 1e6, 4.0, 4)
    assert stands_out(WORLD, irregular({WORLD: lane}, 5)) == is_slow


@pytest.mark.parametrize(("excess_ms", "is_slow"), [(1.1, False), (1.35, True)])
def test_what_drifts_by_twelve_percent_is_not_slow(excess_ms: float, is_slow: bool) -> None:
    lane = LaneExcess(excess_ms * MS, 10 * MS, 0.0, 1e6, 4.0, 4)
    assert stands_out(WORLD, irregular({WORLD: lane})) == is_slow


@pytest.mark.parametrize(("noise_ms", "found"), [(7.2, False), (8.6, None)])
def test_a_normal_lane_acquits_where_the_slow_down_would_be_noticed_in_five_of_six(
    noise_ms: float, found: bool | None
) -> None:
    """30 ms must be five standard errors: 5.5 ms with noise of 7.2 ms, 6.5 ms with 8.6 ms."""
    assert seen_as(NORMAL._replace(noise_ns=noise_ms * MS)) is found


@pytest.mark.parametrize(("excess_ms", "is_slow"), [(4.0, False), (5.0, True)])
def test_a_slow_lane_is_slower_by_a_seventh_of_what_the_accused_one_predicts(excess_ms: float, is_slow: bool) -> None:
    assert seen_as(NORMAL._replace(excess_ns=excess_ms * MS, slow_transfers=4.0)) is is_slow


def test_lanes_that_noise_or_drift_explains_are_not_slow() -> None:
    # Iterations together stand out of noise that each of them is within
    noisy = SLOW._replace(excess_ns=8 * MS, noise_ns=2.5 * MS, most_ns=9 * MS)
    assert stands_out(WORLD, irregular({WORLD: noisy}, 12))
    assert not stands_out(WORLD, irregular({WORLD: noisy}, 1))
    assert not stands_out(WORLD, irregular({WORLD: NORMAL}))
    assert not stands_out(WORLD, irregular({OF_1_AND_2: SLOW}))
    # What would not stand out says nothing by looking normal
    noisy = NORMAL._replace(noise_ns=100 * MS)
    assert observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW, pair(1, 3): noisy})) == {pair(1, 5): True}
    # A lane that is less slow than the accused one lets expect is not slow: it met the fault's traffic in the fabric;
    # it did not cross the device.
    met = NORMAL._replace(excess_ns=0.1 * SLOW.excess_ns, slow_transfers=4.0)
    crossed = NORMAL._replace(excess_ns=0.3 * SLOW.excess_ns, slow_transfers=4.0)
    seen = observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW, pair(1, 2): met, pair(1, 3): crossed}))
    assert seen == {pair(1, 5): True, pair(1, 2): False, pair(1, 3): True}
    # A lane of which one transfer hung is not slow
    stray = SLOW._replace(slow_transfers=1.0)
    seen = observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW, pair(1, 3): stray}))
    assert seen[pair(1, 3)] is False
    # What drifts by a few percent is not slow
    drifts = NORMAL._replace(excess_ns=0.09 * NORMAL.usual_ns, noise_ns=0.0, slow_transfers=4.0)
    assert observe_lanes(pair(1, 5), irregular({pair(1, 5): SLOW, pair(1, 3): drifts}))[pair(1, 3)] is False
    # More iterations tell more
    noisy = NORMAL._replace(excess_ns=10 * MS, noise_ns=3.5 * MS, slow_transfers=4.0)
    seen = {pair(1, 5): SLOW, pair(1, 3): noisy}
    assert pair(1, 3) not in {lane for lane, slow in observe_lanes(pair(1, 5), irregular(seen, 1)).items() if slow}
    assert observe_lanes(pair(1, 5), irregular(seen, 20))[pair(1, 3)] is True


def test_one_odd_iteration_of_several_moves_no_lane() -> None:
    seen = {pair(1, 5): SLOW, pair(1, 3): NORMAL}
    odd = irregular(seen)[:-1] + irregular(seen | {pair(1, 3): SLOW}, 1)
    assert observe_lanes(pair(1, 5), odd)[pair(1, 3)] is False


@pytest.mark.parametrize(
    ("lane", "is_seen"),
    [
        (small(4 * 90_000.0), False),
        (small(4 * 110_000.0), True),
        (small(1 * MS, usual_ns=5 * MS), False),  # of 15 ms that it would have if it were slow by as much
        (small(3 * MS, usual_ns=5 * MS), True),
    ],
)
def test_small_messages_that_met_the_queues_of_a_slow_communicator_are_no_evidence(
    lane: LaneExcess, is_seen: bool
) -> None:
    seen = observe_lanes(WORLD, irregular({WORLD: SLOW, pair(1, 5): lane}))
    assert seen == {WORLD: True} | ({pair(1, 5): True} if is_seen else {})


KNOWN = st.dictionaries(
    st.sampled_from([ACCUSED, OTHER, WORLD, OF_1_AND_2, pair(2, 3), pair(5, 1)]),
    st.builds(
        LaneExcess,
        st.floats(-MS, 40 * MS), st.floats(0, 20 * MS), st.floats(0, MS), st.sampled_from([1e6, 8.0, math.nan]),
        st.floats(1, 4), st.sampled_from([1.0, 4.0]), st.floats(0, MS),
    ),
)  # fmt: skip


@given(st.lists(KNOWN, min_size=1, max_size=8), st.frozensets(st.sampled_from([OTHER, WORLD, pair(2, 3)])))
def test_lanes_that_are_explained_are_as_if_they_had_not_been_seen(
    seen: list[dict[Lane, LaneExcess]], explained: frozenset[Lane]
) -> None:
    """Each lane is told by its own medians; and in the order in which lanes appear, which sums depend on."""
    some = [Attribution(number, {}, {}, one, {}) for number, one in enumerate(seen)]
    left = [replace(one, lanes={k: v for k, v in one.lanes.items() if k not in explained}) for one in some]
    found = SeenLanes(some).observe(ACCUSED, explained)
    assert list(found.items()) == list(observe_lanes(ACCUSED, left).items())
    order = [ACCUSED, *(lane for one in left for lane in one.lanes if lane != ACCUSED)]
    assert list(found) == [lane for lane in dict.fromkeys(order) if lane in found]


def test_what_is_typical_of_a_lane_are_its_medians() -> None:
    some = [
        Attribution(number, {}, {}, {WORLD: NORMAL._replace(excess_ns=ns)}, {})
        for number, ns in enumerate((1.0, 9.0, 2.0))
    ]
    assert typical_excess(WORLD, some) == NORMAL._replace(excess_ns=2.0)
    assert typical_excess(WORLD, some[:1]) == NORMAL._replace(excess_ns=1.0)
    assert typical_excess(pair(1, 5), some) is None
