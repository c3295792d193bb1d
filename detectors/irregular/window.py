"""δ-irregularity: which iterations take longer than the job's recent past explains.

Holmes (NSDI'25) calls an iteration δ-irregular if it takes more than δ times the mean of a window of iterations
before it. Two things make the plain rule useless on real jobs: a fault that lasts fills the window and hides itself,
and a noisy job crosses δ by chance. So each value is clipped at δ times the mean of its own window when it enters,
and an irregular iteration must also lie outside the noise of the regular ones.

The limit above which an iteration is δ-irregular is computed in `Limit.at`, and nowhere else; `IterationWindow.judge`
and `detectors.judging.suspicion` compare with it. The other levels of the window (`suspect_ns`, `shifted_ns`) only
mark iterations for a closer look. δ is the setting ``delta``; it also sets by how much a fault that was always there
must stand out (`detectors.blame.standing_causes`), and which iterations are worth reading (`detectors.judging`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import median, robust_sigma, row_medians
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.dtypes import Floats


@dataclass(frozen=True, slots=True)
class WindowState:
    """The state of an `IterationWindow`: the times that entered it, oldest first, ns."""

    clipped: tuple[float, ...]
    regular: tuple[float, ...]
    all: tuple[tuple[float, bool], ...]
    shifted: tuple[float, int] | None


class Limit(NamedTuple):
    """The time that an irregular iteration exceeds, kept without δ: people may change that before it is used."""

    mean_ns: float  # of the window; NaN before `IRREGULAR.min_iterations`
    noise_ns: float  # upper end of the noise of its regular iterations

    def at(self, delta: float) -> float:
        """Return the larger of δ times the mean, and the noise, ns; NaN before `IRREGULAR.min_iterations`."""
        # The mean first: `max` then returns one that is NaN.
        return max(delta * self.mean_ns, self.noise_ns)


class _Levels(NamedTuple):
    """Level and noise of the regular iterations of a window, ns."""

    level_ns: float
    noise_ns: float
    noise_limit_ns: float
    usual_ns: float


class IterationWindow:
    """Judge iteration times one by one, in their order.

    `delta`: an irregular iteration takes more than this times the window's mean; above 1. `window`: iterations in the
    window; at least `IRREGULAR.min_iterations`.

    >>> window = IterationWindow(delta=1.1, window=50)
    >>> for elapsed_ns in [100, 101, 99, 100, 102, 98, 100, 101, 99, 100]:
    ...     window.learn(elapsed_ns, is_irregular=window.judge(elapsed_ns))
    >>> window.judge(100), window.judge(150)
    (False, True)

    References
    ----------
    Holmes: Localizing Irregularities in LLM Training with Mega-scale GPU Clusters, NSDI 2025, section 3.
    """

    def __init__(self, *, delta: float, window: int) -> None:
        if not delta > 1:
            raise ValueError(f"delta must be above 1; got {delta!r}")
        if window < IRREGULAR.min_iterations:
            raise ValueError(f"window must be at least {IRREGULAR.min_iterations}; got {window!r}")
        self.delta = delta
        self.window = window
        self._clipped: deque[float] = deque(maxlen=window)
        self._regular: deque[float] = deque(maxlen=window)
        self._all: deque[tuple[float, bool]] = deque(maxlen=window)  # with whether they are regular
        self._shifted: tuple[float, int] | None = None  # the level before a shift, ns, and the age of that shift
        self._levels: _Levels | None = None  # of what is in the window now; none: not asked for since it changed

    def _now(self) -> _Levels:
        """Return the levels of the window; they are asked for several times before the next iteration enters."""
        if self._levels is None:
            regular = np.fromiter(self._regular, dtype=np.float64)
            usual_ns = median(regular) if len(regular) >= IRREGULAR.min_iterations else math.nan
            self._levels = _Levels(_level_ns(regular), _noise_ns(regular), _noise_limit_ns(regular), usual_ns)
        return self._levels

    @property
    def mean_ns(self) -> float:
        """Mean of the window (each value clipped when it entered), ns; NaN before `IRREGULAR.min_iterations`."""
        if len(self._clipped) < IRREGULAR.min_iterations:
            return math.nan
        return math.fsum(self._clipped) / len(self._clipped)

    @property
    def limit(self) -> Limit:
        """The time that an irregular iteration exceeds, with δ still to be applied."""
        return Limit(self.mean_ns, self._now().noise_limit_ns)

    @property
    def limit_ns(self) -> float:
        """The time that an irregular iteration exceeds, ns; NaN before `IRREGULAR.min_iterations`."""
        return self.limit.at(self.delta)

    @property
    def level_ns(self) -> float:
        """Median of the newest regular iterations, ns; NaN before `IRREGULAR.min_iterations`."""
        return self._now().level_ns

    @property
    def noise_ns(self) -> float:
        """Robust standard deviation around the level, ns; NaN before `IRREGULAR.min_iterations`.

        It is measured by the steps between neighbours, so that a slow drift of the level does not count as noise. The
        step between two independent values has √2 times their standard deviation.
        """
        return self._now().noise_ns

    def spread_ns(self, most_ns: float) -> float:
        """Standard deviation of the window by the same steps, of irregular ones too, ns; 0 of fewer than two.

        A larger step counts as `most_ns`: a checkpoint now and then hides no rank that is a little late each time.
        """
        steps_ns = np.clip(np.diff([float(ns) for ns, _ in self._all]), -most_ns, most_ns)
        return float(np.sqrt(np.mean(steps_ns**2) / 2)) if len(steps_ns) else 0.0

    @property
    def suspect_ns(self) -> float:
        """The time that a suspect iteration exceeds, ns; NaN while unknown.

        It is worth a look although δ may call it regular.
        """
        return self.level_ns + max(self.worth_ns, JOB.sigmas * self.noise_ns)

    @property
    def shifted_ns(self) -> float:
        """The time above which a shift makes an iteration suspect with those before it, ns; infinite without one.

        It lies between the level before the shift and the time that this had to exceed.
        """
        if self._shifted is None:
            return math.inf
        level_ns, _ = self._shifted
        return level_ns + JOB.most * self._worth_ns(level_ns)

    @property
    def healthy_ns(self) -> float:
        """Usual time of an iteration, ns: the window's mean, or the level before a shift, which raises that mean."""
        return self.mean_ns if self._shifted is None else min(self.mean_ns, self._shifted[0])

    @property
    def usual_ns(self) -> float:
        """Median of the regular iterations, or the level before a shift, ns; NaN before `IRREGULAR.min_iterations`.

        Of this long the job's iterations are without a fault. The mean holds irregular ones too, stalls and warm-up.
        """
        return self._now().usual_ns if self._shifted is None else min(self._now().usual_ns, self._shifted[0])

    @property
    def has_shift(self) -> bool:
        """Whether the newest iterations took longer together."""
        return self._shifted is not None

    def _watch_shift(self, *, has_open: bool) -> None:
        """Record when a shift begins or ends.

        A shift begins when the median of the newest iterations exceeds the level before them by `worth_ns`, and also
        exceeds every such median of the window: a job with slow phases of its own has been as slow before. It ends
        when that median falls back to `shifted_ns`, or when it has filled the window and no verdict is open: it is
        the new level.
        """
        newest = IRREGULAR.shift_iterations
        times_ns = np.array([ns for ns, _ in self._all])
        if len(times_ns) < newest + IRREGULAR.min_iterations:
            return
        medians_ns = row_medians(np.lib.stride_tricks.sliding_window_view(times_ns, newest))
        if self._shifted is not None:
            level_ns, age = self._shifted
            is_level = age >= self.window and not has_open
            is_over = medians_ns[-1] <= self.shifted_ns or is_level
            self._shifted = None if is_over else (level_ns, age + 1)
            # A shift that fills the window is the new level: all its times are regular, and none is clipped.
            if is_level:
                self._clipped = deque((ns for ns, _ in self._all), maxlen=self.window)
                self._regular, self._levels = self._clipped.copy(), None
                self._all = deque(((ns, True) for ns in self._clipped), maxlen=self.window)
            return
        level_ns = self._level_before_ns()
        # Held against medians that share no iteration with the newest one.
        if medians_ns[-1] > max(level_ns + self._worth_ns(level_ns), medians_ns[:-newest].max()):
            self._shifted = level_ns, 1

    @property
    def worth_ns(self) -> float:
        """Excess over the level from which on an iteration is worth a look, ns; NaN while unknown."""
        return self._worth_ns(self.level_ns)

    def _worth_ns(self, level_ns: float) -> float:
        return (1 - JOB.part) * (self.delta - 1) * level_ns

    @property
    def rise_ns(self) -> float:
        """Median of the newest `IRREGULAR.shift_iterations` above the level before them, ns; NaN while unknown.

        Or above the median of as many right before them: the job may have become quicker since that level.
        """
        count, times_ns = IRREGULAR.shift_iterations, [ns for ns, _ in self._all]
        newest, before = times_ns[-count:], times_ns[-2 * count : -count]
        if len(before) < count:
            return math.nan
        return median(np.array(newest)) - min(self._level_before_ns(), median(np.array(before)))

    def _level_before_ns(self) -> float:
        """The level before the newest iterations, ns; NaN while unknown."""
        regular = np.fromiter(self._regular, dtype=np.float64)
        newest = list(self._all)[-IRREGULAR.shift_iterations :]
        return _level_ns(regular[: len(regular) - sum(is_regular for _, is_regular in newest)])

    def judge(self, elapsed_ns: float) -> bool | None:
        """Return whether an iteration that takes `elapsed_ns` is irregular; None while there is no opinion."""
        limit_ns = self.limit_ns
        return None if math.isnan(limit_ns) else elapsed_ns > limit_ns

    def learn(self, elapsed_ns: float, *, is_irregular: bool | None, has_open: bool = False) -> None:
        """Let an iteration enter the window, with the answer that `judge` gave for it.

        `has_open`: whether a verdict is open: a shift under it is not the job's new level.
        """
        is_last_of_first = len(self._all) == IRREGULAR.min_iterations - 1
        has_window = len(self._clipped) >= IRREGULAR.min_iterations
        clip_ns = self.delta * math.fsum(self._clipped) / len(self._clipped) if has_window else math.inf
        self._clipped.append(min(elapsed_ns, clip_ns))
        # No opinion (None) counts as regular: the first iterations fill the window.
        self._all.append((elapsed_ns, not is_irregular))
        if is_last_of_first:
            self._clip_first()
        if not is_irregular:
            self._regular.append(elapsed_ns)
            self._levels = None
        self._watch_shift(has_open=has_open)

    def _clip_first(self) -> None:
        """Clip the first iterations, which had no window, at δ times their median: in warm-up some are long.

        They are no slow phase of the job either, which a shift would have to exceed: there they count as the median.
        """
        median_ns = median(np.array(self._clipped))
        clip_ns = self.delta * median_ns
        self._clipped = deque((min(ns, clip_ns) for ns in self._clipped), maxlen=self.window)
        kept = ((median_ns if ns > clip_ns else ns, is_regular) for ns, is_regular in self._all)
        self._all = deque(kept, maxlen=self.window)

    def state(self) -> WindowState:
        """Everything that `from_state` needs."""
        return WindowState(tuple(self._clipped), tuple(self._regular), tuple(self._all), self._shifted)

    @classmethod
    def from_state(cls, state: WindowState, *, delta: float, window: int) -> IterationWindow:
        """Restore; `delta` and `window` are settings, and not part of the state: they may have changed since."""
        restored = cls(delta=delta, window=window)
        # The deques are as long as the new window: of a longer state its newest values stay.
        restored._clipped.extend(state.clipped)
        restored._regular.extend(state.regular)
        restored._all.extend(state.all)
        restored._shifted = state.shifted
        return restored


def _level_ns(regular_ns: Floats) -> float:
    """Median of the newest of these regular iterations, ns; NaN if there are too few."""
    if len(regular_ns) < IRREGULAR.min_iterations:
        return math.nan
    return median(regular_ns[-IRREGULAR.level_iterations :])


def _noise_ns(regular_ns: Floats) -> float:
    """Robust standard deviation of these regular iterations by their steps, ns; NaN if there are too few."""
    if len(regular_ns) < IRREGULAR.min_iterations:
        return math.nan
    return robust_sigma(regular_ns[1:] - regular_ns[:-1]) / math.sqrt(2.0)


def _noise_limit_ns(regular_ns: Floats) -> float:
    """Upper end of these regular iterations' noise, ns; by median and MAD, which stray values can't move."""
    # Without a regular iteration δ alone decides.
    if len(regular_ns) == 0:
        return -math.inf
    median_ns = median(regular_ns)
    return median_ns + JOB.noise_sigmas * robust_sigma(regular_ns - median_ns)
