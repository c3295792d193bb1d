"""The detectors of one rank's operators: they score each iteration, and learn those that took no longer than usual.

Whether an iteration of the job is irregular is judged in the second hop, some seconds later. The first hop can't
wait for that: it would have to keep all operators meanwhile. But all ranks of a job wait for one another in each
iteration, so a job's irregular iteration is long on each of its ranks: the rank's own time tells nearly the same.
δ and the window are those of the settings: a δ that people change while workers run holds in the second hop alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from irregulars.detectors.plugins.protocol import Detector, name_of
from irregulars.detectors.plugins.stored_state import StoredDetector, restore_detectors, stored_detectors
from irregulars.dtypes import Column
from irregulars.messages.bounds import BOUNDS
from irregulars.messages.evidence import DETECTOR_SCORE

STATE_BYTES: Final = 16 * 1024
"""Most bytes of one detector's state in the snapshot of a rank: some four hundred classes of `baseline`; chosen."""

_MOST_SCORE: Final = BOUNDS["evidence"]["score"].most
"""Beyond it a score is no score, as infinity is: the second hop would refuse all rows that travel with it."""

WARM_UP: Final = 10
"""First iterations, which are all learned: with fewer no mean is known; as many as the judgement's window needs."""

MOST_HELD_WINDOWS: Final = 2
"""After this many windows of iterations in a row that were not learned, these are the usual ones; chosen."""


@dataclass(frozen=True, slots=True)
class UsualTime:
    """Usual length of a rank's iterations.

    No value counts for more than δ times the mean, as in the judgement's window; and of the first ones, which
    compilation makes long, those before a much shorter one do not count.
    """

    mean_ns: float = 0.0  # of the newest ones; each has the weight of one in a window
    # learned, held: Iterations that were learned in all, and those since that were not
    learned: int = 0
    held: int = 0

    def is_usual(self, elapsed_ns: float, delta: float, window: int) -> bool:
        """Whether an iteration may be learned: it took at most δ times the mean, or all have been long for long."""
        is_cold = self.learned < WARM_UP or self.held >= MOST_HELD_WINDOWS * window
        return is_cold or elapsed_ns <= delta * self.mean_ns

    def next(self, elapsed_ns: float, delta: float, window: int) -> UsualTime:
        """Return the usual time after one more iteration."""
        is_late_begin = self.learned < WARM_UP and delta * elapsed_ns < self.mean_ns
        if not self.learned or is_late_begin or self.held >= MOST_HELD_WINDOWS * window:
            return UsualTime(elapsed_ns, self.learned + 1)
        is_usual = self.is_usual(elapsed_ns, delta, window)
        clipped_ns = min(elapsed_ns, delta * self.mean_ns)
        mean_ns = self.mean_ns + (clipped_ns - self.mean_ns) / min(self.learned + self.held + 1, window)
        return UsualTime(mean_ns, self.learned + is_usual, 0 if is_usual else self.held + 1)


@dataclass(frozen=True, slots=True)
class TaughtState:
    """State of `TaughtDetectors`."""

    usual: UsualTime
    detectors: tuple[StoredDetector, ...] = ()


class TaughtDetectors:
    """Detectors of one rank's operators.

    `columns`: names of the columns of evidence with the largest score of each.
    """

    def __init__(self, makers: Sequence[Callable[[], Detector]], delta: float, window: int) -> None:
        self._makers = makers
        self._delta, self._window = delta, window
        self._usual = UsualTime()
        self._own = [(name_of(one), one) for one in (make() for make in makers)]
        self.columns = tuple(DETECTOR_SCORE + name for name, _ in self._own)

    def take(self, frame: Mapping[str, Column], elapsed_ns: int) -> dict[str, float]:
        """Score an iteration's operators, and then learn it if it took no longer than usual.

        Returns the largest score by column of evidence: of each detector, and ``score``, that of all; NaN: no
        opinion.
        """
        is_usual = self._usual.is_usual(elapsed_ns, self._delta, self._window)
        found = {"score": np.nan}
        for column, (_, detector) in zip(self.columns, self._own, strict=True):
            scores = detector.score(frame)
            scores = np.where(np.abs(scores) <= _MOST_SCORE, scores, np.nan)
            # `fmax` passes over NaN: an operator without an opinion hides no score of another.
            found[column] = float(np.fmax.reduce(scores, initial=np.nan))
            found["score"] = float(np.fmax(found["score"], found[column]))
            if is_usual:
                detector.learn(frame)
        self._usual = self._usual.next(elapsed_ns, self._delta, self._window)
        return found

    def state(self) -> TaughtState:
        """Everything that `restore` needs."""
        return TaughtState(self._usual, stored_detectors(self._own, STATE_BYTES))

    def restore(self, state: TaughtState) -> None:
        """Go on from a state; a detector without one begins cold."""
        self._usual = state.usual
        if state.detectors:
            self._own, _ = restore_detectors(self._makers, state.detectors)
