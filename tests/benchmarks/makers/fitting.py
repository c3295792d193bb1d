"""Leave one maker out: whatever is fitted for the decision is fitted on the outcomes of the others.

A fit is a pure function from outcomes to what it fits. Today that is the curve through which a first suspect's
probability is read; the judgement has no other part that is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from tests.benchmarks.makers.scoring import Outcome

Curve = Callable[[float], float]
Fit = Callable[[Sequence[Outcome]], Curve]
Promise = tuple[float, bool]  # how probable a first suspect is said to be, and whether it was one
_EDGE: Final = 1e-3  # log-odds of 0 and 1 are infinite


def promises_of(outcomes: Sequence[Outcome]) -> list[Promise]:
    """Return what was promised of first suspects, and what came true; hard faults are left out."""
    return [
        (one.score.promised, one.score.is_top1)
        for one in outcomes
        if one.score.promised is not None and not one.truth.is_hard
    ]


def as_said(_others: Sequence[Outcome]) -> Curve:
    return lambda promised: promised


def logistic(others: Sequence[Outcome]) -> Curve:
    """Fit a line through the log-odds."""
    from sklearn.linear_model import LogisticRegression

    promised, came_true = _columns(others)
    if len(set(came_true.tolist())) < 2:
        return as_said(others)
    model = LogisticRegression().fit(_log_odds(promised), came_true)
    return lambda one: float(model.predict_proba(_log_odds(np.array([one])))[0, 1])


FITS: Final[Mapping[str, Fit]] = {"none": as_said, "logistic": logistic}


def held_out(by_maker: Mapping[str, Sequence[Outcome]], fit: Fit) -> dict[str, list[Promise]]:
    """Return what each maker's first suspects promise by a fit on all other makers."""
    found = {}
    for maker, own in by_maker.items():
        curve = fit([one for other, outcomes in by_maker.items() if other != maker for one in outcomes])
        found[maker] = [(curve(promised), came_true) for promised, came_true in promises_of(own)]
    return found


def _columns(outcomes: Sequence[Outcome]) -> tuple[np.ndarray, np.ndarray]:
    pairs = promises_of(outcomes)
    return np.array([one for one, _ in pairs]), np.array([came_true for _, came_true in pairs], dtype=float)


def _log_odds(promised: np.ndarray) -> np.ndarray:
    kept = np.clip(promised, _EDGE, 1 - _EDGE)
    return np.log(kept / (1 - kept))[:, None]
