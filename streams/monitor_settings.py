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
        How long a monitor waits, by the wall clock, for a source or a rank that others have left behind.
    operator_detectors
        Make the detectors of the first hop, one set per rank.
    """

    grace_s: float = 30.0
    operator_detectors: tuple[Callable[[], Detector], ...] = ()
