"""What the judge of a job is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from irregulars.detectors.verdicts.severity import SeverityLimits

if TYPE_CHECKING:
    from irregulars.detectors.plugins.protocol import Detector


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """How iterations are judged.

    Parameters
    ----------
    delta
        An irregular iteration takes more than this times the mean of the window.
    window
        Iterations in the window.
    silence_s
        When nothing came for so long, by the wall clock, a rank that stands in an operator gives all it has; and a
        job's verdicts are closed, and it is asked whether it hangs.
    severity
        From which cost on a verdict is a ticket or a page.
    rank_detectors
        Make the detectors of one job, whose scores are on one scale (`detectors.plugins.protocol.strange_from`).
        Which operators of an irregular iteration were abnormal is no matter of theirs: that is replayed
        (`detectors.abnormal_operators.replay`).
    fills_columns
        Whether operators and behaviour patterns of suspect iterations are judged one by one and kept as columns for
        the sinks. Verdicts do not need them: whoever wants verdicts alone saves the time.
    """

    delta: float = 1.1
    window: int = 50
    silence_s: float = 600.0
    severity: SeverityLimits = field(default_factory=SeverityLimits)
    rank_detectors: tuple[Callable[[], Detector], ...] = ()
    fills_columns: bool = True
