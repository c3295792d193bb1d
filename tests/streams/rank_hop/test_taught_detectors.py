from __future__ import annotations

import numpy as np

from irregulars.detectors.plugins.baseline import RobustBaseline
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.streams.rank_hop.taught_detectors import TaughtDetectors, UsualTime
from tests.stored_states import stored


def taught_by(elapsed_ms: list[float]) -> list[bool]:
    """Say of each iteration of a rank whether it is learned."""
    usual, learned = UsualTime(), []
    for one in elapsed_ms:
        learned.append(usual.is_usual(one, 1.1, 50))
        usual = usual.next(one, 1.1, 50)
    return learned


def test_iterations_above_delta_times_the_mean_are_not_learned() -> None:
    assert taught_by([100.0] * 20 + [120.0] * 15 + [105.0]) == [True] * 20 + [False] * 15 + [True]


def test_a_long_first_iteration_does_not_make_the_mean() -> None:
    assert taught_by([3000.0] + [100.0] * 20 + [120.0])[-1] is False


def test_what_stays_long_is_usual_in_the_end() -> None:
    learned = taught_by([100.0] * 20 + [200.0] * 120)
    assert not any(learned[20:120])
    assert all(learned[120:])


def test_a_fault_is_not_taught_and_a_restart_forgets_nothing() -> None:
    whole, broken = (TaughtDetectors([RobustBaseline], 1.1, 50) for _ in range(2))
    for iteration in range(80):
        is_faulty = iteration >= 40
        frame = sample_frame("operator", iteration, is_faulty=is_faulty)
        elapsed_ns = 3_000_000 if is_faulty else 1_000_000
        found = whole.take(frame, elapsed_ns)
        assert broken.take(frame, elapsed_ns) == found or np.isnan(found["score"])
        state = stored(broken.state())
        broken = TaughtDetectors([RobustBaseline], 1.1, 50)
        broken.restore(state)
    assert found["score:robust_baseline"] == found["score"] > 20  # after forty of them it is as strange as the first
