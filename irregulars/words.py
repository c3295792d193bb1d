"""Words and numbers for people: durations, rates, ranges, ranks and kinds of verdicts. Plain functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from irregulars.messages.kinds import VERDICT_KINDS

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_RUNS_SHOWN: Final = 4
_AGES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(elapsed_ns: float) -> str:
    """Write a duration with three digits, in the unit that suits its size.

    >>> duration(24_900_000.0), duration(411_000.0), duration(1.5e9), duration(float("nan")), duration(0.0)
    ('24.9 ms', '411 µs', '1.5 s', 'not known', '0 ms')
    """
    if not math.isfinite(elapsed_ns):
        return "not known"
    if not elapsed_ns:
        return "0 ms"
    for limit_ns, unit in ((1e3, "ns"), (1e6, "µs"), (1e9, "ms")):
        if elapsed_ns < 0.9995 * limit_ns:  # what would round to 1000 is 1 of the next unit
            return f"{elapsed_ns * 1e3 / limit_ns:.3g} {unit}"
    return f"{elapsed_ns / 1e9:.3g} s" if elapsed_ns < 999.5e9 else f"{elapsed_ns / 1e9:,.0f} s"


def usual_duration(usual_ns: float) -> str:
    """Write the duration that is usual at some place; a rank may usually do no work there.

    >>> usual_duration(411_000.0), usual_duration(0.0)
    ('411 µs', 'none')
    """
    return duration(usual_ns) if usual_ns else "none"


def age(elapsed_s: float) -> str:
    """Write how long ago something was, in its two largest units.

    >>> age(4_000), age(59), age(200_000)
    ('1 h 6 min', '59 s', '2 d 7 h')
    """
    left = round(elapsed_s)
    parts: list[str] = []
    for seconds, unit in _AGES:
        if left >= seconds or parts:
            parts.append(f"{left // seconds} {unit}")
            left %= seconds
    return " ".join(one for one in parts[:2] if not one.startswith("0 ")) or "0 s"


def rate(bytes_per_s: float) -> str:
    """Write a rate.

    >>> rate(12.4e9), rate(3.2e6), rate(float("nan"))
    ('12.4 GB/s', '3.2 MB/s', 'not known')
    """
    if not math.isfinite(bytes_per_s):
        return "not known"
    unit, size = ("GB/s", 1e9) if bytes_per_s >= 999.5e6 else ("MB/s", 1e6)
    return f"{bytes_per_s / size:.3g} {unit}"


def size(size_bytes: float) -> str:
    """Write a number of bytes with three digits.

    >>> size(576), size(218_112), size(4_194_304), size(5.45e8 * 2)
    ('576 B', '218 kB', '4.19 MB', '1.09 GB')
    """
    for limit, unit in ((1e3, "B"), (1e6, "kB"), (1e9, "MB"), (1e12, "GB")):
        if size_bytes < 0.9995 * limit:
            return f"{size_bytes * 1e3 / limit:.3g} {unit}"
    return f"{size_bytes / 1e12:.3g} TB"


def amount(value: float) -> str:
    """Write a cost with two or three digits.

    >>> amount(0.0064), amount(12.34), amount(1234.5)
    ('0.0064', '12.3', '1,234')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def moment(time_ns: int) -> str:
    """Write a time in UTC; one beyond the calendar, which a message may hold, as a number.

    >>> moment(1_795_234_590_000_000_000)
    '2026-11-21 04:16:30Z'
    """
    try:
        return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"


def iso_time(time_ns: float) -> str:
    """Write a time as machines read it, to the millisecond; raises `ValueError` for one beyond the calendar.

    >>> iso_time(1_795_234_590_123_000_000)
    '2026-11-21T04:16:30.123+00:00'
    """
    try:
        return datetime.fromtimestamp(time_ns / 10**9, UTC).isoformat("T", "milliseconds")
    except (OverflowError, OSError) as error:
        raise ValueError(f"time must be within the calendar; got {time_ns} ns") from error


def ordinal(number: int) -> str:
    """Return a number of order.

    >>> [ordinal(number) for number in (1, 2, 3, 11, 22)]
    ['1st', '2nd', '3rd', '11th', '22nd']
    """
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def span(iterations: tuple[int, int]) -> str:
    """Name a half-open range as people do, with its last one.

    >>> span((60, 81)), span((60, 61))
    ('iterations 60 to 80', 'iteration 60')
    """
    first, past = iterations
    return f"iteration {first}" if past - first <= 1 else f"iterations {first} to {past - 1}"


_ABBREVIATIONS: Final = {"cpu": "CPU", "gpu": "GPU", "io": "I/O"}


def name_kind(kind: str) -> str:
    """Name a kind of verdict, or a cause, as people do; one that only a newer worker knows by its own word.

    >>> name_kind("slow_nic"), name_kind("slow_rank"), name_kind("slow_dpu"), name_kind("cpu_throttled")
    ('slow NIC', 'slow rank', 'slow dpu', 'CPU throttled')
    """
    if kind in VERDICT_KINDS:
        return VERDICT_KINDS[kind].noun
    return " ".join(_ABBREVIATIONS.get(word, word) for word in kind.split("_"))


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks in few words.

    >>> name_ranks([5]), name_ranks([8, 9, 10, 3])
    ('rank 5', 'ranks 3, 8-10')
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:_RUNS_SHOWN])
    if len(runs) > _RUNS_SHOWN:
        shown += f" and others, {len(set(ranks))} in all"
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {shown}"


def percent(probability: float) -> str:
    """Write how sure it is: nothing is ever 100% sure.

    >>> percent(0.914), percent(0.9999)
    ('91%', '99%')
    """
    return f"{min(round(100 * probability), 99)}%"


def blocks(values: list[float], most: float) -> str:
    """Draw values as block characters, from 0 to `most`; a value that is not known is a space.

    >>> blocks([1.0, 2.0, float("nan"), 4.0], 4.0)
    '▂▄ █'
    """
    if most <= 0:
        return " " * len(values)
    heights = (round(value / most * len(_BLOCKS)) - 1 if math.isfinite(value) else None for value in values)
    return "".join(" " if one is None else _BLOCKS[max(0, min(len(_BLOCKS) - 1, one))] for one in heights)
