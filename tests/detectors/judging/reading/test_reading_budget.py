"""What may be read of a large job, and what uses that up."""

from __future__ import annotations

import json

from irregulars.detectors.judging.reading.reading_budget import (
    FREE_OPERATORS,
    KEEP_UP,
    READ_AT_LEAST,
    READ_SHARE,
    ReadingBudget,
)

WINDOW = 50


def spent(operators: int, *, is_irregular: bool = False, count: int = READ_AT_LEAST) -> ReadingBudget:
    """Budget of which the first iterations have used up so much each."""
    budget = ReadingBudget(WINDOW)
    for judged in range(count):
        budget.note(judged, operators, is_explained=False, is_irregular=is_irregular)
    return budget


def may_read_suspect(budget: ReadingBudget, judged: int = READ_AT_LEAST, flowed: int = 0) -> bool:
    return budget.may_read(judged, flowed, is_explained=False, is_irregular=False)


def test_the_first_suspect_iterations_are_read_whatever_they_cost() -> None:
    assert may_read_suspect(spent(10 * FREE_OPERATORS, count=READ_AT_LEAST - 1))
    assert not may_read_suspect(spent(10 * FREE_OPERATORS))


def test_some_suspect_iterations_are_read_in_each_window() -> None:
    budget = spent(10 * FREE_OPERATORS)
    assert not may_read_suspect(budget, judged=WINDOW)
    assert may_read_suspect(budget, judged=WINDOW + 1)


def test_a_share_of_the_log_is_for_suspect_iterations() -> None:
    budget = spent(FREE_OPERATORS)
    enough = round(READ_AT_LEAST * FREE_OPERATORS / READ_SHARE) + 1_000
    assert not may_read_suspect(budget, flowed=enough // 2)
    assert may_read_suspect(budget, flowed=enough)


def test_an_irregular_iteration_that_no_verdict_explains_is_always_read() -> None:
    budget = spent(10 * FREE_OPERATORS)
    assert budget.may_read(READ_AT_LEAST, 0, is_explained=False, is_irregular=True)


def test_what_irregular_iterations_cost_leaves_suspect_ones_theirs() -> None:
    """Transfers that hang now and then must not hide a fault whose delay is small."""
    assert may_read_suspect(spent(10 * FREE_OPERATORS, is_irregular=True, count=100), judged=100)


def test_of_what_a_verdict_explains_little_is_read() -> None:
    budget = spent(1, count=1)
    for judged in range(1, KEEP_UP):
        assert not budget.may_read(judged, 0, is_explained=True, is_irregular=True)
    assert budget.may_read(KEEP_UP, 0, is_explained=True, is_irregular=True)


def test_a_restored_budget_is_what_it_was() -> None:
    budget = spent(FREE_OPERATORS)
    restored = ReadingBudget.from_state(json.loads(json.dumps(budget.state())), WINDOW)
    assert restored.state() == budget.state()
    for judged in (READ_AT_LEAST, WINDOW, WINDOW + 1):
        assert may_read_suspect(restored, judged) == may_read_suspect(budget, judged)
