"""The settings of the judge of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from irregulars.detectors.verdicts.severity import SeverityLimits

if TYPE_CHECKING:
    from irregulars.detectors.blame.observation import Observation
    from irregulars.detectors.irregular.window import IterationWindow
    from irregulars.detectors.job.topology import Topology
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
        Seconds without a message after which a rank that stands in an operator hands on all it has,
        and after which a job's verdicts are closed and it is asked whether it hangs.
    severity
        The costs from which on a verdict is a ticket or a page.
    rank_detectors
        Make the detectors of one job, whose scores are on one scale (`detectors.plugins.protocol.strange_from`).
        They do not say which operators of an irregular iteration were abnormal: a replay does
        (`detectors.abnormal_operators.replay`).
    operator_detectors
        Make the detectors of the first hop, one set per rank. The judge gets their scores as columns of the evidence,
        and asks them for their names and whether they have a say.
    fills_columns
        Whether operators and behaviour patterns of suspect iterations are judged one by one and kept as columns for
        the sinks. Verdicts do not need them, so a caller that wants verdicts alone saves the time.
    watch
        Called with each judged iteration, before the window learns it: `infra.runs.explained` keeps its facts.
        It must change nothing.
    """

    delta: float = 1.1
    window: int = 50
    silence_s: float = 600.0
    severity: SeverityLimits = field(default_factory=SeverityLimits)
    rank_detectors: tuple[Callable[[], Detector], ...] = ()
    operator_detectors: tuple[Callable[[], Detector], ...] = ()
    fills_columns: bool = True
    watch: Callable[[Observation, IterationWindow, Topology], None] | None = None
