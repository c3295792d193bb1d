"""When a job has changed for good, so that another past is its usual one.

Holmes shifts the split thresholds of its forest when a statistic drifts. A split asks whether ``(x - m) / s <= t``,
with ``m`` and ``s`` from the past: whether ``x <= m + s t``. To take ``m`` and ``s`` from a newer past moves the
thresholds of all splits on this feature by as much as the statistic has drifted, for each slot by its own drift; the
trees and their labels stay as they are.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from irregulars.dtypes import Column, Floats

_CONFIDENCE: Final = 0.002  # ADWIN's own default
_ALL: Final = -1  # signal of all operators together


class DriftSignals:
    """Watches how far a rank's operators are from what is usual, with one ADWIN per kind of operator.

    The signals are medians of log ratios over an iteration: a single operator, whatever it takes, does not move them.

    References
    ----------
    Bifet and Gavaldà: Learning from Time-Changing Data with Adaptive Windowing, SDM 2007.
    """

    def __init__(self) -> None:
        self._watches: dict[int, Any] = {}

    def has_changed(self, operators: Column, ratios: Floats) -> bool:
        """Take in the log ratios of a regular iteration; say whether a lasting change was noticed with it."""
        found = False
        for operator in (_ALL, *np.unique(operators).tolist()):  # 11 kinds at most
            own = ratios if operator == _ALL else ratios[operators == operator]
            if len(own):
                found |= self._update(operator, float(np.median(own)))
        return found

    def _update(self, operator: int, signal: float) -> bool:
        if operator not in self._watches:
            from river.drift import ADWIN  # 0.7 s: not for those who only import the module

            self._watches[operator] = ADWIN(delta=_CONFIDENCE, clock=4)
        watch = self._watches[operator]
        watch.update(signal)
        if watch.drift_detected:
            del self._watches[operator]  # what is usual moves: later signals are of another scale
            return True
        return False
