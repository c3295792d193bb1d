"""What the sections of a report are made of: shares, accuracies, tables. Knows no detector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

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


_Z_95: Final = 1.959963984540054


def wilson(hits: int, total: int) -> tuple[float, float]:
    """95 % interval of a share by Wilson's score; of nothing the share may be anything.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    >>> [round(end, 4) for end in wilson(10, 10)]
    [0.7225, 1.0]
    """
    if not 0 <= hits <= total:
        raise ValueError(f"hits must be 0 to total = {total}; got {hits!r}")
    if total == 0:
        return 0.0, 1.0
    share, spread = hits / total, _Z_95**2 / total
    middle = (share + spread / 2) / (1 + spread)
    half = _Z_95 / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(middle - half, 0.0) if hits else 0.0, min(middle + half, 1.0) if hits < total else 1.0


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers whose probability lies in ``[low, high)``: how many, what they promised, and what share was right."""

    low: float
    high: float
    count: int
    promised: float
    right: float


def reliability(probabilities: Sequence[float], is_right: Sequence[bool], bins: int = 10) -> list[Bin]:
    """Compare what was promised with what came true, in bins of equal width; empty ones are left out.

    >>> [(b.low, b.count, b.right) for b in reliability([0.95, 1.0, 0.12], [True, False, False])]
    [(0.1, 1, 0.0), (0.9, 2, 0.5)]
    """
    promised, right = np.asarray(probabilities, dtype=np.float64), np.asarray(is_right, dtype=np.bool_)
    if len(promised) != len(right):
        raise ValueError(f"there must be one answer for each probability; got {len(right)} for {len(promised)}")
    if np.any((promised < 0) | (promised > 1)):
        raise ValueError(f"probabilities must be 0 to 1; got {promised.min():g} to {promised.max():g}")
    place = np.minimum((promised * bins).astype(np.int64), bins - 1)
    return [
        Bin(one / bins, (one + 1) / bins, int(own.sum()), float(promised[own].mean()), float(right[own].mean()))
        for one in np.unique(place).tolist()
        for own in [place == one]
    ]


def calibration_error(found: Sequence[Bin]) -> float:
    """Expected calibration error: mean of |promised - right| over all answers; NaN without any.

    M. P. Naeini, G. Cooper, M. Hauskrecht, Obtaining well calibrated probabilities using Bayesian binning, AAAI 2015.
    """
    total = sum(one.count for one in found)
    return sum(one.count * abs(one.promised - one.right) for one in found) / total if total else math.nan


def brier(probabilities: Sequence[float], is_right: Sequence[bool]) -> float:
    """Mean square of what was promised and did not come true; NaN without any answer."""
    if not probabilities:
        return math.nan
    return float(np.mean((np.asarray(probabilities) - np.asarray(is_right, dtype=np.float64)) ** 2))
