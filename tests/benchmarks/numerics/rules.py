"""Published rules for loss spikes, each as its source has it, on the series of one run.

Each takes ``loss``, ``norm`` (gradient norm before clipping) and ``rms`` (largest RMS of an update), float64, NaN
where not known and infinite where the value is not finite, and returns in which steps it raises an alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from irregulars.dtypes import Flags, Floats

Rule = Callable[[Floats, Floats, Floats], Flags]


def not_finite(loss: Floats, norm: Floats, rms: Floats) -> Flags:
    """Loss or norm is NaN or infinite."""
    found: Flags = np.isinf(loss) | np.isinf(norm) | np.isinf(rms)
    return found


def megatron(loss: Floats, norm: Floats, rms: Floats) -> Flags:
    """Ten times the largest of the first 100 samples, or not finite (Megatron-LM, rerun_state_machine.py)."""
    return not_finite(loss, norm, rms) | _beyond_first(loss) | _beyond_first(norm)


def _beyond_first(values: Floats, factor: float = 10.0, first: int = 100) -> Flags:
    found: Flags = np.zeros(len(values), dtype=np.bool_)
    largest = np.max(values[:first], initial=0.0, where=np.isfinite(values[:first]))
    found[first:] = values[first:] >= factor * largest
    return found


def llm_foundry(loss: Floats, norm: Floats, rms: Floats) -> Flags:
    """Loss at twice the mean of the window more than four times in a row (llm-foundry, KillLossSpike)."""
    window = max(100, len(loss) // 20)
    found: Flags = np.zeros(len(loss), dtype=np.bool_)
    run = 0
    for step in range(window, len(loss)):
        before = loss[step - window : step]
        run = run + 1 if loss[step] >= 2 * np.mean(before[np.isfinite(before)]) else 0
        found[step] = run > 4
    return found


def olmo(loss: Floats, norm: Floats, rms: Floats) -> Flags:
    """Loss or norm more than 6 standard deviations above the mean of the last 128 (OLMo-core, SkipStepOptimizer)."""
    return _beyond_window(loss) | _beyond_window(norm)


def _beyond_window(values: Floats, window: int = 128, least: int = 64, sigmas: float = 6.0) -> Flags:
    found: Flags = np.zeros(len(values), dtype=np.bool_)
    for step in range(least, len(values)):
        before = values[max(step - window, 0) : step]
        before = before[np.isfinite(before)]
        found[step] = len(before) > 1 and values[step] - before.mean() > sigmas * before.std(ddof=1)
    return found


def zclip(loss: Floats, norm: Floats, rms: Floats) -> Flags:
    """Norm 2.5 standard deviations above its running mean (ZClip, arXiv 2504.02507): there it is clipped."""
    found: Flags = np.zeros(len(norm), dtype=np.bool_)
    warm_up, keep, limit = 25, 0.97, 2.5
    known = norm[:warm_up][np.isfinite(norm[:warm_up])]
    if not len(known):
        return found
    mean, variance = float(known.mean()), float(known.var())
    for step in range(warm_up, len(norm)):
        value, deviation = norm[step], max(variance, 1e-24) ** 0.5
        z = (value - mean) / deviation
        found[step] = z > limit
        if found[step]:
            value = mean + deviation * limit * (limit / z)
        if np.isfinite(value):
            mean, variance = keep * mean + (1 - keep) * value, keep * variance + (1 - keep) * (value - mean) ** 2
    return found


def byte_robust(loss: Floats, norm: Floats, rms: Floats) -> Flags:
    """Five times the step before, or not finite (ByteRobust, SOSP 2025)."""
    found = not_finite(loss, norm, rms)
    for values in (loss, norm):
        found[1:] |= values[1:] >= 5 * values[:-1]
    return found


def tu_berlin(loss: Floats, norm: Floats, rms: Floats, alpha: float = 0.05, warm_up: int = 60) -> Flags:
    """Change of the update over a bound that falls with the root of the norm's rise (TU Berlin, torchrun_main.py).

    An alarm where ΔR > mean(ΔR over the warm-up so far) / (α √Δg), from step 10 on, or where the norm is not finite.
    """
    found: Flags = np.isinf(norm)
    change = np.abs(np.diff(rms, prepend=rms[:1]))
    change[:2] = 0.0
    for step in range(10, len(norm)):
        rise = norm[step] - norm[step - 1]
        if not (np.isfinite(rise) and rise > 0 and norm[step - 1] != 0):
            continue
        usual = change[: min(step, warm_up)]
        usual = usual[np.isfinite(usual)]
        found[step] |= len(usual) > 0 and change[step] > usual.mean() / (alpha * rise**0.5)
    return found


RULES: Final[Mapping[str, Rule]] = {
    "not finite": not_finite,
    "Megatron, 10 × the first 100": megatron,
    "llm-foundry, 2 × the mean, five times": llm_foundry,
    "OLMo, 6 σ of 128": olmo,
    "ZClip, 2.5 σ": zclip,
    "ByteRobust, 5 × the last": byte_robust,
    "TU Berlin, α 0.05": tu_berlin,
}
