"""Figures beside what they must be and what was committed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.benchmarks.table.comparing import Line, committed_lines, lines_of, merged, read
from tests.benchmarks.table.figures import FIGURES, PROGRAMS, Figure, Program, figures_of
from tests.benchmarks.table.running import Outcome

WORKER = next(one for one in PROGRAMS if one.name == "worker")
TOLD = {
    "batches": 4000, "operators": 8_000_000, "size_bytes": 400_000_000,
    "took_s": {
        "confluent-kafka, reading": 0.2, "Faust agent, counting bytes": 1.0, "worker, broker to evidence": 4.0,
    },
}  # fmt: skip


def figure(*, must: float | None = None, is_more_better: bool = True, is_ratio: bool = True) -> Figure:
    return Figure("key", "about", "", "program", float, must, is_more_better, is_ratio)


def outcome(told: Any, problem: str | None = None) -> Outcome:
    return Outcome(Program("program", "tests.none"), told, problem)


def test_the_figures_of_a_benchmark_are_read_from_its_json() -> None:
    values = {line.figure.key: line.value for line in lines_of([Outcome(WORKER, TOLD)], {})}
    assert values == pytest.approx(
        {"worker": 2.0, "worker_of_faust": 0.25, "worker_of_plain": 0.05, "operator_bytes": 50.0}
    )


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ("x", "not in its JSON (ValueError: could not convert string to float: 'x')"),
        (math.nan, "must be a number; got nan"),
        (None, "it wrote no JSON"),
    ],
)
def test_a_value_that_is_none_says_why(told: object, problem: str) -> None:
    assert read(figure(), outcome(told)) == (None, problem)


def test_a_benchmark_that_failed_and_told_something_is_shown_with_its_problem() -> None:
    assert read(figure(), outcome(2.0, "failed, status 1: x")) == (2.0, "failed, status 1: x")


@pytest.mark.parametrize(
    ("value", "is_more_better", "is_reached"),
    [(0.6, True, True), (0.59, True, False), (0.6, False, True), (0.61, False, False)],
)
def test_a_figure_is_reached_at_its_limit(value: float, is_more_better: bool, is_reached: bool) -> None:
    assert Line(figure(must=0.6, is_more_better=is_more_better), value, None).is_reached is is_reached


def test_a_figure_without_limit_or_value_is_neither_reached_nor_missed() -> None:
    assert Line(figure(), 1.0, None).is_reached is None
    assert Line(figure(must=1.0), None, None).is_reached is None


@pytest.mark.parametrize(
    ("value", "is_more_better", "is_worse"),
    [(0.81, True, False), (0.79, True, True), (1.19, False, False), (1.21, False, True), (5.0, True, False)],
)
def test_a_ratio_is_worse_by_more_than_a_fifth_of_the_committed_one(
    value: float, is_more_better: bool, is_worse: bool
) -> None:
    assert Line(figure(is_more_better=is_more_better), value, 1.0).is_worse is is_worse


def test_what_depends_on_the_machine_is_never_worse() -> None:
    assert not Line(figure(is_ratio=False), 0.1, 1.0).is_worse


def test_what_is_committed_keeps_the_figures_of_what_was_not_run() -> None:
    before = {"figures": {"stored": 5.0, "worker": 1.0}, "commits": {"stored": "aaa", "worker": "aaa"}}
    before |= {"problems": {"worker": "failed", "idle": "not there"}}
    found = merged(before, [Outcome(WORKER, TOLD)], {"cores": 2}, "bbb")
    assert found["figures"]["stored"] == 5.0
    assert found["figures"]["worker"] == 2.0
    assert (found["commits"]["stored"], found["commits"]["worker"]) == ("aaa", "bbb")
    assert found["problems"] == {"idle": "not there"}


def test_all_figures_are_shown_those_without_a_value_too() -> None:
    lines = committed_lines({"figures": {"worker": 2.0}, "problems": {"idle": "not there"}})
    assert [line.figure for line in lines] == list(FIGURES)
    problems = {line.figure.program: line.problem for line in lines}
    assert (problems["idle"], problems["agent"]) == ("not there", "not measured")


def test_every_program_gives_figures_and_every_figure_has_a_program_and_a_key() -> None:
    assert [one.name for one in PROGRAMS if not figures_of(one.name)] == []
    assert {one.program for one in FIGURES} == {one.name for one in PROGRAMS}
    assert len({one.key for one in FIGURES}) == len(FIGURES)
