"""What both monitors are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from detectors.severity import SeverityLimits

if TYPE_CHECKING:
    from detectors.protocol import Detector


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """How iterations are closed and judged.

    Parameters
    ----------
    delta
        An irregular iteration takes more than this times the mean of the window.
    window
        Iterations in the window.
    grace_s
        How long a monitor waits, by the wall clock, for a source or a rank that others have left behind.
    silence_s
        When nothing came for so long, by the wall clock, a rank that stands in an operator gives all it has; and a
        job's verdicts are closed, and it is asked whether it hangs.
    severity
        From which cost on a verdict is a ticket or a page.
    operator_detectors, rank_detectors
        Make the detectors of the first hop (one set per rank) and of the second (one set per job), whose scores are
        on one scale (`detectors.protocol.strange_from`). Which operators of an irregular iteration were abnormal is
        no matter of theirs: that is replayed in the second hop (`detectors.replay`).
    fills_columns
        Whether operators and behaviour patterns of suspect iterations are judged one by one and kept as columns for
        the sinks. Verdicts do not need them: whoever wants verdicts alone saves the time.
    """

    delta: float = 1.1
    window: int = 50
    grace_s: float = 30.0
    silence_s: float = 600.0
    severity: SeverityLimits = field(default_factory=SeverityLimits)
    operator_detectors: tuple[Callable[[], Detector], ...] = ()
    rank_detectors: tuple[Callable[[], Detector], ...] = ()
    fills_columns: bool = True
