"""Rates of cumulative counters that may wrap, be reset, or be refreshed lazily."""

from __future__ import annotations

import logging
from typing import Final

import numpy as np

_LOG: Final = logging.getLogger("irregulars.agent")
UNREADABLE: Final = 2**64 - 1  # a count that could not be read
# A link carries its nominal rate; framing, and two clocks that read time and count, make it look like more.
_MARGIN: Final = 1.25
_HALF_WAY: Final = 2.0**31  # a counter that fell, and would have gone further than half of 32 bits to wrap, was reset
_LONGEST_S: Final = 2.0  # a lazy counter that has not moved for this long, seconds, shows that no byte moved


def increments(counts: np.ndarray, before: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return the growth of cumulative counters from each sample to the next.

    `counts`, `before`: uint64, of equal shape: the counts, and those of the samples before. `UNREADABLE` where there
    is none. `limits`: float64, broadcast to that shape: a counter can't have grown by more in the time between.
    Returns float64; NaN where it is not known. A counter that fell has wrapped, at 32 or 64 bits, if the way over the
    top is one that it can have gone; else it was reset, and its growth is not known. A 32-bit counter that has
    reached its top is saturated (counters of InfiniBand do not wrap): its growth is not known.
    """
    moved = (counts - before).astype(np.float64)  # modulo 2**64
    has_fallen = counts < before
    is_small = before < 2**32
    # A 32-bit counter that fell from 2**32 - 1 to 4 has moved by 5 if it wrapped.
    over_top = np.where(is_small, ((counts - before) % np.uint64(2**32)).astype(np.float64), moved)
    moved = np.where(has_fallen, np.where(over_top <= limits, over_top, np.nan), moved)
    is_unknown = (counts == UNREADABLE) | (before == UNREADABLE) | (counts == 2**32 - 1)
    return np.where(is_unknown, np.nan, moved)


class CounterTrack:
    """Turns the counts of one device into rates, window by window.

    Some network cards refresh their counters a few times a second only. Read more often they seem to stand still and
    then to jump, faster than the link. Where such a jump is seen, samples are cut to those at which a count changed.

    `unit_bytes`: bytes that one count stands for: InfiniBand counts words of four. `capacity_bytes_per_s`: of the
    link, per direction; None: not known.
    """

    def __init__(self, device: str, unit_bytes: int, capacity_bytes_per_s: float | None) -> None:
        self._device, self._unit_bytes = device, unit_bytes
        self._most_bytes_per_s = np.inf if capacity_bytes_per_s is None else _MARGIN * capacity_bytes_per_s
        self._time_ns: int | None = None
        self._counts = np.zeros(2, dtype=np.uint64)
        self.is_lazy = False

    def rates(self, times_ns: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add samples, in order; return times and rates of the intervals that end with them.

        `times_ns`: int64, shape (n,): when the counts were read. `counts`: uint64, shape (n, 2): sent and received.
        Returns times_ns, int64 (m,), and rates in bytes/s, float64 (m, 2); m <= n, for the first sample ever begins
        an interval and ends none.
        """
        if self._time_ns is not None:
            times_ns = np.concatenate([[self._time_ns], times_ns])
            counts = np.concatenate([self._counts[None], counts])
        keep = np.ones(len(times_ns), dtype=bool)  # rows later than all before them: a clock may have been set back
        keep[1:] = times_ns[1:] > np.maximum.accumulate(times_ns)[:-1]
        times_ns, counts = times_ns[keep], counts[keep]
        if len(times_ns) == 0:
            return times_ns, np.empty((0, 2))
        rates = self._between(times_ns, counts)
        stood = np.zeros(rates.shape, dtype=bool)
        stood[1:] = rates[:-1] == 0  # a jump of a lazy counter follows on standing still
        if not self.is_lazy and np.any(stood & (rates > self._most_bytes_per_s)):
            self.is_lazy = True
            _LOG.info("event=lazy_counter device=%s samples=%r", self._device, "one per change of the counter")
        if self.is_lazy:
            # The first row, those with other counts than the row before, and the end of a long time without a change
            keep = np.ones(len(times_ns), dtype=bool)
            keep[1:] = np.any(counts[1:] != counts[:-1], axis=1)
            keep[-1] |= times_ns[-1] - times_ns[keep][-1] >= _LONGEST_S * 1e9
            times_ns, counts = times_ns[keep], counts[keep]
            rates = self._between(times_ns, counts)
        self._time_ns, self._counts = int(times_ns[-1]), counts[-1]
        return times_ns[1:], rates

    def _between(self, times_ns: np.ndarray, counts: np.ndarray) -> np.ndarray:
        elapsed_s = np.diff(times_ns)[:, None] / 1e9
        limits = np.minimum(elapsed_s * (self._most_bytes_per_s / self._unit_bytes), _HALF_WAY)
        return increments(counts[1:], counts[:-1], limits) * self._unit_bytes / elapsed_s
