"""Settings of the judgement, each with its one default: those that people set take theirs from here.

`infra.settings` reads and checks what people set; `infra.wiring` hands it over. A command
that needs its settings alone imports neither numpy nor a client for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SeverityLimits:
    """From which cost on a verdict is a ticket, and from which on a page; each is a setting (`alert_...`).

    Costs are those an hour from now: the loss so far, and that of an hour of the same. The two prices behind them:
    a GPU-hour costs some 2 dollars to rent, and a colleague's hour some 100. So a quarter of an hour on a ticket is
    worth 12 GPU-hours, and a night's rest, with the morning after, about 100.
    """

    # Irregular iterations, below which a verdict is a note and nothing is projected. 3: one or two spikes are past
    # when they are read, and as many as the judgement needs to see a late rank recur (`JOB.repeated`).
    least_seen: int = 3
    # Seconds of the job's time, below which a verdict is a note. 0.1: what a scheduler, a garbage collector or one
    # retransmission takes; such hiccups of a job of short iterations are no measure of an hour.
    least_lost_s: float = 0.1
    # GPU-hours, from which on it is a ticket. 1: it is read within half a day, and 12 hours of it cost what reading
    # costs. 1,000 GPUs lose that at 0.1 % of their time, 64 at 1.6 %.
    ticket_gpu_hours: float = 1.0
    # Seconds of the job's time that are as bad, whatever its size. 360, a tenth of the hour: somebody waits for a job
    # of 4 GPUs as well.
    ticket_job_s: float = 360.0
    # GPU-hours, from which on it may be a page. 12: the eight hours until morning then cost as much as to wake a
    # colleague. 240 GPUs lose that at 5 % of their time, 32 at 38 %.
    page_gpu_hours: float = 12.0
    # Share of the job's time that is lost at least, 0 to 1. 0.05: what is less is less sure, and training goes on.
    page_share: float = 0.05
    # Seconds of the job's time for which it must have gone on. 300: what ends sooner is over before anybody has
    # logged in, and five minutes of a night's loss are a hundredth of it.
    page_after_s: float = 300.0


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """How iterations are judged."""

    delta: float = 1.1  # an irregular iteration takes more than this times the mean of the window
    window: int = 50  # iterations in the window
    # Seconds without a message after which a rank that stands in an operator hands on all it has, and after which a
    # job's verdicts are closed and it is asked whether it hangs
    silence_s: float = 600.0
    # Seconds that a monitor waits for a source or a rank that others have left behind, as far as was read and in
    # event time; also how far a source of a rank may lag behind the rank's others before it counts as waited for
    grace_s: float = 30.0
    # The costs from which on a verdict is a ticket or a page
    severity: SeverityLimits = field(default_factory=SeverityLimits)
    # Make the detectors of one job, whose scores are on one scale (`detectors.plugins.protocol.strange_from`). They
    # do not say which operators of an irregular iteration were abnormal: a replay does
    # (`detectors.abnormal_operators.replay`).
    rank_detectors: tuple[Callable[[], Any], ...] = ()
    # Make the detectors of the first hop, one set per rank. The judge gets their scores as columns of the evidence,
    # and asks them for their names and whether they have a say.
    operator_detectors: tuple[Callable[[], Any], ...] = ()
    # Reports of devices that open a verdict by themselves (`detectors.verdicts.reported_verdicts`): a kind, or a kind
    # with a code or a class behind a colon
    event_verdicts: tuple[str, ...] = ()
    # Whether operators and behaviour patterns of suspect iterations are judged one by one and kept as columns for the
    # sinks. Verdicts do not need them, so a caller that wants verdicts alone saves the time.
    fills_columns: bool = True
    # Called with each judged iteration, before the window learns it: `infra.runs.analysis` keeps its facts. It must
    # change nothing.
    watch: Callable[[Any, Any, Any], None] | None = None
