"""Run detectors over jobs; count right and wrong alarms and costs; print them as text, Markdown or SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from irregulars.detectors.plugins.loading import Comparable, installed_detectors, load_detector
from irregulars.detectors.plugins.protocol import Level, MakeDetector
from irregulars.errors import PluginError
from irregulars.infra.backtesting.frames import JobFrames, replay
from irregulars.infra.backtesting.scoring import Counts, count_job


@dataclass(slots=True)
class Result:
    """Counts and costs of one detector over all jobs.

    `took_s`, `rows`: Time of one core to score and learn, and rows that took it.
    """

    detector: str
    counts: Counts = field(default_factory=Counts)
    took_s: float = 0.0
    rows: int = 0

    @property
    def us_per_row(self) -> float:
        """Microseconds of one core, to score and to learn a row."""
        return self.took_s * 1e6 / self.rows if self.rows else math.nan

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it; unknown is null."""
        counts = self.counts
        ratios = {
            "precision": counts.precision,
            "recall": counts.recall,
            "delay_iterations": counts.delay,
            "false_alarms_per_1000_iterations": counts.false_per_1000,
            "us_per_row": self.us_per_row,
        }
        return {
            "detector": self.detector,
            **{name: round(value, 4) if math.isfinite(value) else None for name, value in ratios.items()},
            "faults": counts.faults,
            "found": counts.found,
            "false_alarms": counts.false_alarms,
            "iterations": counts.iterations,
            "rows": self.rows,
        }


def shipped_detectors(level: Level) -> dict[str, MakeDetector]:
    """Return the detectors of a level that ship, by name."""
    ours = [name for name, target in installed_detectors().items() if target.startswith("irregulars.")]
    made = {name: load_detector(name) for name in ours}
    return {name: make for name, make in made.items() if make().level == level}


def backtest(detectors: Mapping[str, MakeDetector], jobs: Iterable[JobFrames]) -> list[Result]:
    """Run detectors over jobs, one job in memory at a time; scores are on the scale on which 1 is strange.

    Raises `PluginError` if a detector raises, or does not give one score per row.
    """
    results = {name: Result(name) for name in detectors}
    for job in jobs:
        for name, make in detectors.items():
            try:
                one = replay(job, lambda make=make: Comparable(make()))  # type: ignore[misc]
            except PluginError as error:
                raise PluginError(f"detector {name}: {error} ({job.name})") from error
            result = results[name]
            result.counts += count_job(one.job, job.faults)
            result.took_s += one.took_s
            result.rows += one.rows
    return list(results.values())


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
