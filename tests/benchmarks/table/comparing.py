"""Hold the figures of a run against what they must reach and against the committed ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.benchmarks.table.figures import FIGURES, Figure, figures_of
from tests.benchmarks.table.running import Outcome

WORSE: Final = 0.2  # a ratio that is worse by more than this share of the committed one is told


@dataclass(frozen=True)
class Line:
    """A figure of this run beside the committed one."""

    figure: Figure
    value: float | None  # `None`: this run has none; `problem` then says why
    committed: float | None  # `None`: there is none yet
    problem: str | None = None

    @property
    def is_reached(self) -> bool | None:
        """Whether it is what it must be; `None`: it need not be anything, or is not known."""
        return None if self.value is None else self.figure.is_reached(self.value)

    @property
    def change(self) -> float | None:
        """By which share it is better (above 0) or worse than the committed one."""
        if self.value is None or not self.committed:
            return None
        more = self.value / self.committed - 1
        return more if self.figure.is_more_better else -more

    @property
    def is_worse(self) -> bool:
        """Whether it is a ratio that got worse by more than `WORSE`."""
        return self.figure.is_ratio and self.change is not None and self.change < -WORSE


def lines_of(outcomes: Iterable[Outcome], committed: Mapping[str, Any]) -> list[Line]:
    """Return the lines of all programs that were run, in the order of the figures."""
    by_key = {line.figure.key: line for outcome in outcomes for line in _lines(outcome, committed)}
    return [by_key[one.key] for one in FIGURES if one.key in by_key]


def committed_lines(committed: Mapping[str, Any]) -> list[Line]:
    """Return the committed figures as lines, nothing beside them; those that never had a value too."""
    values = committed.get("figures", {})
    problems = committed.get("problems", {})
    return [Line(one, values.get(one.key), None, problems.get(one.program, "not measured")) for one in FIGURES]


def _lines(outcome: Outcome, committed: Mapping[str, Any]) -> Iterable[Line]:
    before = committed.get("figures", {})
    for figure in figures_of(outcome.program.name):
        value, problem = read(figure, outcome)
        yield Line(figure, value, before.get(figure.key), problem)


def read(figure: Figure, outcome: Outcome) -> tuple[float | None, str | None]:
    """Return a figure's value, and what is wrong with it."""
    if outcome.told is None:
        return None, outcome.problem or "it wrote no JSON"
    try:
        value = float(figure.read(outcome.told))
    except (KeyError, IndexError, TypeError, ValueError, StopIteration, ZeroDivisionError) as error:
        return None, f"not in its JSON ({type(error).__name__}: {error})"
    if not math.isfinite(value):
        return None, f"must be a number; got {value}"
    return value, outcome.problem


def merged(
    committed: Mapping[str, Any], outcomes: Sequence[Outcome], machine: Mapping[str, Any], commit: str
) -> dict[str, Any]:
    """Return the file to commit: figures of this run, and those committed before of programs that were not run.

    Each figure says on which commit it was measured; the machine is that of this run.
    """
    lines = lines_of(outcomes, committed)
    ran = {outcome.program.name for outcome in outcomes}
    problems = {name: text for name, text in committed.get("problems", {}).items() if name not in ran}
    problems |= {outcome.program.name: outcome.problem for outcome in outcomes if outcome.problem}
    values, commits = dict(committed.get("figures", {})), dict(committed.get("commits", {}))
    for line in lines:
        if line.value is not None and values.get(line.figure.key) != _rounded(line.value):
            values[line.figure.key], commits[line.figure.key] = _rounded(line.value), commit
    keys = [figure.key for figure in FIGURES if figure.key in values]
    return {
        "machine": dict(machine),
        "figures": {key: values[key] for key in keys},
        "commits": {key: commits.get(key, commit) for key in keys},
        "problems": problems,
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
