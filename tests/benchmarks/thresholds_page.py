"""The page of thresholds, infra/docs/thresholds.md, from the rooms themselves.

python -m tests.benchmarks.thresholds_page          # writes the page anew
"""

from __future__ import annotations

from typing import Final

from irregulars.thresholds import Threshold
from tests.room_thresholds import ROOT, Room, rooms

PAGE: Final = ROOT / "infra" / "docs" / "thresholds.md"
HOW: Final = ("chosen", "formula", "computed", "convention")

_HEAD: Final = """\
# Thresholds

For whoever tunes the judgement, or doubts it.

Numbers that judgement rests on, by room. They stand in the room's `thresholds.py`, and in
`detectors/blame/likelihoods.py`. The last column names a paper, or says in a word where the value comes from; the
code tells more.

They are not settings. Settings are listed in [settings](settings.md); some may be
[changed while workers run](settings.md#changed-while-workers-run).

`python -m tests.benchmarks.thresholds_page` writes this page.
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
    """Return where a value comes from; the reason is told beside it in the code."""
    return next((how for how in HOW if source.startswith(how)), source)


def _number(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    PAGE.write_text(render())
