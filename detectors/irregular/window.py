"""δ-irregularity: which iterations take longer than the job's recent past explains.

Holmes (NSDI'25) calls an iteration δ-irregular if it takes more than δ times the mean of a window of iterations
before it. Two things make the plain rule useless on real jobs: a fault that lasts fills the window and hides itself,
and a noisy job crosses δ by chance. So each value is clipped at δ times the mean of its own window when it enters,
and an irregular iteration must also lie outside the noise of the regular ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from irregulars.detectors.arrays.grouped_medians import robust_sigma

MIN_ITERATIONS: Final = 10
"""Nothing is judged before so many iterations."""

NOISE_SIGMAS: Final = 3.0
"""An irregular iteration lies so many robust standard deviations above the median of the regular ones."""

LEVEL_ITERATIONS: Final = 20
"""An iteration is held against the median of so many regular ones before it: a drift does not move it far."""

SUSPECT_SIGMAS: Final = 4.0
SUSPECT_SHARE: Final = 0.75
"""A suspect iteration stands so far out of the noise from one iteration to the next, and exceeds its level by this
share at least of what δ allows."""

SHIFT_ITERATIONS: Final = 5
"""There is a shift if the median of the newest so many iterations exceeds the level before them by `SUSPECT_SHARE` of
what δ allows, and all such medians of the window: what lasts shows in a job whose single iterations are too noisy to
tell. The second condition is that of a job with slow phases of its own."""

SHIFT_LASTS: Final = 0.5
"""It lasts while the median exceeds the level by so much of that; each iteration that does is a suspect."""

_DRIFT_MEMORY: Final = 512
_DRIFT_CHECKED_EVERY: Final = 32  # ADWIN's default: before so many values it has nothing to say


class IterationWindow:
    """Judge iteration times one by one, in their order.

    Parameters
    ----------
    delta
        How many times the window's mean an irregular iteration takes at least; above 1.
    window
        How many iterations the window holds; at least `MIN_ITERATIONS`.

    Examples
    --------
    >>> window = IterationWindow(delta=1.1, window=50)
    >>> for elapsed_ns in [100, 101, 99, 100, 102, 98, 100, 101, 99, 100]:
    ...     window.learn(elapsed_ns, is_irregular=window.judge(elapsed_ns))
    >>> window.judge(100), window.judge(150)
    (False, True)

    References
    ----------
    Holmes: Localizing Irregularities in LLM Training with Mega-scale GPU Clusters, NSDI 2025, section 3.
    """

    def __init__(self, *, delta: float = 1.1, window: int = 50) -> None:
        if not delta > 1:
            raise ValueError(f"delta must be above 1; got {delta!r}")
        if window < MIN_ITERATIONS:
            raise ValueError(f"window must be at least {MIN_ITERATIONS}; got {window!r}")
        self.delta = delta
        self.window = window
        self._clipped: deque[float] = deque(maxlen=window)
        self._regular: deque[float] = deque(maxlen=window)
        self._all: deque[tuple[float, bool]] = deque(maxlen=window)  # with whether they are regular
        self._shifted: tuple[float, int] | None = None  # what shifted iterations exceed, ns, and since how many

    @property
    def mean_ns(self) -> float:
        """Mean of the window (each value clipped when it entered), ns; NaN before `MIN_ITERATIONS`."""
        if len(self._clipped) < MIN_ITERATIONS:
            return math.nan
        return math.fsum(self._clipped) / len(self._clipped)

    @property
    def limit_ns(self) -> float:
        """What an irregular iteration exceeds, ns; NaN before `MIN_ITERATIONS`."""
        mean_ns = self.mean_ns
        if math.isnan(mean_ns):
            return math.nan
        return max(self.delta * mean_ns, self._noise_limit_ns())

    @property
    def level_ns(self) -> float:
        """Median of the newest regular iterations, ns; NaN before `MIN_ITERATIONS`."""
        return _level_ns(list(self._regular))

    @property
    def noise_ns(self) -> float:
        """Robust standard deviation around the level, ns, from steps between neighbours: a drift is no noise."""
        if len(self._regular) < MIN_ITERATIONS:
            return math.nan
        steps = np.diff(np.array(self._regular))
        return robust_sigma(steps) / math.sqrt(2.0)

    @property
    def suspect_ns(self) -> float:
        """What a suspect iteration exceeds, ns: worth a look although δ may call it regular; NaN while unknown."""
        return self.level_ns + max(self.worth_ns, SUSPECT_SIGMAS * self.noise_ns)

    @property
    def shifted_ns(self) -> float:
        """What an iteration exceeds that is suspect together with those before it, ns; infinite without a shift."""
        return math.inf if self._shifted is None else self._shifted[0]

    def _watch_shift(self) -> None:
        """Note whether the newest iterations take longer; the level from before stays what they are held against."""
        times_ns = np.array([ns for ns, _ in self._all])
        if len(times_ns) < SHIFT_ITERATIONS + MIN_ITERATIONS:
            return
        medians_ns = np.median(np.lib.stride_tricks.sliding_window_view(times_ns, SHIFT_ITERATIONS), axis=1)
        if self._shifted is not None:
            limit_ns, age = self._shifted
            is_over = medians_ns[-1] <= limit_ns or age >= self.window
            self._shifted = None if is_over else (limit_ns, age + 1)
            return
        level_ns = self._level_before_ns()
        worth_ns = self._worth_ns(level_ns)
        if medians_ns[-1] > max(level_ns + worth_ns, medians_ns[:-SHIFT_ITERATIONS].max()):
            self._shifted = level_ns + SHIFT_LASTS * worth_ns, 1

    @property
    def worth_ns(self) -> float:
        """By how much an iteration must exceed the level to be worth a look, ns; NaN while unknown."""
        return self._worth_ns(self.level_ns)

    def _worth_ns(self, level_ns: float) -> float:
        return SUSPECT_SHARE * (self.delta - 1) * level_ns

    @property
    def rise_ns(self) -> float:
        """By how much the newest `SHIFT_ITERATIONS`, their median, exceed the level before them, ns; NaN: unknown."""
        newest = [ns for ns, _ in self._all][-SHIFT_ITERATIONS:]
        return float(np.median(newest)) - self._level_before_ns() if newest else math.nan

    def _level_before_ns(self) -> float:
        """The level before the newest iterations, ns; NaN while unknown."""
        regular = list(self._regular)
        newest = list(self._all)[-SHIFT_ITERATIONS:]
        return _level_ns(regular[: len(regular) - sum(is_regular for _, is_regular in newest)])

    def judge(self, elapsed_ns: float) -> bool | None:
        """Return whether an iteration that takes `elapsed_ns` is irregular; None while there is no opinion."""
        limit_ns = self.limit_ns
        return None if math.isnan(limit_ns) else elapsed_ns > limit_ns

    def learn(self, elapsed_ns: float, *, is_irregular: bool | None) -> None:
        """Let an iteration enter the window, with what was judged of it."""
        self._clipped.append(min(elapsed_ns, self._clip_ns()))
        if len(self._all) == MIN_ITERATIONS - 1:
            self._clip_first()
        self._all.append((elapsed_ns, not is_irregular))
        if not is_irregular:
            self._regular.append(elapsed_ns)
        self._watch_shift()

    def restart(self, elapsed_ns: Iterable[float]) -> None:
        """Forget the window and begin anew with these times: the job changed for good."""
        recent = list(elapsed_ns)[-self.window :]
        self._clipped = deque(recent, maxlen=self.window)
        self._regular = deque(recent, maxlen=self.window)
        self._all = deque(((ns, True) for ns in recent), maxlen=self.window)
        self._shifted = None

    def _clip_first(self) -> None:
        """Clip the first iterations, which had no window, at δ times their median: warm-up makes some long."""
        limit_ns = self.delta * float(np.median(self._clipped))
        self._clipped = deque((min(ns, limit_ns) for ns in self._clipped), maxlen=self.window)

    def _clip_ns(self) -> float:
        if len(self._clipped) < MIN_ITERATIONS:
            return math.inf
        return self.delta * math.fsum(self._clipped) / len(self._clipped)

    def _noise_limit_ns(self) -> float:
        """Outside of the regular iterations' noise; by median and MAD, which warm-up and stray values can't move."""
        regular = np.fromiter(self._regular, dtype=np.float64)
        if len(regular) == 0:
            return -math.inf
        median_ns = float(np.median(regular))
        sigma_ns = robust_sigma(regular - median_ns)
        return median_ns + NOISE_SIGMAS * sigma_ns

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as plain lists and numbers."""
        return {
            "delta": self.delta,
            "window": self.window,
            "clipped": list(self._clipped),
            "regular": list(self._regular),
            "all": [[elapsed_ns, is_regular] for elapsed_ns, is_regular in self._all],
            "shifted": None if self._shifted is None else list(self._shifted),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> IterationWindow:
        """Restore."""
        window = cls(delta=state["delta"], window=state["window"])
        window._clipped.extend(state["clipped"])
        window._regular.extend(state["regular"])
        window._all.extend((elapsed_ns, is_regular) for elapsed_ns, is_regular in state["all"])
        shifted = state["shifted"]
        window._shifted = None if shifted is None else (shifted[0], shifted[1])
        return window


def _level_ns(regular_ns: list[float]) -> float:
    """Median of the newest of some regular iterations, ns; NaN of fewer than `MIN_ITERATIONS`."""
    return float(np.median(regular_ns[-LEVEL_ITERATIONS:])) if len(regular_ns) >= MIN_ITERATIONS else math.nan


class DriftWatch:
    """Notice that a job's iteration time has changed for good, with River's ADWIN.

    ADWIN compares all splits of its adaptive window of logarithms of the time, so that a change counts by its ratio.

    Parameters
    ----------
    confidence
        ADWIN's δ (not the δ of the irregularity): the chance of a false alarm at a split.

    References
    ----------
    Bifet and Gavaldà: Learning from Time-Changing Data with Adaptive Windowing, SDM 2007.
    """

    def __init__(self, *, confidence: float = 0.002) -> None:
        self.confidence = confidence
        self._adwin: Any = None
        self._rebuild([])

    def learn(self, elapsed_ns: float) -> bool:
        """Take in one iteration time, ns; return whether a lasting change was noticed with it."""
        if len(self._elapsed_ns) >= _DRIFT_MEMORY:
            self._rebuild(self._elapsed_ns[_DRIFT_MEMORY // 2 :])
        self._elapsed_ns.append(elapsed_ns)
        if self._adwin is None:
            self._rebuild(self._elapsed_ns)
        else:
            self._adwin.update(math.log(max(elapsed_ns, 1.0)))
        return self._adwin is not None and bool(self._adwin.drift_detected)

    def recent_ns(self) -> list[float]:
        """Times since the change, ns, oldest first."""
        width = len(self._elapsed_ns) if self._adwin is None else int(self._adwin.width)
        return self._elapsed_ns[-max(width, 1) :]

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs: ADWIN is a function of what it was fed, so that is what is kept."""
        return {"confidence": self.confidence, "elapsed_ns": list(self._elapsed_ns)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> DriftWatch:
        """Restore."""
        watch = cls(confidence=state["confidence"])
        watch._rebuild(list(state["elapsed_ns"]))
        return watch

    def _rebuild(self, elapsed_ns: list[float]) -> None:
        self._elapsed_ns, self._adwin = elapsed_ns, None
        if len(elapsed_ns) < _DRIFT_CHECKED_EVERY:
            return
        from river.drift import ADWIN  # a second, with all that it imports: not for what a short job never asks

        self._adwin = ADWIN(delta=self.confidence, clock=_DRIFT_CHECKED_EVERY)
        for value_ns in elapsed_ns:
            self._adwin.update(math.log(max(value_ns, 1.0)))
