"""From the monotonic clock to the host's, measured in a process that may be interrupted at any moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

_TRIES: Final = 8
_NARROW_NS: Final = 5_000
"""A reading between two others that are no further apart than this is taken at once, ns; on an idle machine they are
0.1 µs apart."""


class ClockOffset(NamedTuple):
    """The host's clock minus the monotonic one.

    Parameters
    ----------
    offset_ns
        Off by at most half of `width_ns`.
    width_ns
        Time between the two readings of the monotonic clock around that of the host's.
    """

    offset_ns: int
    width_ns: int


def measure_offset(
    wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
) -> ClockOffset:
    """Measure the offset; of several readings the one that was interrupted least counts.

    A process that is held up between two readings, as on a machine with more processes than cores, sees an offset
    that is off by as much: some ms, which is more than most operators take.
    """
    best: ClockOffset | None = None
    for _ in range(_TRIES):
        before_ns, now_ns, after_ns = monotonic_ns(), wall_ns(), monotonic_ns()
        width_ns = after_ns - before_ns
        if best is None or width_ns < best.width_ns:
            best = ClockOffset(now_ns - before_ns - width_ns // 2, width_ns)
        if best.width_ns <= _NARROW_NS:
            break
    assert best is not None
    return best
