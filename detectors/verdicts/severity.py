"""How urgent a verdict is, by the cost of its cause: so far, and an hour from now."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from irregulars.messages.judgements import SEVERITIES
from irregulars.messages.kinds import STANDSTILLS
from irregulars.settings import SeverityLimits

if TYPE_CHECKING:
    from irregulars.detectors.verdicts.open_verdict import OpenVerdict

HOUR_S: Final = 3600.0
NOISE_TIMES: Final = 2.0
"""A verdict is a note below as many times the noise of the sum of the iterations that it lasted or, where it accuses
nobody, of each of them, since noise makes a third of them longer by one time anyway."""

PLANS: Final = ("slow_stage", "imbalance")
"""Kinds that ask for another plan, at the next restart: nobody can repair them at night."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Cost of a verdict's cause."""

    kind: str  # of the verdict
    has_suspect: bool  # whether it accuses anybody
    seen: int  # irregular iterations in which the cause was seen
    lost_s: float  # seconds of the job's time lost so far
    lasted_s: float  # seconds of the job's time since the cause was first seen, lost ones included
    world_size: int  # GPUs that waited; 0: not known
    is_over: bool = False  # whether no more will be lost
    # What the job's noise costs, as a share; 0: not known; infinite of nobody's fault from the start, of which nobody
    # knows how much is the job's own nature
    noise_share: float = 0.0

    @property
    def share(self) -> float:
        """Share of the job's time that is lost while the cause is there, 0 to 1."""
        return self.lost_s / self.lasted_s if self.lasted_s > 0 else 0.0

    @property
    def in_an_hour_s(self) -> float:
        """Seconds of the job's time that will be lost an hour from now."""
        return self.lost_s + (0.0 if self.is_over else self.share * HOUR_S)

    @property
    def in_an_hour_gpu_hours(self) -> float:
        """The same of all GPUs, in GPU-hours; NaN where their number is not known."""
        return self.in_an_hour_s * self.world_size / HOUR_S if self.world_size else math.nan


def severity_of(loss: Loss, limits: SeverityLimits) -> str:
    """Return how urgent a verdict is by its cost.

    A hang always is a page: nothing moves until somebody acts.

    >>> nic = Loss("slow_nic", True, seen=4, lost_s=0.5, lasted_s=1.5, world_size=64)
    >>> severity_of(nic, SeverityLimits()), f"{nic.in_an_hour_gpu_hours:.1f} GPU-hours"
    ('ticket', '21.3 GPU-hours')
    """
    if loss.kind in STANDSTILLS:
        return "page"
    if loss.seen < limits.least_seen or loss.lost_s < limits.least_lost_s:
        return "note"
    # The job loses about as much to its own noise.
    if loss.share < NOISE_TIMES * loss.noise_share:
        return "note"
    # A page: somebody could stop it tonight, and it goes on and costs enough to be sure of it.
    can_be_stopped = loss.has_suspect and loss.kind not in PLANS
    is_sure = can_be_stopped and loss.share >= limits.page_share and loss.lasted_s >= limits.page_after_s
    if is_sure and loss.in_an_hour_gpu_hours >= limits.page_gpu_hours:
        return "page"
    is_ticket = loss.in_an_hour_gpu_hours >= limits.ticket_gpu_hours or loss.in_an_hour_s >= limits.ticket_job_s
    return "ticket" if is_ticket else "note"


def worse(one: str, other: str) -> str:
    """Return the more urgent of two severities.

    >>> worse("note", "ticket")
    'ticket'
    """
    return max(one, other, key=SEVERITIES.index)


def loss_of(verdict: OpenVerdict, world_size: int, *, is_over: bool = False) -> Loss:
    """Return the cost of a verdict's cause.

    The time it has lasted is counted in judged iterations of usual length: iterations that were not logged lost
    nothing that anybody knows of.
    """
    usual_ns = median(one.reference_ns for one in verdict.kept)
    judged, has_suspect = max(verdict.judged, verdict.seen), bool(verdict.cause.suspects)
    lasted_ns = judged * usual_ns + verdict.lost_ns
    if has_suspect:
        noise_ns = verdict.noise_ns / math.sqrt(judged)
    elif verdict.standing is not None:
        noise_ns = math.inf
    else:
        noise_ns = median([one.excess_ns / one.sigmas for one in verdict.kept if one.sigmas > 0] or [0.0])
    return Loss(
        kind=verdict.cause.kind,
        has_suspect=has_suspect,
        seen=verdict.seen,
        lost_s=verdict.lost_ns / 1e9,
        lasted_s=lasted_ns / 1e9,
        world_size=world_size,
        is_over=is_over,
        noise_share=noise_ns * judged / max(lasted_ns, 1.0),  # as the loss, which may be many times the usual
    )


def severity_now(verdict: OpenVerdict, world_size: int, limits: SeverityLimits, *, is_over: bool = False) -> str:
    """Return how urgent a verdict is, never less than was published: alerts that sink and rise wear people out."""
    return worse(verdict.severity, severity_of(loss_of(verdict, world_size, is_over=is_over), limits))
