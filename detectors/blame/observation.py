"""One judged iteration as verdicts see it, and whether a cause was seen in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from irregulars.detectors.blame.causes import MATCH_SHARE, Cause
from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.job.lanes import EVERYBODY
from irregulars.detectors.path.attribution_state import attribution_from_state, attribution_to_state
from irregulars.detectors.path.critical_path import Attribution

_PHASE_SHARE: Final = 0.07  # of the usual iteration: slow phases of healthy hosts cost 3 to 6 %


@dataclass(frozen=True, slots=True)
class Observation:
    """One judged iteration.

    Parameters
    ----------
    elapsed_ns, reference_ns, time_ns
        How long it took, what is usual, and when it began.
    attribution
        Where its time went; None for a regular one, and for one that was not looked into.
    sigmas
        How far its time stands out of the noise.
    latest
        The rank that stands out most by its own work.
    is_long
        Whether its time alone is worth a look; else it is suspect with those before it (`is_shifted`), or for its
        latest rank.
    is_unread
        Whether it is suspect and was not looked into: nobody knows what would have been seen.
    is_carried
        Whether its attribution is that of another one, which it looks like (`detectors.path.same_incident`).
    recovers_ratio
        Of a long one in no verdict: which share of what its clear cause cost would come back without it, by replay.
    """

    iteration: int
    elapsed_ns: float
    reference_ns: float
    time_ns: int
    attribution: Attribution | None
    sigmas: float = 0.0
    latest: Latest | None = None
    is_long: bool = True
    is_unread: bool = False
    is_carried: bool = False
    is_shifted: bool = False
    recovers_ratio: float | None = None

    @property
    def excess_ns(self) -> float:
        """How much longer than usual it took, ns."""
        return max(self.elapsed_ns - self.reference_ns, 0.0)

    def shows(self, cause: Cause) -> bool:
        """Whether a cause was seen in it."""
        if self.attribution is None:
            return False
        total_ns = sum(ns for ns in self.attribution.path_excess_ns.values() if ns > 0)
        return explained_ns(cause, self.attribution) >= MATCH_SHARE * total_ns > 0

    def is_mainly(self, cause: Cause) -> bool:
        """Whether a cause explains half of what the iteration took longer, or more than a slow phase of a host costs.

        Hosts have slow phases of some per cent, which make no iteration irregular by themselves. In an iteration that
        a slow communicator or longer sequences make irregular they would be accused as well.
        """
        if self.attribution is None:
            return False
        total_ns = sum(ns for ns in self.attribution.path_excess_ns.values() if ns > 0)
        return explained_ns(cause, self.attribution) >= min(total_ns / 2, _PHASE_SHARE * self.reference_ns)

    @property
    def has_late_rank(self) -> bool:
        """Whether a rank stands out in it: uneven data make another one late each time, whatever that costs."""
        return self.latest is not None and self.latest.stands_out

    def is_late(self, cause: Cause) -> bool:
        """Whether a cause is the work of the rank that stands out most."""
        if self.latest is None or cause.kind != "slow_rank":
            return False
        return self.latest.stands_out and self.latest.rank in cause.suspects[0][0].ranks

    def is_late_once(self, cause: Cause) -> bool:
        """Whether that rank stands out in this iteration alone."""
        return self.is_late(cause) and self.latest is not None and not self.latest.lasts

    def may_show(self, cause: Cause) -> bool:
        """Whether what made it suspect may be the cause: an iteration read for a late rank says nothing of others."""
        return self.is_long or self.is_shifted or self.is_late(cause)

    def is_beyond_noise(self, cause: Cause) -> bool:
        """Whether the transfers that a cause slows took surely longer than in any iteration that was as always.

        The longest of a few iterations is known to about their noise. Of its lanes the one that cost most counts: a
        device carries others too, in which what it does to a few bytes is less than their noise.
        """
        if self.attribution is None or cause.kind == "slow_rank":
            return self.attribution is not None
        cost_ns, known = self.attribution.path_excess_ns, self.attribution.lanes
        worst = max(sorted(cause.lanes & known.keys()), key=lambda lane: cost_ns.get(lane, 0.0), default=None)
        return worst is not None and known[worst].excess_ns > known[worst].most_ns + known[worst].noise_ns

    def is_slow_group(self, cause: Cause) -> bool:
        """Whether a cause is a slow communicator, nobody's fault, slower than in any iteration that was as always."""
        return cause.kind == "slow_communicator" and not cause.suspects and self.is_beyond_noise(cause)

    def state(self) -> list[Any]:
        """Everything that `from_state` needs, as JSON values."""
        attribution = None if self.attribution is None else attribution_to_state(self.attribution)
        latest = None if self.latest is None else list(self.latest)
        return [
            self.iteration, self.elapsed_ns, self.reference_ns, self.time_ns, attribution, self.sigmas,
            latest, self.is_long, self.is_unread, self.is_carried, self.is_shifted,
            self.recovers_ratio,
        ]  # fmt: skip

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Observation:
        """Restore."""
        iteration, elapsed_ns, reference_ns, time_ns, attribution, sigmas, latest, *flags = state
        kept = None if attribution is None else attribution_from_state(attribution)
        stands_out = None if latest is None else Latest(*latest)
        return cls(iteration, elapsed_ns, reference_ns, time_ns, kept, sigmas, stands_out, *flags)


def uneven_ns(attribution: Attribution) -> float:
    """Return what an iteration's path lost to ranks' own work, whoever it was, less what others were quicker; ns."""
    own = (ns for lane, ns in attribution.path_excess_ns.items() if lane.kind == "work" and lane != EVERYBODY)
    return max(sum(own), 0.0)


def explained_ns(cause: Cause, attribution: Attribution) -> float:
    """Return how much of what an iteration took too long a cause explains, ns."""
    if cause.kind == "imbalance":
        return uneven_ns(attribution)
    return sum(ns for lane, ns in attribution.path_excess_ns.items() if lane in cause.lanes and ns > 0)
