"""Charts as inline SVG. Colours are classes of the page's style sheet, so that light and dark follow the reader.

Each function takes values and returns one ``<svg>`` with a title for readers who don't see it. Texts are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from irregulars.infra.showing.found import Cell, Iteration, RateSample, median_of
from irregulars.infra.showing.words import duration, rate, span

_WIDTH: Final = 720
_LEFT: Final = 64
_BOTTOM: Final = 22
_ROW_PX: Final = 26
_MOST_BARS: Final = 600
_LEVELS: Final = 6
_FULL_RATIO: Final = 1.5  # to the median: the least that gets the strongest colour


def _svg(height: float, title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "note") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    shape = (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{max(height, 0):.2f}" class="{kind}"'
    )
    return f"{shape}><title>{escape(title)}</title></rect>" if title else f"{shape}/>"


def times_chart(iterations: Sequence[Iteration]) -> str:
    """Draw a bar for each iteration (of very many, for the longest of some), irregular ones marked."""
    height, top = 170.0, 12.0
    each = max(1, -(-len(iterations) // _MOST_BARS))
    groups = [iterations[at : at + each] for at in range(0, len(iterations), each)]
    longest = [max(group, key=lambda one: one.elapsed_ns) for group in groups]
    most = max(one.elapsed_ns for one in longest) or 1
    step = (_WIDTH - _LEFT) / len(groups)
    parts = []
    for at, (one, group) in enumerate(zip(longest, groups, strict=True)):
        kind = (
            "cause" if any(o.has_cause for o in group) else "odd" if any(o.is_irregular for o in group) else "usual"
        )
        tall = (height - top - _BOTTOM) * one.elapsed_ns / most
        title = f"iteration {one.iteration}: {duration(one.elapsed_ns)}"
        parts.append(_rect(_LEFT + at * step, height - _BOTTOM - tall, step * 0.85, tall, kind, title))
    shown = span((iterations[0].iteration, iterations[-1].iteration + 1))
    parts += [
        _text(_LEFT - 6, top + 8, duration(most), "end"), _text(_LEFT - 6, height - _BOTTOM, "0", "end"),
        _text(_LEFT, height - 6, f"iteration {iterations[0].iteration}"),
        _text(_WIDTH, height - 6, str(iterations[-1].iteration), "end"),
    ]  # fmt: skip
    return _svg(height, f"Time of {shown}", parts)


def heat_map(cells: Sequence[Cell], bin_ranks: int, accused: Sequence[int]) -> str:
    """Draw how long ranks worked between their operators: a row for each bin of ranks, a column an iteration."""
    bins, columns = (sorted({getattr(one, name) for one in cells}) for name in ("bin", "iteration"))
    tall, wide = min(16.0, max(4.0, 480 / len(bins))), (_WIDTH - _LEFT) / len(columns)
    row_of, column_of = ({value: at for at, value in enumerate(values)} for values in (bins, columns))
    low = median_of([one.work_ns for one in cells])
    high = max(max(one.work_ns for one in cells), _FULL_RATIO * low, 1.0)  # so that noise looks calm
    own = {rank // bin_ranks for rank in accused}
    parts = [
        _rect(
            _LEFT + column_of[one.iteration] * wide, row_of[one.bin] * tall, wide, tall,
            f"heat{_level(one.work_ns, low, high)}",
            f"rank {one.rank}, iteration {one.iteration}: {duration(one.work_ns)}",
        )
        for one in cells
    ]  # fmt: skip
    for number in bins if tall >= 9 else [one for one in bins if one in own]:
        mark = "▸ " if number in own else ""
        y = row_of[number] * tall + tall * 0.5 + 3.5
        parts.append(_text(_LEFT - 6, y, f"{mark}{_ranks(number, bin_ranks)}", "end", "strong" if mark else "note"))
    height = len(bins) * tall + _BOTTOM
    parts += [_text(_LEFT, height - 6, f"iteration {columns[0]}"), _text(_WIDTH, height - 6, str(columns[-1]), "end")]
    return _svg(height, f"Time between operators by rank and iteration, {duration(low)} to {duration(high)}", parts)


def extremes_of(cells: Sequence[Cell]) -> str:
    """Say which rank worked longest and which shortest, and when."""
    most, least = max(cells, key=lambda one: one.work_ns), min(cells, key=lambda one: one.work_ns)
    return (
        f"longest: rank {most.rank} in iteration {most.iteration}, {duration(most.work_ns)}; shortest: "
        f"rank {least.rank} in iteration {least.iteration}, {duration(least.work_ns)}"
    )


def _level(value: float, low: float, high: float) -> int:
    if high <= low:
        return 0
    return max(0, min(_LEVELS - 1, int((value - low) / (high - low) * _LEVELS)))


def _ranks(number: int, bin_ranks: int) -> str:
    first = number * bin_ranks
    return str(first) if bin_ranks == 1 else f"{first}-{first + bin_ranks - 1}"


def chain_chart(texts: Sequence[str]) -> str:
    """Draw hand-overs and cause as boxes below each other, an arrow from each to the next."""
    lines = [_folded(text) for text in texts]
    parts, y = [], 2.0
    for at, own in enumerate(lines):
        height = 12 + 15 * len(own)
        is_cause = at == len(lines) - 1
        parts.append(f'<rect x="{20 * at + 1}" y="{y}" width="{_WIDTH - 20 * at - 2}" height="{height}" rx="5" '
                     f'class="{"box-cause" if is_cause else "box"}"/>')  # fmt: skip
        parts += [_text(20 * at + 10, y + 18 + 15 * row, line, kind="line") for row, line in enumerate(own)]
        if not is_cause:
            x = 20 * at + 30
            parts.append(f'<path d="M{x} {y + height} v12 m-4 -5 l4 5 l4 -5" class="arrow"/>')
        y += height + 14
    return _svg(y - 8, "Who waited for whom, from the symptom to the cause", parts)


def _folded(text: str, width: int = 96) -> list[str]:
    from textwrap import wrap

    return wrap(text, width) or [""]


def rate_chart(samples: Sequence[RateSample], direction: str) -> str:
    """Draw the peaks of the accused NIC in one direction over the range and the median of all others."""
    own = [one for one in samples if one.direction == direction]
    height, top = 170.0, 12.0
    most = max((v for one in own for v in (one.own, one.others_most) if math.isfinite(v)), default=1.0) or 1.0
    first, last = own[0].time_ns, max(own[-1].time_ns, own[0].time_ns + 1)

    def place(one: RateSample, value: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT) * (one.time_ns - first) / (last - first)
        return f"{x:.1f},{height - _BOTTOM - (height - top - _BOTTOM) * value / most:.1f}"

    beside = [one for one in own if math.isfinite(one.others_median)]
    band = [place(one, one.others_most) for one in beside] + [
        place(one, one.others_least) for one in reversed(beside)
    ]
    parts = [
        f'<polygon points="{" ".join(band)}" class="band"/>',
        f'<polyline points="{" ".join(place(one, one.others_median) for one in beside)}" class="others"/>',
        f'<polyline points="{" ".join(place(o, o.own) for o in own if math.isfinite(o.own))}" class="own"/>',
        _text(_LEFT - 6, top + 8, rate(most), "end"), _text(_LEFT - 6, height - _BOTTOM, "0", "end"),
        _text(_LEFT, height - 6, "0 s"), _text(_WIDTH, height - 6, duration(last - first), "end"),
    ]  # fmt: skip
    return _svg(height, f"Peaks of what NICs {direction}: the accused one, and all others", parts)
