"""Iteration times as one small line in a table: how fast is the job now, beside what is usual. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from irregulars.infra.showing.found import Iteration, median_of
from irregulars.infra.showing.words import duration

_WIDTH: Final = 180
_HEIGHT: Final = 30
_NOW: Final = 5
"""Iterations whose median is called the time now: one alone may be a hiccup."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a job is.

    Parameters
    ----------
    now_ns, usual_ns
        Median of the newest iterations, and the mean of the window before; NaN where not known.
    line
        The drawing.
    text
        Both in words, for people who do not see it.
    """

    now_ns: float
    usual_ns: float
    line: Markup
    text: str

    @property
    def ratio(self) -> float:
        """Now over usual; NaN where one of them is not known."""
        return self.now_ns / self.usual_ns if self.usual_ns > 0 else float("nan")


def pace_of(iterations: Sequence[Iteration]) -> Pace | None:
    """Return how fast a job is, by its newest iterations; None: it has none."""
    if not iterations:
        return None
    now_ns = median_of([one.elapsed_ns for one in iterations[-_NOW:]])
    known = [one.reference_ns for one in iterations if one.reference_ns is not None]
    usual_ns = known[-1] if known else float("nan")
    text = _text(iterations, now_ns, usual_ns)
    return Pace(now_ns, usual_ns, _line(iterations, usual_ns, text), text)


def _text(iterations: Sequence[Iteration], now_ns: float, usual_ns: float) -> str:
    irregular = sum(one.is_irregular is True for one in iterations)
    return (
        f"{duration(now_ns)} now, usual {duration(usual_ns)}; of the newest {len(iterations)}, {irregular} irregular"
    )


def _line(iterations: Sequence[Iteration], usual_ns: float, text: str) -> Markup:
    most = max(max(one.elapsed_ns for one in iterations), 1)
    step = _WIDTH / max(len(iterations), 40)
    bars: dict[str, list[str]] = {"usual": [], "odd": [], "cause": []}
    for at, one in enumerate(iterations):
        kind = "cause" if one.is_irregular and one.has_cause else "odd" if one.is_irregular else "usual"
        height = max(1.0, (_HEIGHT - 2) * one.elapsed_ns / most)
        bars[kind].append(f"M{(at + 0.5) * step:.1f} {_HEIGHT}v-{height:.1f}")
    paths = Markup().join(
        Markup('<path class="bar-{}" stroke-width="{}" d="{}"/>').format(kind, f"{step * 0.8:.2f}", "".join(own))
        for kind, own in bars.items()
        if own
    )
    level = Markup()
    if usual_ns > 0:
        y = _HEIGHT - (_HEIGHT - 2) * min(usual_ns / most, 1)
        level = Markup('<path class="level" d="M0 {}h{}"/>').format(f"{y:.1f}", _WIDTH)
    return Markup(
        '<svg class="small-line" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}{}</svg>'
    ).format(_WIDTH, _HEIGHT, text, paths, level)
