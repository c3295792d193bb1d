"""One judged iteration as verdicts see it, and whether a cause was seen in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.job.lanes import EVERYBODY
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.path.critical_path import Attribution


class ExcessPause(NamedTuple):
    """By how much a rank paused longer in an iteration than it usually does, and than its peers."""

    rank: int
    cause: int  # index into `messages.records.PAUSES`
    excess_ns: float


@dataclass(frozen=True, slots=True)
class Observation:
    """One judged iteration."""

    iteration: int
    # Its time, the usual time, and when it began
    elapsed_ns: float
    reference_ns: float
    time_ns: int
    # Where its time went; None for a regular one, and for one that was not looked into
    attribution: Attribution | None
    sigmas: float = 0.0  # how far its time stands out of the noise
    latest: Latest | None = None  # the rank that stands out most by its own work
    # Whether its time alone is worth a look; else it is suspect with those before it (`is_shifted`), or for its
    # latest rank
    is_long: bool = True
    # Whether it is suspect and was not read, so that its causes are not known
    is_unread: bool = False
    # Whether its attribution is that of another one, which it looks like (`detectors.judging.investigation`)
    is_carried: bool = False
    is_shifted: bool = False
    # Of a long one in no verdict: the share of its clear cause's cost that would come back without it, by replay
    recovers_ratio: float | None = None
    # The longest (`own_time.excess_pauses`); None: no rank logs any
    pauses: tuple[ExcessPause, ...] | None = None
    # Standard deviation of the iterations before it, by steps up to its own excess (`detectors.irregular.window`)
    spread_ns: float = 0.0
    # Its place among the judged iterations of training, by the tracker; None in a state of a worker without it
    place: int | None = None

    @property
    def ordinal(self) -> int:
        """Its place among the judged iterations: their numbers have gaps where only every tenth is profiled."""
        return self.iteration if self.place is None else self.place

    @property
    def excess_ns(self) -> float:
        """How much longer than usual it took, ns."""
        return max(self.elapsed_ns - self.reference_ns, 0.0)

    def shows(self, cause: Cause) -> bool:
        """Whether a cause was seen in it."""
        if self.attribution is None:
            return False
        total_ns = self.attribution.held_against_ns(is_work=cause.is_of_work)
        return explained_ns(cause, self.attribution) >= JOB.part * total_ns > 0

    def is_mainly(self, cause: Cause) -> bool:
        """Whether a cause explains half of the excess, or more of it than a slow phase of a host costs.

        Hosts have slow phases of some per cent, which make no iteration irregular by themselves. In an iteration that
        is irregular for a slow communicator or longer sequences they would be accused as well.
        """
        if self.attribution is None:
            return False
        half_ns = self.attribution.held_against_ns(is_work=cause.is_of_work) / 2
        return explained_ns(cause, self.attribution) >= min(half_ns, JOB.alike * self.reference_ns)

    @property
    def has_late_rank(self) -> bool:
        """Whether a rank stands out in it: uneven data make another one late each time, whatever that costs."""
        return self.latest is not None and self.latest.stands_out

    def is_late(self, cause: Cause) -> bool:
        """Whether a cause is the work of the rank that stands out most."""
        if self.latest is None or cause.kind != "slow_rank":
            return False
        return self.latest.stands_out and self.latest.rank in cause.suspects[0][0].ranks

    def may_show(self, cause: Cause) -> bool:
        """Whether a cause may have made it suspect: an iteration that was read for a late rank tells of no other."""
        return self.is_long or self.is_shifted or self.is_late(cause)

    def is_beyond_noise(self, cause: Cause) -> bool:
        """Whether the transfers that a cause slows took surely longer than in any iteration that was as always.

        The longest of a few iterations is known to about their noise. Of its lanes the one that cost most counts: a
        device carries others too, whose few bytes it delays by less than their noise.
        """
        if self.attribution is None or cause.kind == "slow_rank":
            return self.attribution is not None
        cost_ns, known = self.attribution.path_excess_ns, self.attribution.lanes
        worst = max(sorted(cause.lanes & known.keys()), key=lambda lane: cost_ns.get(lane, 0.0), default=None)
        return worst is not None and known[worst].is_beyond_noise

    def is_slow_group(self, cause: Cause) -> bool:
        """Whether a cause is a slow communicator, nobody's fault, slower than in any iteration that was as always."""
        return cause.kind == "slow_communicator" and not cause.suspects and self.is_beyond_noise(cause)


def uneven_ns(attribution: Attribution) -> float:
    """Return the time that an iteration's path lost to ranks' work, less that by which others were quicker, ns."""
    own = (ns for lane, ns in attribution.path_excess_ns.items() if lane.kind == "work" and lane != EVERYBODY)
    return max(sum(own), 0.0)


def explained_ns(cause: Cause, attribution: Attribution) -> float:
    """Return how much of an iteration's excess a cause explains, ns."""
    if cause.kind == "imbalance":
        return uneven_ns(attribution)
    return sum(ns for lane, ns in attribution.path_excess_ns.items() if lane in cause.lanes and ns > 0)
