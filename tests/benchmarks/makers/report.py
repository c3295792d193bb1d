"""From outcomes to figures, and from figures to tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.benchmarks.makers.fitting import Fit, Promise, held_out, promises_of
from tests.benchmarks.makers.scoring import Outcome
from tests.benchmarks.markdown import table

Figures = Mapping[str, float]
TOGETHER: Final = "together"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _number(value: float) -> str:
    return f"{value:.2f}"


def _fine(value: float) -> str:
    return f"{value:.3f}"


FIGURES: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "faults": ("faults beyond the noise", _count),
    "top1": ("… Top-1", _share),
    "kind": ("… kind right", _share),
    "recall": ("… recall", _share),
    "hard": ("hard faults", _count),
    "hard_top1": ("… Top-1", _share),
    "healthy": ("healthy jobs", _count),
    "iterations": ("… iterations", _count),
    "accusations": ("… accusations above `note` per 1,000 iterations", _number),
    "tickets": ("… tickets per 1,000 iterations", _number),
    "with_ticket": ("… jobs with a ticket", _count),
    "notes": ("notes that accuse, all jobs", _count),
    "wrong_notes": ("… of a wrong device", _share),
    "promises": ("first suspects", _count),
    "calibration": ("… calibration error", _fine),
    "brier": ("… Brier score", _fine),
    "calibration_held": ("… calibration error by the curve of the other makers", _fine),
    "brier_held": ("… Brier score by it", _fine),
    "windows": ("right answers whose window and cost are known", _count),
    "overlap_low": ("… intersection over union below 0.5", _share),
    "overlap_median": ("… its median", _number),
    "loss_worst": ("… loss told against true, worst (the smaller over the larger)", _number),
    "loss_median": ("… its median, told over true", _number),
    "delay_median": ("iterations from the onset to the culprit's name, median", _count),
    "delay_90": ("… 90 %", _count),
}


def figures(outcomes: Sequence[Outcome], held: Sequence[Promise]) -> dict[str, float]:
    """Return the figures of some jobs; NaN where nothing can be said. `held`: promises by a held-out curve."""
    faults = [one.score for one in outcomes if one.truth.kind and not one.truth.is_hard]
    hard = [one.score for one in outcomes if one.truth.kind and one.truth.is_hard]
    healthy = [one.score for one in outcomes if not one.truth.kind]
    iterations = sum(one.iterations for one in healthy)
    notes = sum(one.score.notes for one in outcomes)
    promised = promises_of(outcomes)
    windows = [one.overlap for one in faults if one.overlap is not None]
    losses = [one.loss_ratio for one in faults if one.loss_ratio is not None]
    delays = [one.delay for one in faults if one.delay is not None]
    return {
        "faults": len(faults), "hard": len(hard), "healthy": len(healthy), "iterations": iterations, "notes": notes,
        "promises": len(promised), "windows": len(windows),
        "top1": _mean(one.is_top1 for one in faults), "hard_top1": _mean(one.is_top1 for one in hard),
        "kind": _mean(one.is_kind for one in faults), "recall": _mean(one.is_recalled for one in faults),
        "accusations": _ratio(1e3 * sum(one.accusations for one in healthy), iterations),
        "tickets": _ratio(1e3 * sum(one.tickets for one in healthy), iterations),
        "with_ticket": sum(one.tickets > 0 for one in healthy),
        "wrong_notes": _ratio(sum(one.score.wrong_notes for one in outcomes), notes),
        "calibration": _calibration(promised), "brier": _brier(promised),
        "calibration_held": _calibration(held), "brier_held": _brier(held),
        "overlap_low": _mean(one < 0.5 for one in windows), "overlap_median": _quantile(windows, 0.5),
        "loss_worst": min((min(one, 1 / one) if one > 0 else 0.0 for one in losses), default=math.nan),
        "loss_median": _quantile(losses, 0.5),
        "delay_median": _quantile(delays, 0.5), "delay_90": _quantile(delays, 0.9),
    }  # fmt: skip


def figures_by_maker(outcomes: Sequence[Outcome], makers: Sequence[str], fit: Fit) -> dict[str, dict[str, float]]:
    """Return the figures of each maker, of these makers together, and of whatever else there is, by itself."""
    by_maker = {maker: [one for one in outcomes if one.truth.maker == maker] for maker in makers}
    by_maker = {maker: own for maker, own in by_maker.items() if own}
    held = held_out(by_maker, fit)
    found = {maker: figures(own, held[maker]) for maker, own in by_maker.items()}
    everything = [one for own in by_maker.values() for one in own]
    found[TOGETHER] = figures(everything, [one for own in held.values() for one in own])
    curve = fit(everything)
    for maker in sorted({one.truth.maker for one in outcomes}.difference(by_maker)):
        own = [one for one in outcomes if one.truth.maker == maker]
        found[maker] = figures(own, [(curve(one), came_true) for one, came_true in promises_of(own)])
    return found


def by_maker_table(found: Mapping[str, Figures]) -> list[str]:
    lines = [[text, *(_shown(own[key], show) for own in found.values())] for key, (text, show) in FIGURES.items()]
    return table(["figure", *found], lines)


_ABLATED: Final = ("top1", "kind", "recall", "accusations", "tickets", "wrong_notes", "calibration", "overlap_low")


def ablation_table(jobs: Sequence[Mapping[str, Outcome]], whole: str, names: Iterable[str]) -> list[str]:
    """Give the lines of a table: the figures without each mechanism, and by how much they differ from `whole`.

    A job that is not judged without a mechanism fares as always. Of the faults beyond the noise it counts those that
    come out right only without a mechanism, and only with it.
    """
    full = figures([one[whole] for one in jobs], ())
    head = ["without", "asked", "jobs judged otherwise", "right only without", "right only with"]
    head += [FIGURES[key][0].strip("… ") for key in _ABLATED]
    lines = [[whole, *4 * [""], *(_shown(full[key], FIGURES[key][1]) for key in _ABLATED)]]
    for name in names:
        pairs = [(one[whole], one.get(name, one[whole])) for one in jobs]
        own = figures([one for _, one in pairs], ())
        plain = [(a.score.is_top1, b.score.is_top1) for a, b in pairs if a.truth.kind and not a.truth.is_hard]
        counts = (
            sum(name in one for one in jobs), sum(a != b for a, b in pairs),
            plain.count((False, True)), plain.count((True, False)),
        )  # fmt: skip
        lines.append([name, *map(str, counts), *(_difference(own, full, key) for key in _ABLATED)])
    return table(head, lines)


def wrong_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Give a line for each fault beyond the noise that is missed, and each healthy job with a ticket or suspect."""
    lines = []
    for one in outcomes:
        is_bad = not one.score.is_top1 if one.truth.kind else one.score.promised is not None or one.score.tickets > 0
        if is_bad and not one.truth.is_hard:
            ranks = "-".join(map(str, one.truth.ranks[:3]))
            truth = f"{one.truth.kind} {one.truth.device or 'nobody'} {ranks}" if one.truth.kind else "nobody"
            when = ",".join(f"[{first}, {past})" for first, past in one.truth.spans[:3])
            lines.append(f"* {one.truth.name}: {truth} {when} ({one.truth.what}); said {one.said}")
    return lines


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


def _difference(own: Figures, full: Figures, key: str) -> str:
    show, change = FIGURES[key][1], own[key] - full[key]
    is_same = math.isnan(change) or show(abs(change)) == show(0)
    return _shown(own[key], show) + ("" if is_same else f" ({'+' if change > 0 else '−'}{show(abs(change))})")


def _shown(value: float, show: Callable[[float], str]) -> str:
    return "" if math.isnan(value) else show(value)


def _mean(values: Iterable[bool]) -> float:
    own = list(values)
    return sum(own) / len(own) if own else math.nan


def _ratio(one: float, other: float) -> float:
    return one / other if other else math.nan


def _quantile(values: Sequence[float], part: float) -> float:
    return float(np.quantile(values, part, method="inverted_cdf")) if values else math.nan


def _calibration(promises: Sequence[Promise]) -> float:
    promised, came_true = zip(*promises, strict=True) if promises else ((), ())
    return calibration_error(reliability(promised, came_true))


def _brier(promises: Sequence[Promise]) -> float:
    return sum((one - came_true) ** 2 for one, came_true in promises) / len(promises) if promises else math.nan
