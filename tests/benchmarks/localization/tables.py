"""What the sections of a report are made of: shares, accuracies, tables. Knows no detector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tests.benchmarks.localization.statistics import wilson

Row = Mapping[str, Any]
Rows = Sequence[Row]
Cells = Sequence[str]

ACCURACY_HEAD: Final = ("top-1", "95 %", "top-2", "device", "nobody", "somebody else", "cases")
BLAMELESS_HEAD: Final = (
    "jobs", "iterations", "of devices", "at most (95 %)", "of blameless kinds", "irregular iterations",
)  # fmt: skip
"""Heads of the columns that `accuracy` and `blameless_line` fill."""


def right(rows: Rows, what: str = "is_top1") -> int:
    """How many rows say so."""
    return sum(bool(row[what]) for row in rows)


def share(hits: int, total: int) -> str:
    """A share with its interval, for a line of text."""
    low, high = wilson(hits, total)
    return f"{hits / total:.1%} ({low:.1%} to {high:.1%}, {hits} of {total})" if total else "none measured"


def grouped(title: str, head: str, rows: Rows, key: Callable[[Row], str]) -> list[str]:
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["excess"]):
        groups.setdefault(key(row), []).append(row)
    lines = [[name, *accuracy(own)] for name, own in groups.items()]
    return [f"## {title}", "", *table([head, *ACCURACY_HEAD], lines)]


def accuracy(rows: Rows) -> Cells:
    """Cells below `ACCURACY_HEAD`."""
    total = len(rows)
    if not total:
        return [*[""] * (len(ACCURACY_HEAD) - 1), "0"]
    low, high = wilson(right(rows), total)
    nobody = right(rows, "is_nobody")
    others = sum(not row["is_top1"] and not row["is_nobody"] for row in rows)
    figures = [right(rows) / total, right(rows, "is_top2") / total, right(rows, "is_device") / total]
    top1, top2, device = (f"{figure:.1%}" for figure in figures)
    return [top1, f"{low:.1%} to {high:.1%}", top2, device, str(nobody), str(others), str(total)]


def said(row: Row) -> str:
    """What the verdicts of a row say, on one line."""
    texts = []
    for verdict in row["verdicts"]:
        suspects = [f"{s['device']} {'-'.join(map(str, s['ranks'][:2]))} {s['probability']:.2f}"
                    for s in verdict["suspects"][:2]]  # fmt: skip
        texts.append(f"{verdict['kind']} {verdict['iterations']}: {', '.join(suspects) or 'nobody'}")
    return "; ".join(texts) or "nothing"


def table(head: Cells, lines: Iterable[Cells]) -> list[str]:
    """Lines of a Markdown table."""
    rows = ["| " + " | ".join(cells) + " |" for cells in (head, *lines)]
    return [rows[0], "|---" * len(head) + "|", *rows[1:]]


def blameless_line(name: str, rows: Rows) -> Cells:
    iterations, devices = healthy(rows)
    blameless = sum(row["blameless_verdicts"] for row in rows)
    irregular = sum(len(row["irregular_iterations"]) for row in rows)
    upper = 1e3 * wilson(devices, iterations)[1]
    return [name, str(iterations), per_1000(devices, iterations), f"{upper:.1f}", per_1000(blameless, iterations),
            str(irregular)]  # fmt: skip


def healthy(rows: Rows) -> tuple[int, int]:
    return sum(row["iterations"] for row in rows), sum(row["devices_accused"] for row in rows)


def per_1000(count: int, iterations: int) -> str:
    return f"{1e3 * count / iterations:.2f}" if iterations else "none measured"
