"""Results of a backtest as a table of text, in Markdown, and as a picture (SVG, written without a library)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from irregulars.infra.backtesting.backtest import Result

HEAD: Final = ("detector", "precision", "recall", "found", "delay", "false/1,000", "µs/row")
_WIDTH: Final = 720
_ROW: Final = 46
_NAMES: Final = 220
_COLOURS: Final = {"precision": "#2563eb", "recall": "#f59e0b"}


def cells(result: Result) -> tuple[str, ...]:
    """Return a result as the texts of its row; ``-``: there was nothing to tell it by."""
    counts = result.counts
    return (
        result.detector,
        _number(counts.precision, ".2f"),
        _number(counts.recall, ".2f"),
        f"{counts.found} of {counts.faults}",
        _number(counts.delay, ".0f"),
        _number(counts.false_per_1000, ".1f"),
        _number(result.us_per_row, ".1f"),
    )


def text_table(results: Sequence[Result], width: int = 80) -> str:
    """Return a table of `width` columns: a name that is too long stands on a line of its own."""
    rows = [HEAD, *(cells(one) for one in results)]
    sizes = [max(len(row[column]) for row in rows) for column in range(1, len(HEAD))]
    most = width - sum(sizes) - 2 * len(sizes)
    first = min(max(len(row[0]) for row in rows), most)
    lines = []
    for name, *values in rows:
        right = "".join(f"  {value:>{size}}" for value, size in zip(values, sizes, strict=True))
        lines += [name + "\n" + " " * first + right if len(name) > first else f"{name:<{first}}{right}"]
    return "\n".join(lines)


def markdown_table(results: Sequence[Result]) -> str:
    """Return the same table for a page."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for one in results:
        name, *values = cells(one)
        lines.append(f"| `{name}` | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def draw(results: Sequence[Result], title: str) -> str:
    """Return a picture of precision and recall, a pair of bars for each detector, with the false alarms behind."""
    height = 64 + _ROW * len(results)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    for number, (name, colour) in enumerate(_COLOURS.items()):
        x = _NAMES + number * 110
        parts.append(f'<rect x="{x}" y="32" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="43">{name}</text>')
    for number, one in enumerate(results):
        parts += _bars(one, 54 + _ROW * number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(one: Result, top: int) -> list[str]:
    shown = one.detector if len(one.detector) <= 30 else one.detector[:29] + "…"
    parts = [f'<text x="12" y="{top + 20}">{escape(shown)}<title>{escape(one.detector)}</title></text>']
    for number, (name, colour) in enumerate(_COLOURS.items()):
        value, y = getattr(one.counts, name), top + 4 + 16 * number
        length = 0 if math.isnan(value) else round(300 * value)
        parts.append(f'<rect x="{_NAMES}" y="{y}" width="{length}" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{_NAMES + length + 6}" y="{y + 12}">{_number(value, ".2f")}</text>')
    false = _number(one.counts.false_per_1000, ".1f")
    return [*parts, f'<text x="{_NAMES + 350}" y="{top + 20}">{false} false/1,000</text>']


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"
