"""Rows of cases to tables: one Markdown report. Knows no detector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Row = Mapping[str, Any]
Rows = Sequence[Row]
Cells = Sequence[str]

COUNTED: Final = 0.10
"""From this excess on, accusing nobody counts as wrong: what the figures that must be reached are made of."""

# What must be reached, and what Holmes (NSDI'25) reaches.
_MUST: Final = (("ranks", 2048, 0.99, 0.972), ("ranks", 8192, 0.97, 0.882), ("dimensions", 6, 0.96, 0.860))
_MUST_CALIBRATION: Final = 0.05
_ACCURACY: Final = ("top-1", "95 %", "top-2", "device", "nobody", "somebody else", "cases")
_BLAMELESS: Final = (
    "jobs",
    "iterations",
    "of devices",
    "at most (95 %)",
    "of blameless kinds",
    "irregular iterations",
)
_Z_95: Final = 1.959963984540054


def write_report(found: Mapping[str, Any]) -> str:
    rows: Rows = found["cases"]
    counted = [row for row in rows if row["excess"] >= COUNTED]
    state = "" if found["is_complete"] else " **Stopped before its end: what follows holds only the cases that ran.**"
    sections = [
        [
            "# Finding the culprit", "",
            f"`{found['command']}`: {len(rows)} incidents of the {found['split']} split, seeds from "
            f"{found['first_seed']}, δ = {found['delta']:g}, {found['machine']}, {found['processes']} processes, "
            f"{found['took_s'] / 60:.1f} min, commit {found['commit']}.{state}", "",
            "Top-1: kind and device of the first suspect are right; accusing nobody is wrong. Intervals: Wilson, "
            "95 %. Tables count excesses of 10 % and more unless they say otherwise.",
        ],
        _must(found, counted),
        _grouped("By world size", "GPUs", counted, lambda row: f"{row['ranks']:,}"),
        _grouped("By parallel dimensions", "dimensions", counted, lambda row: str(row["dimensions"])),
        _grouped("By kind of fault", "kind", counted, lambda row: row["kind"]),
        _grouped("By shape", "shape", counted, lambda row: row["shape"]),
        _grouped("By excess of the iteration time", "excess", rows, lambda row: f"{row['excess']:.0%}"),
        _grouped("By clocks", "clocks", counted, lambda row: row["clock"]),
        _calibration(found), _further(found["further"]),
        _blameless(found["blameless"]), _speed(counted),
        _wrong(rows),
    ]  # fmt: skip
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _must(found: Mapping[str, Any], counted: Rows) -> list[str]:
    lines = []
    for name, value, must, best in _MUST:
        own = [row for row in counted if row[name] == value]
        low, high = wilson(_right(own), len(own))
        share = f"{_right(own) / len(own):.1%} ({low:.1%} to {high:.1%}, {_right(own)} of {len(own)})" if own else "-"
        lines.append([f"top-1, {value:,} {name}", f"≥ {must:.0%}", share, f"{best:.1%}"])
    about = "accusations of devices per 1,000 iterations without a fault"
    lines.append([about, "0", *_blameless_line("", found["blameless"])[2:3], ""])
    error = calibration_error(reliability(*_promises(found)))
    lines.append(
        ["calibration error of the first suspect's probability", f"≤ {_MUST_CALIBRATION}", f"{error:.3f}", ""]
    )
    return ["## What must be reached", "", *table(["figure", "must", "measured", "Holmes (NSDI'25)"], lines)]


def _grouped(title: str, head: str, rows: Rows, key: Callable[[Row], str]) -> list[str]:
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["excess"]):
        groups.setdefault(key(row), []).append(row)
    lines = []
    for name, own in groups.items():
        low, high = wilson(_right(own), len(own))
        shares = [f"{_right(own, what) / len(own):.1%}" for what in ("is_top1", "is_top2", "is_device")]
        others = sum(not row["is_top1"] and not row["is_nobody"] for row in own)
        counts = map(str, (_right(own, "is_nobody"), others, len(own)))
        lines.append([name, shares[0], f"{low:.1%} to {high:.1%}", *shares[1:], *counts])
    return [f"## {title}", "", *table([head, *_ACCURACY], lines)] if lines else []


def _promises(found: Mapping[str, Any]) -> tuple[list[float], list[bool]]:
    pairs = [pair for name in ("cases", "further", "blameless") for row in found[name] if row["kind"] != "hang"
             for pair in row["promises"]]  # fmt: skip
    return [float(pair[0]) for pair in pairs], [bool(pair[1]) for pair in pairs]


def _calibration(found: Mapping[str, Any]) -> list[str]:
    probabilities, is_right = _promises(found)
    bins, lines = reliability(probabilities, is_right), []
    for one in bins:
        low, high = wilson(round(one.right * one.count), one.count)
        lines.append([f"{one.low:.1f} to {one.high:.1f}", str(one.count), f"{one.promised:.2f}", f"{one.right:.2f}",
                      f"{low:.2f} to {high:.2f}"])  # fmt: skip
    return [
        "## Calibration", "",
        f"The first suspect of every verdict, of jobs with and without a fault and of all excesses: "
        f"{len(probabilities)} accusations. Expected calibration error {calibration_error(bins):.3f}.", "",
        *table(["probability", "accusations", "promised", "right", "95 %"], lines),
    ]  # fmt: skip


def _further(rows: Rows) -> list[str]:
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        lines.append([kind, f"{_right(own)} of {len(own)}"])
    about = "Kinds outside the grid: named, and no device accused besides"
    return [f"## {about}", "", *table(["kind", "right"], lines)] if rows else []


def _blameless(rows: Rows) -> list[str]:
    kinds = dict.fromkeys(row["kind"] for row in rows)
    lines = [_blameless_line(kind, [row for row in rows if row["kind"] == kind]) for kind in kinds]
    lines.append(_blameless_line("all", rows))
    return ["## Nobody to blame: accusations per 1,000 iterations", "", *table(_BLAMELESS, lines)] if rows else []


def _blameless_line(name: str, rows: Rows) -> Cells:
    iterations, devices = (sum(row[what] for row in rows) for what in ("iterations", "devices_accused"))
    if not iterations:
        return [name, "0", "none measured", "", "", ""]
    blameless, irregular = (
        sum(r["blameless_verdicts"] for r in rows),
        sum(len(r["irregular_iterations"]) for r in rows),
    )
    return [name, str(iterations), f"{1e3 * devices / iterations:.2f}", f"{1e3 * wilson(devices, iterations)[1]:.1f}",
            f"{1e3 * blameless / iterations:.2f}", str(irregular)]  # fmt: skip


def _speed(rows: Rows) -> list[str]:
    found, lines = [row for row in rows if row["iterations_to_verdict"] is not None], []
    for ranks in sorted({row["ranks"] for row in found}):
        waits = [row["iterations_to_verdict"] for row in found if row["ranks"] == ranks]
        lines.append(
            [f"{ranks:,}", *(f"{np.quantile(waits, part, method='inverted_cdf'):.0f}" for part in (0.5, 0.9))]
        )
    about = "Iterations from the onset, its first included, to the revision that names the culprit"
    return [f"## {about}", "", *table(["GPUs", "median", "90 %"], lines)] if lines else []


def _wrong(rows: Rows) -> list[str]:
    lines = []
    for row in rows:
        if row["devices_accused"] if "devices_accused" in row else not row["is_top1"]:
            fault = f"{row['kind']}, {row['shape']}, {row['excess']:.0%}" if "excess" in row else row["kind"]
            culprits = ", ".join(" ".join(map(str, device)) for device in row["truth"]["culprits"]) or "nobody"
            lines.append([row["case"], fault, row["clock"], culprits, said(row)])
    listed = table(["case", "fault", "clock", "truth", "said"], lines) if lines else []
    return [f"## Wrong: {len(lines)} of {len(rows)}", "", *listed]


def _right(rows: Rows, what: str = "is_top1") -> int:
    return sum(bool(row[what]) for row in rows)


def said(row: Row) -> str:
    """Return the verdicts of a row on one line."""
    texts = []
    for verdict in row["verdicts"]:
        suspects = [f"{s['device']} {'-'.join(map(str, s['ranks'][:2]))} {s['probability']:.2f}"
                    for s in verdict["suspects"][:2]]  # fmt: skip
        texts.append(f"{verdict['kind']} {verdict['iterations']}: {', '.join(suspects) or 'nobody'}")
    return "; ".join(texts) or "nothing"


def table(head: Cells, lines: Iterable[Cells]) -> list[str]:
    rows = ["| " + " | ".join(cells) + " |" for cells in (head, *lines)]
    return [rows[0], "|---" * len(head) + "|", *rows[1:]]


def wilson(hits: int, total: int) -> tuple[float, float]:
    """95 % interval of a share by Wilson's score; of nothing the share may be anything.

    E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    >>> [round(end, 4) for end in wilson(10, 10)]
    [0.7225, 1.0]
    """
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
