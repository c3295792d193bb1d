"""What a verdict costs, in GPU-hours: so far, and an hour. The view ``incidents`` of the database says the same."""

from __future__ import annotations

import math

from irregulars.messages.judgements import Verdict

_HOUR_S = 3600.0


def gpu_hours_lost(verdict: Verdict) -> float | None:
    """GPU hours that waited in vain so far; None where the number of GPUs is not known.

    >>> from dataclasses import replace
    >>> verdict = Verdict("v", 1, "open", "j", "imbalance", (0, 5), 1.3, 90.0, None, (), "", world_size=1000)
    >>> gpu_hours_lost(verdict), gpu_hours_lost(replace(verdict, world_size=0))
    (25.0, None)
    """
    if not verdict.world_size or not math.isfinite(verdict.lost_s):
        return None
    return round(verdict.lost_s * verdict.world_size / _HOUR_S, 6)


def share_lost(verdict: Verdict) -> float | None:
    """Return the share of the job's time that is lost while the cause is there, 0 to 1; None where nobody knows.

    It is the time that was lost of the time that passed from the first to the newest iteration in which the cause
    was seen. A verdict of an older worker does not say how much passed: then as if all of its iterations had taken as
    long as the irregular ones. While a job hangs, all of its time is lost.

    >>> from dataclasses import replace
    >>> verdict = Verdict("v", 1, "open", "j", "slow_nic", (0, 9), 2.0, 3.0, None, (), "", lasted_s=10.0)
    >>> share_lost(verdict), share_lost(replace(verdict, lasted_s=None)), share_lost(replace(verdict, kind="hang"))
    (0.3, 0.5, 1.0)
    """
    if verdict.kind == "hang":
        return 1.0
    if verdict.lasted_s and math.isfinite(verdict.lost_s):
        return min(verdict.lost_s / verdict.lasted_s, 1.0)
    return 1 - 1 / verdict.delta if math.isfinite(verdict.delta) and verdict.delta >= 1 else None


def gpu_hours_per_hour(verdict: Verdict) -> float | None:
    """Return the GPU-hours that are lost in an hour while the cause is there: GPUs that stand still, as it were."""
    share = share_lost(verdict)
    return None if share is None or not verdict.world_size else round(share * verdict.world_size, 6)
