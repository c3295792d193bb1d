"""Published rules for loss spikes as a detector: each as its source has it, on the series of the job.

The rules read scalars that are the same on all ranks after a reduction, so that they name nobody: each rank gets the
score of the job. Verdicts are opened by `detectors.numerics`; these rules are for comparison, and for those who trust
one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from irregulars.detectors.plugins.protocol import Against, Frame, Level, Scores
from irregulars.dtypes import Floats
from irregulars.errors import PluginError

_MOST: Final = 1e6  # a score stays finite


class _Rule(Protocol):
    """A rule with its memory, a dataclass of numbers and arrays; one step is loss, gradient norm and update RMS."""

    def __init__(self, **memory: Any) -> None: ...

    def score(self, step: Floats) -> float:
        """Return 1 or more for an alarm, NaN while there is no opinion."""

    def learn(self, step: Floats) -> None:
        """Take in the step."""


def _unknown(count: int) -> Callable[[], Floats]:
    return lambda: np.full(count, np.nan)


def _largest(ratios: Floats) -> float:
    known = ratios[~np.isnan(ratios)]
    return float(np.clip(known.max(), 0.0, _MOST)) if len(known) else math.nan


@dataclass
class Megatron:
    """Ten times the largest of the first 100 samples, or not finite (Megatron-LM, rerun_state_machine.py)."""

    count: int = 0
    largest: Floats = field(default_factory=_unknown(2))

    def score(self, step: Floats) -> float:  # noqa: D102 - as `_Rule`
        if np.isinf(step).any():
            return _MOST
        return math.nan if self.count < 100 else _largest(step[:2] / (10.0 * self.largest))

    def learn(self, step: Floats) -> None:  # noqa: D102
        if self.count < 100:
            self.count += 1
            self.largest = np.fmax(self.largest, np.where(np.isinf(step[:2]), np.nan, step[:2]))


@dataclass
class LlmFoundry:
    """Loss at twice the mean of the last 100 more than four times in a row (llm-foundry, KillLossSpike)."""

    window: Floats = field(default_factory=_unknown(100))
    run: int = 0

    def score(self, step: Floats) -> float:  # noqa: D102
        if np.isnan(self.window[0]):
            return math.nan
        # The alarm comes with the fifth in a row.
        return (self.run + 1) / 5 if self._is_twice(step) else 0.0

    def learn(self, step: Floats) -> None:  # noqa: D102
        self.run = self.run + 1 if self._is_twice(step) else 0
        self.window = _pushed(self.window, step[0])

    def _is_twice(self, step: Floats) -> bool:
        known = self.window[np.isfinite(self.window)]
        return not np.isnan(self.window[0]) and len(known) > 0 and bool(step[0] >= 2.0 * known.mean())


@dataclass
class Olmo:
    """Loss or norm more than 6 standard deviations above the mean of the last 128 (OLMo-core, SkipStepOptimizer)."""

    count: int = 0
    window: Floats = field(default_factory=lambda: np.full((128, 2), np.nan))

    def score(self, step: Floats) -> float:  # noqa: D102
        ratios = np.full(2, np.nan)
        for place in range(2):
            before = self.window[~np.isnan(self.window[:, place]), place]
            if self.count >= 64 and len(before) > 1:
                ratios[place] = (step[place] - before.mean()) / max(6.0 * before.std(ddof=1), 1e-30)
        return _largest(ratios)

    def learn(self, step: Floats) -> None:  # noqa: D102
        self.count = min(self.count + 1, 64)
        self.window = _pushed(self.window, np.where(np.isinf(step[:2]), np.nan, step[:2]))


@dataclass
class ZClip:
    """Norm 2.5 standard deviations above its fading mean (ZClip, arXiv 2504.02507): there it is clipped."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def score(self, step: Floats) -> float:  # noqa: D102
        if self.count < 25 or np.isnan(step[1]):
            return math.nan
        return float(np.clip(self._z(step[1]) / 2.5, 0.0, _MOST))

    def learn(self, step: Floats) -> None:  # noqa: D102
        value, deviation = float(step[1]), math.sqrt(max(self.variance, 1e-24))
        if self.count >= 25 and (z := self._z(value)) > 2.5:
            value = self.mean + deviation * 2.5 * (2.5 / z)
        if not math.isfinite(value):
            return
        before, self.count = self.mean, self.count + 1
        weight = 1 / self.count if self.count <= 25 else 0.03  # first the plain mean of what came
        self.mean = before + weight * (value - before)
        spread = (value - before) * (value - self.mean) if self.count <= 25 else (value - before) ** 2
        self.variance += weight * (spread - self.variance)

    def _z(self, value: float) -> float:
        return (value - self.mean) / math.sqrt(max(self.variance, 1e-24))


@dataclass
class ByteRobust:
    """Five times the step before, or not finite (ByteRobust, SOSP 2025)."""

    last: Floats = field(default_factory=_unknown(2))

    def score(self, step: Floats) -> float:  # noqa: D102
        return _MOST if np.isinf(step).any() else _largest(step[:2] / np.maximum(5.0 * self.last, 1e-30))

    def learn(self, step: Floats) -> None:  # noqa: D102
        # A step that is not finite measures no later one.
        self.last = np.where(np.isfinite(step[:2]), step[:2], self.last)


@dataclass
class FlagScale:
    """Loss a fifth above the last one that was not, or not finite (FlagScale, spiky_loss.py)."""

    last: float = math.nan

    def score(self, step: Floats) -> float:  # noqa: D102
        if np.isinf(step[0]):
            return _MOST
        return _largest(np.array([(step[0] - self.last) / max(0.2 * self.last, 1e-30)]))

    def learn(self, step: Floats) -> None:  # noqa: D102
        if np.isfinite(step[0]) and not self.score(step) >= 1:
            self.last = float(step[0])


@dataclass
class TuBerlin:
    """Change of the update over a bound that falls with the root of the norm's rise (TU Berlin, torchrun_main.py).

    An alarm where ΔR > mean(ΔR over the first 60 steps) / (α √Δg) with α = 0.05, from step 10 on, or where the norm
    is not finite.
    """

    count: int = 0
    norm: float = math.nan
    rms: float = math.nan
    changes: float = 0.0  # their sum over the first steps

    def score(self, step: Floats) -> float:  # noqa: D102
        if np.isinf(step[1]):
            return _MOST
        rise, change = step[1] - self.norm, abs(step[2] - self.rms)
        if self.count < 10 or np.isnan(rise) or np.isnan(change):
            return math.nan
        usual = self.changes / min(self.count, 60)
        return float(np.clip(change * 0.05 * math.sqrt(max(rise, 0.0)) / max(usual, 1e-30), 0.0, _MOST))

    def learn(self, step: Floats) -> None:  # noqa: D102
        if not np.isfinite(step[1:]).all():
            return
        change = abs(step[2] - self.rms) if self.count >= 2 else 0.0
        self.changes += change if self.count < 60 else 0.0
        self.count, self.norm, self.rms = self.count + 1, float(step[1]), float(step[2])


RULES: Final[Mapping[str, type[_Rule]]] = {
    "megatron": Megatron,
    "llm_foundry": LlmFoundry,
    "olmo": Olmo,
    "zclip": ZClip,
    "byte_robust": ByteRobust,
    "flag_scale": FlagScale,
    "tu_berlin": TuBerlin,
}


class PublishedRule:
    """A published rule for loss spikes.

    Parameters
    ----------
    rule
        One of `RULES`.

    Notes
    -----
    Loss is the mean of the ranks, norm and RMS are their medians. The sources' own limits hold, 1 is an alarm.
    Irregular iterations are not learned, whereas the sources learn each step.

    >>> from irregulars.detectors.plugins.sample_frames import sample_frame
    >>> detector = PublishedRule(rule="olmo")
    >>> for iteration in range(80):
    ...     detector.learn(sample_frame("rank", iteration))
    >>> bool(detector.score(sample_frame("rank", 80, is_faulty=True)).min() > 1)
    True
    """

    level: ClassVar[Level] = "rank"
    against: ClassVar[Against] = "past"
    reads: ClassVar[tuple[str, ...]] = ("rank", "loss", "grad_norm", "update_rms")
    is_witness: ClassVar[bool] = False  # a loss is no evidence of a rank's time

    def __init__(self, *, rule: str = "byte_robust") -> None:
        if rule not in RULES:
            raise PluginError(f"rule must be one of {', '.join(RULES)}; got {rule!r}")
        self.rule = rule
        self._memory = RULES[rule]()

    def score(self, frame: Frame) -> Scores:
        """Give each rank the score of the job's step."""
        return np.full(len(frame["rank"]), self._memory.score(_step_of(frame)))

    def learn(self, frame: Frame) -> None:
        """Take in the job's step."""
        step = _step_of(frame)
        if not np.isnan(step[:2]).all():
            self._memory.learn(step)

    def explain(self, frame: Frame, row: int) -> str:
        """Name loss and norm of the step."""
        loss, norm, _ = _step_of(frame).tolist()
        return f"loss {loss:.4g}, gradient norm {norm:.4g}"

    def state(self) -> dict[str, Any]:
        """Return the rule's memory."""
        return vars(self._memory).copy()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._memory = RULES[self.rule](**state)


_MIDDLES: Final[Mapping[str, Callable[[Floats], float]]] = {
    "loss": lambda known: float(known.mean()),
    "grad_norm": lambda known: float(np.median(known)),
    "update_rms": lambda known: float(np.median(known)),
}


def _step_of(frame: Frame) -> Floats:
    """Return loss, norm and RMS of the job's step; NaN: not known."""
    step = np.full(len(_MIDDLES), np.nan)
    for place, (name, middle) in enumerate(_MIDDLES.items()):
        known = frame[name][~np.isnan(frame[name])]
        if len(known):
            step[place] = np.inf if np.isinf(known).any() else middle(known)
    return step


def _pushed(window: Floats, newest: Any) -> Floats:
    """Return the window with its oldest value gone and the newest behind the others."""
    return np.concatenate([window[1:], np.reshape(newest, (1, *window.shape[1:]))])
