"""What may be read of a large job, and what uses that up."""

from __future__ import annotations

import pytest

from irregulars.detectors.judging.reading_budget import Need, ReadingBudget
from irregulars.detectors.judging.thresholds import JUDGING
from tests.stored_states import stored

WINDOW = 50
MUCH = 10 * JUDGING.free_operators


def spent(operators: int, *, need: Need = Need.PURSUE, count: int = JUDGING.read_at_least) -> ReadingBudget:
    """Budget of which the first iterations have used up so much each."""
    budget = ReadingBudget(WINDOW)
    for judged in range(count):
        budget.note(judged, operators, need)
    return budget


def may_read_suspect(budget: ReadingBudget, judged: int = JUDGING.read_at_least, flowed: int = 0) -> bool:
    return budget.may_read(judged, flowed, Need.PURSUE)


def test_suspect_iterations_within_the_budget() -> None:
    # The first six suspect iterations are read whatever they cost
    assert may_read_suspect(spent(MUCH, count=5))
    assert not may_read_suspect(spent(MUCH, count=6))
    # Some suspect iterations are read in each window
    budget = spent(MUCH)
    assert not may_read_suspect(budget, judged=WINDOW)
    assert may_read_suspect(budget, judged=WINDOW + 1)


@pytest.mark.parametrize(("flowed", "is_read"), [(110_000_000, False), (140_000_000, True)])
def test_a_share_of_the_log_is_for_suspect_iterations(flowed: int, is_read: bool) -> None:
    """What they have cost, 0.5 million operators, is 0.4 % of 125 million."""
    budget = spent(500_000 // JUDGING.read_at_least + 1)
    assert may_read_suspect(budget, flowed=flowed) == is_read


@pytest.mark.parametrize(("operators", "is_read"), [(450_000, True), (550_000, False)])
def test_half_a_million_operators_are_free(operators: int, is_read: bool) -> None:
    assert may_read_suspect(spent(operators // JUDGING.read_at_least)) == is_read


def test_needs_of_reading() -> None:
    # An irregular iteration that no verdict explains is always read
    assert spent(MUCH).may_read(JUDGING.read_at_least, 0, Need.EXPLAIN)
    # The cost of irregular iterations leaves suspect ones theirs: transfers that hang now and then must not hide a
    # fault whose delay is small.
    assert may_read_suspect(spent(MUCH, need=Need.EXPLAIN, count=100), judged=100)
    # Of iterations that a verdict explains one in ten is read
    budget = spent(1, count=1)
    assert [judged for judged in range(1, 13) if budget.may_read(judged, 0, Need.CONFIRM)] == [10, 11, 12]
    # Iterations that a verdict explains are read within the budget
    budget = spent(MUCH)
    assert not budget.may_read(JUDGING.read_at_least + 10, 0, Need.CONFIRM)
    # A restored budget is what it was
    budget = spent(JUDGING.free_operators)
    restored = ReadingBudget.from_state(stored(budget.state()), WINDOW)
    assert restored.state() == budget.state()
    for judged in (JUDGING.read_at_least, WINDOW, WINDOW + 1):
        assert may_read_suspect(restored, judged) == may_read_suspect(budget, judged)
