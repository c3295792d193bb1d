"""What the checks of detectors are made of."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from irregulars.detectors.plugins.protocol import Detector, Frame, MakeDetector, Scores
from irregulars.detectors.plugins.sample_frames import sample_frame
from irregulars.dtypes import Column
from irregulars.errors import PluginError

WARM_FRAMES: Final = 60
"""Frames after which a detector must have an opinion."""


def require(holds: bool, text: str) -> None:
    """Raise `PluginError` with a text unless something holds."""
    if not holds:
        raise PluginError(text)


def scores_of(detector: Detector, frame: Frame) -> Scores:
    """Score a frame; raise `PluginError` unless that gives a usable number for each row."""
    scores: Any = detector.score(frame)
    rows = len(next(iter(frame.values())))
    is_right = isinstance(scores, np.ndarray) and scores.dtype == np.float64 and scores.shape == (rows,)
    found = f"{scores.dtype} of shape {scores.shape}" if isinstance(scores, np.ndarray) else type(scores).__name__
    require(is_right, f"score must give one float64 per row; got {found} for {rows} rows")
    infinite = int(np.isinf(scores).sum())
    require(infinite == 0, f"scores must be finite or NaN; got {infinite} infinite ones of {rows}")
    checked: Scores = scores
    return checked


def frames_for(detector: Detector, count: int, first: int = 0) -> Iterator[dict[str, Column]]:
    """Yield healthy frames of a detector's level."""
    return (sample_frame(detector.level, first + number) for number in range(count))


def warm_detector(make: MakeDetector) -> Detector:
    """Make a detector that has learned enough to have an opinion."""
    detector = make()
    for frame in frames_for(detector, WARM_FRAMES):
        detector.learn(frame)
    return detector


def require_same(first: Detector, second: Detector, when: str) -> None:
    """Raise `PluginError` unless two detectors score alike."""
    for frame in frames_for(first, 5, first=2000):
        require_close(scores_of(first, frame), scores_of(second, frame), when)


def require_close(wanted: Scores, found: Scores, when: str) -> None:
    """Raise `PluginError` unless scores are equal, but for rounding."""
    is_other = ~np.isclose(wanted, found, rtol=1e-6, atol=1e-9, equal_nan=True)
    if is_other.any():
        row = int(np.flatnonzero(is_other)[0])
        require(False, f"scores must stay the same {when}; got {found[row]:.6g} for {wanted[row]:.6g} in row {row}, "
                 f"{int(is_other.sum())} of {len(found)} rows differ")  # fmt: skip


def require_separates(detector: Detector, when: str) -> None:
    """At most one of 100 healthy frames may hold a score as high as the middle one of ten faulty frames."""
    faulty = [highest(detector, sample_frame(detector.level, 3000 + n, is_faulty=True)) for n in range(10)]
    healthy = [highest(detector, frame) for frame in frames_for(detector, 100, first=4000)]
    level = float(np.median(faulty))
    require(np.isfinite(level), f"a row three times as slow must have a score {when}; got {level}")
    loud = sum(score >= level for score in healthy)
    require(loud <= 1, f"healthy frames must score below a row three times as slow ({level:.3g}) {when}; "
             f"got {loud} of {len(healthy)} at or above it, the highest {max(healthy):.3g}")  # fmt: skip


def highest(detector: Detector, frame: Frame) -> float:
    """Return the highest score of a frame; NaN: there is none."""
    scores = scores_of(detector, frame)
    return float(np.max(scores, initial=-np.inf, where=np.isfinite(scores))) if np.isfinite(scores).any() else np.nan


def state_bytes(detector: Detector) -> int:
    """Return how long a detector is, pickled."""
    return len(pickle.dumps(detector))


def time_of(detector: Detector, frame: Frame) -> float:
    """Return how long a frame takes to score and learn, seconds of processor time."""
    started_s = time.thread_time()
    detector.score(frame)
    detector.learn(frame)
    return time.thread_time() - started_s


@contextmanager
def random_state(seed: int) -> Iterator[None]:
    """Set the global random states, which a detector must not use, and put them back."""
    kept, kept_numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(kept)
        np.random.set_state(kept_numpy)
