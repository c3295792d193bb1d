"""Words and numbers for people: durations, rates, ranges and where a rank lives. Plain functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from irregulars.infra.showing.found import Place

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_AGES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(elapsed_ns: float) -> str:
    """Write a duration with three digits.

    >>> duration(24_900_000.0), duration(1.5e9), duration(float("nan")), duration(0.0)
    ('24.9 ms', '1.5 s', 'not known', '0 ms')
    """
    if not math.isfinite(elapsed_ns):
        return "not known"
    if elapsed_ns >= 999.5e6:
        return f"{elapsed_ns / 1e9:.3g} s" if elapsed_ns < 999.5e9 else f"{elapsed_ns / 1e9:,.0f} s"
    return f"{elapsed_ns / 1e6:.3g} ms"


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


def amount(value: float) -> str:
    """Write a cost with two or three digits.

    >>> amount(0.0064), amount(12.34), amount(1234.5)
    ('0.0064', '12.3', '1,234')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def moment(time_ns: int) -> str:
    """Write a time in UTC.

    >>> moment(1_795_234_590_000_000_000)
    '2026-11-21 04:16:30Z'
    """
    return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%d %H:%M:%SZ}"


def span(iterations: tuple[int, int]) -> str:
    """Name a half-open range as people do, with its last one.

    >>> span((60, 81)), span((60, 61))
    ('iterations 60 to 80', 'iteration 60')
    """
    first, past = iterations
    return f"iteration {first}" if past - first <= 1 else f"iterations {first} to {past - 1}"


def kind_of(kind: str) -> str:
    """Name a kind of verdict as the alert does.

    >>> kind_of("slow_nic"), kind_of("slow_rank")
    ('slow NIC', 'slow rank')
    """
    return "slow NIC" if kind == "slow_nic" else kind.replace("_", " ")


def rank_at(rank: int, places: Mapping[int, Place]) -> str:
    """Name a rank with its host, where that is known.

    >>> rank_at(3, {3: Place("node-1", 0, None, None)}), rank_at(4, {})
    ('rank 3 on node-1', 'rank 4')
    """
    place = places.get(rank)
    return f"rank {rank} on {place.host}" if place is not None and place.host else f"rank {rank}"


def blocks(values: list[float], most: float) -> str:
    """Draw values as block characters, from 0 to `most`; a value that is not known is a space.

    >>> blocks([1.0, 2.0, float("nan"), 4.0], 4.0)
    '▂▄ █'
    """
    return "".join(_block(value, most) for value in values)


def _block(value: float, most: float) -> str:
    if not math.isfinite(value) or most <= 0:
        return " "
    return _BLOCKS[max(0, min(len(_BLOCKS) - 1, round(value / most * len(_BLOCKS)) - 1))]
