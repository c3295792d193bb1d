"""What an iteration shows, and of whom it may say anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.topology import Device
from tests.detectors.observed_iterations import MS, PAIR, late, observation, work

LATE_SIGMAS = IRREGULAR.late_sigmas

LINK = Cause("slow_link", ((Device("link", (1, 3)), 0.95),), frozenset({PAIR}), 1, {0: 8 * MS})
RANK = Cause("slow_rank", ((Device("gpu", (1,)), 1.0),), frozenset({work(1)}), None, {0: 8 * MS})


def noisy(most_ms: float, noise_ms: float = 0.001) -> Observation:
    """Transfers that took 8 ms longer, and up to `most_ms` longer when all was as always, give or take `noise_ms`."""
    one = observation(0, {PAIR: 8.0})
    assert one.attribution is not None
    lanes = one.attribution.lanes
    lanes = {at: own._replace(most_ns=most_ms * MS, noise_ns=noise_ms * MS) for at, own in lanes.items()}
    return replace(one, attribution=replace(one.attribution, lanes=lanes))


@pytest.mark.parametrize(("noise_ms", "is_beyond"), [(0.9, True), (1.1, False)])
def test_the_longest_that_was_as_always_is_known_to_its_noise(noise_ms: float, is_beyond: bool) -> None:
    assert noisy(7.0, noise_ms).is_beyond_noise(LINK) == is_beyond


@pytest.mark.parametrize(("most_ms", "is_beyond"), [(7.0, True), (9.0, False)])
def test_transfers_are_beyond_noise_if_they_took_longer_than_any_that_was_as_always(
    most_ms: float, is_beyond: bool
) -> None:
    assert noisy(most_ms).is_beyond_noise(LINK) == is_beyond


def test_which_causes_an_iteration_may_show() -> None:
    # What a device does to few bytes does not hide what it does to many
    one = noisy(7.0)
    assert one.attribution is not None
    other = Lane("pair", 3, 0)
    quiet = one.attribution.lanes[PAIR]._replace(excess_ns=0.0, most_ns=30 * MS)
    both = replace(one, attribution=replace(one.attribution, lanes={**one.attribution.lanes, other: quiet}))
    assert both.is_beyond_noise(replace(LINK, lanes=frozenset({PAIR, other})))
    # Transfers that were not seen are not beyond noise
    assert not noisy(0.0).is_beyond_noise(replace(LINK, lanes=frozenset({Lane("pair", 2, 3)})))
    assert not observation(0).is_beyond_noise(LINK)
    assert not observation(0).is_beyond_noise(RANK)
    # What was read for a late rank says nothing of others
    weak = replace(observation(0, late(1)), is_long=False, latest=Latest(1, 50 * MS, LATE_SIGMAS))
    assert weak.may_show(RANK)
    assert not weak.may_show(LINK)
    assert not replace(weak, latest=Latest(2, 50 * MS, LATE_SIGMAS)).may_show(RANK)
    assert replace(weak, is_shifted=True).may_show(LINK)


WORLD = Lane("collective", 0)


@pytest.mark.parametrize(("path_ms", "is_mainly"), [
    ({work(1): 5.0}, True),  # nothing beside it
    ({work(1): 5.0, WORLD: 4.9}, True),
    ({work(1): 5.0, WORLD: 5.1}, False), ({work(1): 5.0, EVERYBODY: 5.1}, False),
    ({work(1): 6.9, WORLD: 15.0}, False), ({work(1): 7.1, WORLD: 15.0}, True),  # of 100 ms that are usual
    ({work(1): 5.0, WORLD: -20.0}, True),  # what was quicker is no cause beside it
    ({WORLD: 15.0}, False),
])  # fmt: skip
def test_a_cause_beside_another_has_most_of_the_excess_or_more_than_a_slow_phase(
    path_ms: dict[Lane, float], is_mainly: bool
) -> None:
    assert observation(0, path_ms).is_mainly(RANK) == is_mainly


def test_an_iteration_that_was_not_looked_into_has_no_main_cause() -> None:
    assert not observation(0).is_mainly(RANK)
