"""The page of all thresholds, infra/docs/thresholds.md, from the rooms themselves.

python -m tests.benchmarks.thresholds_page          # writes the page anew
"""

from __future__ import annotations

from typing import Final

from irregulars.thresholds import Threshold
from tests.room_thresholds import ROOT, Room, rooms

PAGE: Final = ROOT / "infra" / "docs" / "thresholds.md"
CHOSEN: Final = "chosen"

_HEAD: Final = """\
# Thresholds

For whoever tunes the judgement, or doubts it.

The numbers that judgement hangs on, by the room that decides by them. Each room has them in its `thresholds.py`
(`detectors/blame` in `likelihoods.py` too), with these words. "Chosen" means that no paper and no formula
gives the value; the code tells more. None of them is a setting. [Settings](settings.md) that concern
verdicts are δ, the window, the waits for ranks and for a silence, detectors, and the limits of severity; some may be
[changed while workers run](settings.md#changed-while-workers-run).

Does a figure hang on one of them? `make bench-sensitivity` moves each by about a quarter (counts by 1 at
least and never below 1, shares at most half way to 1) and judges the recordings anew
([benchmarks](benchmarks.md)). `python -m tests.benchmarks.thresholds_page` writes this page.
"""


def render() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *map(_table, rooms())])


def _table(room: Room) -> str:
    lines = [f"## {room.folder}", "", "| name | value | unit | meaning | source |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, room.thresholds), ""])


def _row(one: Threshold) -> str:
    cells = (f"`{one.name}`", _number(one.value), one.unit, one.meaning, _origin(one.source))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _origin(source: str) -> str:
    """Return where a value comes from; why it was chosen is told beside it in the code."""
    return CHOSEN if source.startswith(CHOSEN) else source


def _number(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    PAGE.write_text(render())
