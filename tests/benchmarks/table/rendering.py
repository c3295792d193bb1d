"""The table as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.benchmarks.table.comparing import WORSE, Line


def number(value: float) -> str:
    """Return a value with three digits that count, or all before the point.

    >>> [number(one) for one in (0.04567, 2.604, 847.3, 938123.0)]
    ['0.0457', '2.60', '847', '938,123']
    """
    if value == 0:
        return "0"
    digits = next((n for n, limit in enumerate((100, 10, 1, 0.1, 0.01)) if abs(value) >= limit), 5)
    return f"{value:,.{digits}f}"


def limit(line: Line) -> str:
    """Return what a figure must be."""
    figure = line.figure
    return "" if figure.must is None else f"{'≥' if figure.is_more_better else '≤'} {figure.must:,g}"


def verdict(line: Line) -> str:
    """Return in a word or two whether it is what it must be, and whether it got worse."""
    reached = {True: "yes", False: "**no**", None: ""}[line.is_reached]
    worse = f"**{-(line.change or 0):.0%} worse**" if line.is_worse else ""
    return ", ".join(text for text in (reached, worse) if text)


def against_committed(lines: Sequence[Line]) -> str:
    """Return the table of a run beside the committed figures."""
    head = ["| figure | value | unit | must be | reached | committed | change |", "|:--|--:|:--|--:|:--|--:|--:|"]
    rows = []
    for line in lines:
        value = number(line.value) if line.value is not None else "-"
        before = "" if line.committed is None else number(line.committed)
        change = "" if line.change is None else f"{line.change:+.0%}"
        rows.append(
            f"| {line.figure.about} | {value} | {line.figure.unit or 'ratio'} | {limit(line)} | {verdict(line)} | "
            f"{before} | {change if line.figure.is_ratio else f'({change})' if change else ''} |"
        )
    return "\n".join([*head, *rows, "", *notes(lines)])


def notes(lines: Sequence[Line]) -> Iterator[str]:
    """Give a line for each problem, and one that sums up."""
    problems: dict[str, None] = {}
    for line in lines:
        if line.problem:
            problems.setdefault(f"{line.figure.program}: {line.problem}")
    yield from (f"* {one}" for one in problems)
    missed = sum(line.is_reached is False for line in lines)
    worse = [line.figure.about for line in lines if line.is_worse]
    known = sum(line.value is not None for line in lines)
    yield f"* {known} of {len(lines)} figures; {missed} are not what they must be."
    if worse:
        yield f"* Worse than the committed ratio by more than {WORSE:.0%}: {'; '.join(worse)}."


def committed_table(committed: Mapping[str, Any], lines: Sequence[Line]) -> str:
    """Return the table of the committed figures for the page of benchmarks."""
    commits = committed.get("commits", {})
    head = ["| figure | value | unit | must be | reached | on |", "|:--|--:|:--|--:|:--|:--|"]
    rows = []
    for line in lines:
        value = number(line.value) if line.value is not None else "-"
        on = commits.get(line.figure.key, "") if line.value is not None else line.problem
        rows.append(
            f"| {line.figure.about} | {value} | {line.figure.unit or 'ratio'} | {limit(line)} | {verdict(line)} | "
            f"{on} |"
        )
    return "\n".join([machine_line(committed["machine"]), "", *head, *rows]) + "\n"


def machine_line(machine: Mapping[str, Any]) -> str:
    """Return the machine in a sentence or two."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']:.0f} GiB, {machine['kernel']}; "
        f"{versions}.\nLoad when it began: {machine['load']:.1f}. Calibration: {machine['python_loop_s']:.3f} s for "
        f"a fixed loop of Python, {machine['numpy_loop_s']:.3f} s for one of numpy, the quickest of five, CPU time."
    )
