"""Verdicts that count how often they were found: on checkpoints, of detectors, and on numbers.

Each of these kinds has rules of its own by which a verdict opens and goes on; the rest of its life is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from irregulars.detectors.job.topology import Topology
from irregulars.messages.judgements import Verdict

K = TypeVar("K")

MOST_KEPT: Final = 1000
"""Beginnings whose verdicts are counted, the newest: each opens within some tens of iterations of its beginning."""


def next_ordinal(ordinals: dict[K, int], beginning: K) -> int:
    """Return how many verdicts with this beginning there were, and count one more.

    >>> ordinals = {}
    >>> next_ordinal(ordinals, 7), next_ordinal(ordinals, 7), next_ordinal(ordinals, 8)
    (0, 1, 0)
    """
    ordinal = ordinals.pop(beginning, 0)
    ordinals[beginning] = ordinal + 1  # the newest stands last
    if len(ordinals) > MOST_KEPT:
        del ordinals[next(iter(ordinals))]
    return ordinal


def merged_text(evidence: str, teller: str) -> str:
    """Return the evidence of a verdict that closes as ``merged``, with the id of the one that tells of it."""
    return f"{evidence}; verdict {teller} tells of it"


@dataclass(slots=True, eq=False)
class CountedVerdict:
    """One open verdict."""

    verdict_id: str
    # First and newest iteration in which it was found, and the event time of the newest
    first: int
    last: int
    time_ns: int
    seen: int = 0  # how often it was found
    quiet: int = 0  # how often it was looked for since then, and not found
    # The newest revision: its number and severity, and its `seen`
    revision: int = 0
    severity: str = "note"
    said_seen: int = 0


V = TypeVar("V", bound=CountedVerdict)


class CountedVerdicts(ABC, Generic[V]):
    """The open verdicts of one kind, of one attempt of a job. `job`, `attempt`: make ids, with more."""

    def __init__(self, job: str, attempt: int, opened: Sequence[V]) -> None:
        self.job = job
        self.attempt = attempt
        self._open = list(opened)

    def close(self, reason: str, topology: Topology) -> list[Verdict]:
        """Close the open verdicts, because the job ended, restarted or fell silent."""
        return self._close(self._open, reason, topology)

    def _close(self, over: Sequence[V], reason: str, topology: Topology) -> list[Verdict]:
        self._open = [one for one in self._open if one not in over]
        # One that is still to be published has no end.
        return [self._revise(one, "closed", topology, reason) for one in over if one.revision]

    def _follow_up(self, topology: Topology) -> list[Verdict]:
        """Publish the verdicts that are worth a revision, and close those that were not found for long."""
        told = [(one, event) for one in self._open if (event := self._event_of(one, topology))]
        revisions = [self._revise(one, event, topology) for one, event in told]
        return revisions + self._close([one for one in self._open if self._is_over(one)], "recovered", topology)

    @abstractmethod
    def _event_of(self, one: V, topology: Topology) -> str | None:
        """Return the event that is worth a revision, if there is one."""

    @abstractmethod
    def _is_over(self, one: V) -> bool:
        """Whether it was not found for long enough."""

    @abstractmethod
    def _revise(self, one: V, event: str, topology: Topology, close_reason: str | None = None) -> Verdict:
        """Make the next revision, by `_revision`; an event as `messages.judgements.Verdict` lists them."""

    def _revision(self, one: V, event: str, topology: Topology, close_reason: str | None, **facts: Any) -> Verdict:
        """Return the next revision: the fields that all kinds fill alike, and these."""
        one.revision, one.said_seen = one.revision + 1, one.seen
        return Verdict(
            verdict_id=one.verdict_id, revision=one.revision, state="closed" if event == "closed" else "open",
            job=self.job, iterations=(one.first, one.last + 1), communicator=None, attempt=self.attempt,
            world_size=topology.world_size, close_reason=close_reason, event=event, severity=one.severity, **facts,
        )  # fmt: skip
