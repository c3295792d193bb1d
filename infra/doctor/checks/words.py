"""How numbers, times and lists are told in a finding: short, for 80 columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Final

_STEPS: Final = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
_MOST_NAMES: Final = 4


def span(seconds: float) -> str:
    """Return a time in the largest unit that it fills twice.

    >>> span(0.25), span(9), span(150), span(9000), span(400_000)
    ('250 ms', '9 s', '2 min', '2 h', '4 d')
    """
    for size, unit in _STEPS:
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    if 0 < seconds < 1:
        return f"{max(round(seconds * 1000), 1)} ms"
    return f"{seconds:.1f} s" if seconds < 5 and seconds != int(seconds) else f"{seconds:.0f} s"


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun.

    >>> count(1, "message"), count(12_000, "message"), count(2, "copy", "copies")
    ('1 message', '12,000 messages', '2 copies')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def names(found: Iterable[str]) -> str:
    """Return some names, and how many more there are.

    >>> names("abcdef")
    'a, b, c, d and 2 more'
    """
    listed = list(found)
    more = len(listed) - _MOST_NAMES
    shown = ", ".join(listed[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def numbers(found: Collection[int]) -> str:
    """Return whole numbers as runs.

    >>> numbers([0, 1, 2, 7]), numbers(range(0, 40, 2))
    ('0-2, 7', '0, 2, 4, 6 and 16 more')
    """
    ordered = sorted(found)
    starts = [0, *(place for place, (one, two) in enumerate(pairwise(ordered), 1) if two != one + 1), len(ordered)]
    runs = [ordered[first:past] for first, past in pairwise(starts)]
    return names(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs if run)


def size(count_bytes: float) -> str:
    """Return a size of a disk or a message.

    >>> size(1_048_576), size(3.2e12), size(500)
    ('1.0 MB', '3.2 TB', '500 B')
    """
    for step, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count_bytes >= step:
            return f"{count_bytes / step:.{0 if count_bytes >= 10 * step else 1}f} {unit}"
    return f"{count_bytes:.0f} B"
