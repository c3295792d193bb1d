"""Hold the figures of a run against what they must reach and against the committed ones, as Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.table.figures import FIGURES, Figure
from tests.benchmarks.table.running import Outcome

COMMITTED: Final = Path(__file__).resolve().parents[3] / "infra" / "docs" / "bench.json"
WORSE: Final = 0.2  # a ratio that is worse by more than this share of the committed one is told


def read_committed() -> dict[str, Any]:
    return dict(json.loads(COMMITTED.read_text(encoding="utf-8")))


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
        must = self.figure.must
        if self.value is None or must is None:
            return None
        return self.value >= must if self.figure.is_more_better else self.value <= must

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

    def cells(self) -> list[str]:
        """Name, value, unit, what it must be, and in a word or two whether it is and whether it got worse."""
        figure, value = self.figure, "-" if self.value is None else number(self.value)
        must = "" if figure.must is None else f"{'≥' if figure.is_more_better else '≤'} {figure.must:,g}"
        reached = {True: "yes", False: "**no**", None: ""}[self.is_reached]
        worse = f"**{-(self.change or 0):.0%} worse**" if self.is_worse else ""
        return [figure.about, value, figure.unit or "ratio", must, ", ".join(filter(None, (reached, worse)))]


def lines_of(outcomes: Iterable[Outcome], committed: Mapping[str, Any]) -> list[Line]:
    """Return the lines of all programs that were run, in the order of the figures."""
    by_program, before = {one.program.name: one for one in outcomes}, committed.get("figures", {})
    return [
        Line(one, value, before.get(one.key), problem)
        for one in FIGURES
        if one.program in by_program
        for value, problem in [read(one, by_program[one.program])]
    ]


def committed_lines(committed: Mapping[str, Any]) -> list[Line]:
    """Return the committed figures as lines, nothing beside them; those that never had a value too."""
    values, problems = committed.get("figures", {}), committed.get("problems", {})
    return [Line(one, values.get(one.key), None, problems.get(one.program, "not measured")) for one in FIGURES]


def read(figure: Figure, outcome: Outcome) -> tuple[float | None, str | None]:
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
    ran = {outcome.program.name for outcome in outcomes}
    problems = {name: text for name, text in committed.get("problems", {}).items() if name not in ran}
    problems |= {outcome.program.name: outcome.problem for outcome in outcomes if outcome.problem}
    values, commits = dict(committed.get("figures", {})), dict(committed.get("commits", {}))
    for line in lines_of(outcomes, committed):
        if line.value is not None and values.get(line.figure.key) != (rounded := float(f"{line.value:.4g}")):
            values[line.figure.key], commits[line.figure.key] = rounded, commit
    keys = [figure.key for figure in FIGURES if figure.key in values]
    return {
        "machine": dict(machine),
        "figures": {key: values[key] for key in keys},
        "commits": {key: commits.get(key, commit) for key in keys},
        "problems": problems,
    }


# --- Markdown -------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Return a value with three digits that count, or all before the point.

    >>> [number(one) for one in (0.04567, 2.604, 847.3, 938123.0)]
    ['0.0457', '2.60', '847', '938,123']
    """
    if value == 0:
        return "0"
    digits = next((n for n, limit in enumerate((100, 10, 1, 0.1, 0.01)) if abs(value) >= limit), 5)
    return f"{value:,.{digits}f}"


def against_committed(lines: Sequence[Line]) -> str:
    """Return the table of a run beside the committed figures."""
    head = ["| figure | value | unit | must be | reached | committed | change |", "|:--|--:|:--|--:|:--|--:|--:|"]
    rows = []
    for line in lines:
        before = "" if line.committed is None else number(line.committed)
        change = (
            "" if line.change is None else f"{line.change:+.0%}" if line.figure.is_ratio else f"({line.change:+.0%})"
        )
        rows.append(f"| {' | '.join([*line.cells(), before, change])} |")
    return "\n".join([*head, *rows, "", *_notes(lines)])


def _notes(lines: Sequence[Line]) -> Iterator[str]:
    """Give a line for each problem, and one that sums up."""
    yield from dict.fromkeys(f"* {line.figure.program}: {line.problem}" for line in lines if line.problem)
    missed, known = sum(one.is_reached is False for one in lines), sum(one.value is not None for one in lines)
    yield f"* {known} of {len(lines)} figures; {missed} are not what they must be."
    worse = [line.figure.about for line in lines if line.is_worse]
    if worse:
        yield f"* Worse than the committed ratio by more than {WORSE:.0%}: {'; '.join(worse)}."


def committed_table(committed: Mapping[str, Any], lines: Sequence[Line]) -> str:
    commits = committed.get("commits", {})
    head = ["| figure | value | unit | must be | reached | on |", "|:--|--:|:--|--:|:--|:--|"]
    rows = [
        f"| {' | '.join(line.cells())} | {line.problem if line.value is None else commits.get(line.figure.key, '')} |"
        for line in lines
    ]
    return "\n".join([machine_line(committed["machine"]), "", *head, *rows]) + "\n"


def machine_line(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']:.0f} GiB, {machine['kernel']}; "
        f"{versions}.\nLoad when it began: {machine['load']:.1f}. Calibration: {machine['python_loop_s']:.3f} s for "
        f"a fixed loop of Python, {machine['numpy_loop_s']:.3f} s for one of numpy, the quickest of five, CPU time."
    )
