"""Why an iteration is suspect: the one place that decides it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Flag, auto
from typing import Final

from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.irregular.window import IterationWindow
from irregulars.detectors.job.thresholds import JOB


class Reason(Flag):
    """A reason to look into an iteration; several may hold at once."""

    NONE = 0
    IRREGULAR = auto()
    UNHEALTHY = auto()
    LONG = auto()
    SHIFTED = auto()
    LATE_RANK = auto()


LONG_BY_ITSELF: Final = Reason.IRREGULAR | Reason.UNHEALTHY | Reason.LONG  # the iteration's own time is reason enough


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why an iteration is suspect, and how urgently its operators are wanted."""

    reasons: Reason = Reason.NONE  # `Reason.NONE` for an iteration that is not suspect
    # Whether its operators are read whatever was read before, unless an open verdict explains it
    is_worth_reading: bool = False

    def __bool__(self) -> bool:
        """Whether the iteration is suspect."""
        return bool(self.reasons)

    @property
    def is_long(self) -> bool:
        """Whether its own time makes it suspect, rather than its neighbours' or a late rank's."""
        return bool(self.reasons & LONG_BY_ITSELF)

    @property
    def is_shifted(self) -> bool:
        """Whether it belongs to several that took longer together."""
        return Reason.SHIFTED in self.reasons


def suspicion_of(
    elapsed_ns: float,
    latest: Latest | None,
    window: IterationWindow,
    healthy_limit_ns: float,
    *,
    has_open: bool,
    is_quiet: bool,
) -> Suspicion:
    """Decide whether an iteration is suspect, and why.

    ============  ==================================================  ================  =====================
    reason        the iteration takes longer than                     long by itself    is worth reading
    ============  ==================================================  ================  =====================
    IRREGULAR     δ and the noise of the window allow                 yes
    UNHEALTHY     they allowed before the open verdict's fault        yes               yes
    LONG          the level by 3/4 of what δ allows, and its noise    yes
    SHIFTED       the level from before several grew longer                             if no verdict is open
    LATE_RANK     the level by a little, while one rank stands out
    ============  ==================================================  ================  =====================

    A fault that lasts fills the window, so that its iterations are no longer irregular; they stay unhealthy. Without
    an open verdict the first two are the same.

    `elapsed_ns`: time of the iteration, ns. `latest`: the rank that stands out most in it, if any is known. `window`:
    the window before it. `healthy_limit_ns`: the window's limit, or that from before a verdict opened, ns.
    `has_open`: whether a verdict is open that irregular iterations opened. `is_quiet`: whether verdicts are open
    whose causes are absent from this iteration. Their shift then pauses, and does not count against it.

    Notes
    -----
    Levels that are not known yet are NaN, which nothing exceeds.
    """
    is_shifted = elapsed_ns > window.shifted_ns
    is_unhealthy = elapsed_ns > healthy_limit_ns
    holds = {
        Reason.IRREGULAR: elapsed_ns > window.limit_ns,
        Reason.UNHEALTHY: is_unhealthy,
        Reason.LONG: not math.isnan(healthy_limit_ns) and elapsed_ns > window.suspect_ns,
        Reason.SHIFTED: is_shifted and not is_quiet,
        Reason.LATE_RANK: _is_lateness_felt(elapsed_ns, latest, window, has_open=has_open),
    }
    reasons = Reason.NONE
    for reason, is_so in holds.items():
        reasons |= reason if is_so else Reason.NONE
    return Suspicion(reasons, is_unhealthy or (is_shifted and not has_open))


def _is_lateness_felt(elapsed_ns: float, latest: Latest | None, window: IterationWindow, *, has_open: bool) -> bool:
    """Whether a rank stands out, is late by more than `window.worth_ns`, and the job takes longer at the same time.

    For a rank that is late again and again the newest iterations must take longer, rather than this one; while a
    verdict is open they need not, as its fault may have raised the level.
    """
    # `not >`, and no `<=`: a threshold that is NaN, not known yet, is exceeded by nothing.
    if latest is None or not latest.stands_out or not latest.over_ns > window.worth_ns:
        return False
    if latest.lasts and has_open:
        return True
    longer_ns = window.rise_ns if latest.lasts else elapsed_ns - window.level_ns
    return longer_ns > JOB.most * window.worth_ns
