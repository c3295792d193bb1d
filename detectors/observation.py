"""One judged iteration as verdicts see it, and whether a cause was seen in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from detectors.attribution_state import attribution_from_state, attribution_to_state
from detectors.causes import MATCH_SHARE, Cause
from detectors.critical_path import Attribution


@dataclass(frozen=True, slots=True)
class Observation:
    """One judged iteration; ``attribution`` is None for a regular one, ``sigmas`` say how far it stands out."""

    iteration: int
    elapsed_ns: float
    reference_ns: float
    time_ns: int
    attribution: Attribution | None
    sigmas: float = 0.0

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

    def state(self) -> list[Any]:
        """Everything that `from_state` needs, as JSON values."""
        attribution = None if self.attribution is None else attribution_to_state(self.attribution)
        return [self.iteration, self.elapsed_ns, self.reference_ns, self.time_ns, attribution, self.sigmas]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> Observation:
        """Restore."""
        iteration, elapsed_ns, reference_ns, time_ns, attribution, sigmas = state
        kept = None if attribution is None else attribution_from_state(attribution)
        return cls(iteration, elapsed_ns, reference_ns, time_ns, kept, sigmas)


def explained_ns(cause: Cause, attribution: Attribution) -> float:
    """Return how much of what an iteration took too long a cause explains, ns."""
    return sum(ns for lane, ns in attribution.path_excess_ns.items() if lane in cause.lanes and ns > 0)
