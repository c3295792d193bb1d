"""A River model as a detector: each rank's work against a Gaussian with a fading memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores


@dataclass(slots=True)
class _Model:
    mean: Any  # river.stats.EWMean
    variance: Any  # river.stats.EWVar
    values: int = 0
    last_frame: int = 0


class RiverGaussian:
    """z-score of a rank's log work under River's exponentially weighted mean and variance.

    Why not `river.anomaly.GaussianScorer` (0.26): while cold it scores everything 0, a series without spread scores
    its usual value 1, beyond 8 standard deviations all is 1, and one NaN makes it NaN for good. Here cold is NaN, the
    spread has a floor, the score is open to the top, and unknown values are not learned.

    Parameters
    ----------
    warm_up
        Iterations that a rank must have taught before there is an opinion on it.
    fading
        Weight of the newest iteration, 0 to 1. 0.05: the newest 14 iterations have half of the weight.
    floor_ratio
        Least spread that counts as noise, as a ratio of work.
    forget_after
        Iterations after which a rank that is not seen any more is forgotten.

    Notes
    -----
    A row is strange from 6 standard deviations on, as for `RobustBaseline`; warm-up and floor are its too.

    >>> from irregulars.detectors.plugins.sample_frames import sample_frame
    >>> detector = RiverGaussian()
    >>> for iteration in range(50):
    ...     detector.learn(sample_frame("rank", iteration))
    >>> detector.score(sample_frame("rank", 50, is_faulty=True)).argmax()
    np.int64(1)
    """

    level: ClassVar[Level] = "rank"
    against: ClassVar[Against] = "past"
    reads: ClassVar[tuple[str, ...]] = ("rank", "work_ns")
    strange_from: ClassVar[float] = 6.0

    def __init__(
        self, *, warm_up: int = 20, fading: float = 0.05, floor_ratio: float = 0.02, forget_after: int = 50
    ) -> None:
        self.warm_up = warm_up
        self.fading = fading
        self.floor_ratio = floor_ratio
        self.forget_after = forget_after
        self._frames = 0
        self._models: dict[int, _Model] = {}

    def score(self, frame: Frame) -> Scores:
        """Score each rank; positive: more work than usual."""
        pairs = zip(frame["rank"].tolist(), frame["work_ns"].tolist(), strict=True)
        return np.array([self._score_one(rank, work_ns) for rank, work_ns in pairs], dtype=np.float64)

    def learn(self, frame: Frame) -> None:
        """Update the model of each rank whose work is known."""
        self._frames += 1
        for rank, work_ns in zip(frame["rank"].tolist(), frame["work_ns"].tolist(), strict=True):
            if _is_usable(work_ns):
                model = self._models.get(rank) or self._models.setdefault(rank, self._new_model())
                value = math.log(max(work_ns, 1.0))
                model.mean.update(value)
                model.variance.update(value)
                model.values += 1
                model.last_frame = self._frames
        oldest = self._frames - self.forget_after
        self._models = {rank: model for rank, model in self._models.items() if model.last_frame >= oldest}

    def explain(self, frame: Frame, row: int) -> str:
        """Name the work of a rank and its usual work."""
        usual_ms = math.exp(self._models[int(frame["rank"][row])].mean.get()) / 1e6
        return f"it worked {frame['work_ns'][row] / 1e6:.3g} ms, usually {usual_ms:.3g} ms"

    def state(self) -> dict[str, Any]:
        """Return mean and variance of each rank, all that River's objects reveal."""
        models = self._models.values()
        numbers = [(one.mean.get(), one.variance.get(), one.values, one.last_frame) for one in models]
        return {
            "frames": self._frames,
            "ranks": np.array(list(self._models), dtype=np.int64),
            "models": np.array(numbers, dtype=np.float64).reshape(-1, 4),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._frames = int(state["frames"])
        for rank, (mean, variance, values, last_frame) in zip(
            state["ranks"].tolist(), state["models"].tolist(), strict=True
        ):
            model = self._models[rank] = self._new_model()
            # River's objects can't be set; the first value of an empty mean is its mean.
            model.mean.update(mean)
            for value in self._values_of(mean, variance):
                model.variance.update(value)
            model.values, model.last_frame = int(values), int(last_frame)

    def _values_of(self, mean: float, variance: float) -> tuple[float, ...]:
        """Return values after which an empty variance of River's has a mean and a variance: one, or two of them.

        After x and x + d the mean is x + f d, and the variance f (1 - f) d², where f is the fading factor.
        """
        product = self.fading * (1 - self.fading)
        if not product or variance <= 0:
            return (mean,)
        distance = math.sqrt(variance / product)
        return mean - self.fading * distance, mean + (1 - self.fading) * distance

    def _score_one(self, rank: int, work_ns: float) -> float:
        model = self._models.get(rank)
        if model is None or model.values < self.warm_up or not _is_usable(work_ns):
            return math.nan
        spread = math.sqrt(max(model.variance.get(), self.floor_ratio**2))  # rounding can take it below 0
        return float((math.log(max(work_ns, 1.0)) - model.mean.get()) / spread)

    def _new_model(self) -> _Model:
        from river import stats  # an extra: the base install does without it

        return _Model(stats.EWMean(fading_factor=self.fading), stats.EWVar(fading_factor=self.fading))


def _is_usable(work_ns: float) -> bool:
    return math.isfinite(work_ns) and work_ns >= 0
