"""What the monitors of both hops are told."""

from __future__ import annotations

from dataclasses import dataclass

from irregulars.detectors.judging.settings import JudgeSettings


@dataclass(frozen=True, slots=True)
class MonitorSettings(JudgeSettings):
    """How iterations are closed and judged; see also `JudgeSettings`.

    Parameters
    ----------
    grace_s
        How long a monitor waits for a source or a rank that others have left behind.
    lag_s
        How far a source of a rank may lag behind the rank's other sources, in event time, before a monitor counts as
        waiting for it. Users set both by one setting, ``grace_s``.
    """

    grace_s: float = 30.0
    lag_s: float = 30.0
