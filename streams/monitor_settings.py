"""What the monitors of both hops are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from irregulars.detectors.judging.settings import JudgeSettings

if TYPE_CHECKING:
    from irregulars.detectors.plugins.protocol import Detector


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
    operator_detectors
        Make the detectors of the first hop, one set per rank.
    """

    grace_s: float = 30.0
    lag_s: float = 30.0
    operator_detectors: tuple[Callable[[], Detector], ...] = ()
