"""Which cells are beyond usual: culprits of each kind are, healthy ranks and common changes are not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from irregulars.infra.console.heat_levels import Values
from irregulars.infra.console.heat_matrix import QUANTITIES, beyond_peers, low_of, shown_of, usual_of

BEYOND = QUANTITIES["beyond"]
STAGES = np.repeat([0, 1], 8)


def healthy(iterations: int = 40, seed: int = 5) -> Values:
    """Work of 16 ranks in two stages, the second of which works half as long again, with 1 % noise."""
    noise = np.random.default_rng(seed).normal(1, 0.01, (iterations, 16))
    return (1e8 * (1 + 0.5 * STAGES) * noise).astype(np.float32)


def shown(work: Values) -> tuple[Values, float]:
    values = shown_of(BEYOND, work, usual_of(work), STAGES)
    return values, low_of(BEYOND, values)


def test_a_healthy_job_is_as_usual_nearly_everywhere() -> None:
    values, low = shown(healthy())
    assert (values > low).mean() < 0.02
    assert low < 0.06e8


def test_a_fixed_culprit_is_a_row_though_it_has_no_healthy_past() -> None:
    work = healthy()
    work[:, 3] *= 1.3
    values, low = shown(work)
    assert (values[:, 3] > low).all()
    assert (np.delete(values, 3, axis=1) > low).mean() < 0.02


def test_a_culprit_that_is_usually_quick_is_seen_when_it_turns_as_slow_as_its_peers() -> None:
    work = healthy()
    work[:, 3] *= 0.7
    work[30:, 3] /= 0.7
    values, low = shown(work)
    assert (values[30:, 3] > low).all()
    assert not (values[:30, 3] > low).any()


def test_a_change_for_all_is_nobody_s_excess_but_shows_against_their_own_usual() -> None:
    work = healthy()
    work[20] *= 1.5
    values, low = shown(work)
    assert (values[20] > low).mean() < 0.2
    own = shown_of(QUANTITIES["own"], work, usual_of(work), STAGES)
    assert (own[20] > 0.3e8).all()


@given(st.permutations(range(16)), st.sampled_from(sorted(QUANTITIES)))
def test_renaming_ranks_renames_what_is_shown(order: list[int], name: str) -> None:
    work = healthy(7)
    work[3, 5] = np.nan
    one = shown_of(QUANTITIES[name], work, usual_of(work), STAGES)
    other = shown_of(QUANTITIES[name], work[:, order], usual_of(work[:, order]), STAGES[order])
    np.testing.assert_allclose(other, one[:, order], atol=64)  # float32 at 1.5e8


@given(st.sampled_from(sorted(QUANTITIES)), st.integers(0, 2**32 - 1))
def test_a_cell_is_missing_where_nothing_is_stored_and_nowhere_else(name: str, seed: int) -> None:
    work = healthy(6)
    work[np.random.default_rng(seed).random(work.shape) < 0.3] = np.nan
    values = shown_of(QUANTITIES[name], work, usual_of(work), STAGES)
    assert (np.isnan(values) == np.isnan(work)).all()


def test_a_group_too_small_for_a_median_is_held_against_all() -> None:
    work = np.full((2, 6), 100, dtype=np.float32)
    work[:, 5] = 900
    np.testing.assert_array_equal(beyond_peers(work, np.array([0, 0, 0, 0, 0, 1]))[:, 5], [800, 800])


def test_without_any_cell_the_scale_still_has_a_beginning() -> None:
    assert low_of(BEYOND, np.full((2, 2), np.nan, dtype=np.float32)) == BEYOND.least
