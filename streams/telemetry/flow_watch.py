"""Whether the messages that a worker reads lead to judgements, or all are refused, or no iteration closes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

REFUSED_S: Final = 60.0
REFUSED_LEAST: Final = 10
"""Seconds without a message taken, and messages refused meanwhile, from which it is no single bad message."""

CLOSING_S: Final = 300.0
"""Above ``grace_s``, without a closed iteration while operators come. A checkpoint, or the first iterations, which
compile, may take some minutes."""


class Flow(NamedTuple):
    """Counts since the worker began: messages of operators taken, messages refused, messages of evidence sent."""

    taken: int
    refused: int
    evidence: int


@dataclass(slots=True)
class _Since:
    """When one of the counts last moved, and all counts then."""

    now_s: float
    flow: Flow


class FlowWatch:
    """Follows the counts of one worker.

    Parameters
    ----------
    grace_s
        How long the worker waits for a source or a rank.

    Examples
    --------
    >>> watch = FlowWatch()
    >>> [len(watch.look(now_s, Flow(0, int(now_s), 0))) for now_s in (0.0, 30.0, 61.0, 90.0)]
    [0, 0, 1, 0]
    """

    def __init__(self, grace_s: float = 30.0) -> None:
        self._grace_s: Final = grace_s
        self._taken: _Since | None = None
        self._closed: _Since | None = None
        self._said: set[str] = set()

    def look(self, now_s: float, flow: Flow) -> list[tuple[str, str]]:
        """Return new reasons for which no alert can come, each with a command to run."""
        if self._taken is None or flow.taken != self._taken.flow.taken:
            self._taken = _Since(now_s, flow)
        # As long as nothing is taken no iteration can close: that time does not count.
        if (
            self._closed is None
            or flow.evidence != self._closed.flow.evidence
            or now_s - self._taken.now_s > REFUSED_S
        ):
            self._closed = _Since(now_s, flow)
        found = {}
        if now_s - self._taken.now_s >= REFUSED_S and flow.refused - self._taken.flow.refused >= REFUSED_LEAST:
            found["messages arrive, and all of them are refused"] = "irregulars deadletter list"
        is_unclosed = now_s - self._closed.now_s >= CLOSING_S + self._grace_s
        if is_unclosed and flow.taken != self._closed.flow.taken:
            found["operators arrive, and no iteration closes"] = "irregulars doctor --only jobs"
        new = [(reason, to_do) for reason, to_do in found.items() if reason not in self._said]
        self._said = set(found)
        return new
