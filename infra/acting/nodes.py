"""What an orchestrator must be able to do for us: the protocol that Kubernetes and Slurm fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from irregulars.sinks.notices.node_plan import Proposal


@dataclass(frozen=True, slots=True)
class Marked:
    """What stands on the nodes.

    Parameters
    ----------
    cordoned
        Nodes that we cordoned and that still are: host to the id of the action.
    undone
        Ids of actions that somebody undid by hand, as far as the nodes tell.
    """

    cordoned: Mapping[str, str]
    undone: frozenset[str] = field(default_factory=frozenset)


class Nodes(Protocol):
    """The nodes of one orchestrator.

    All its methods raise `ServiceUnavailable` where that does not answer, and `ServiceRefused` where it refuses us.
    """

    def marked(self) -> Marked:
        """Return what we did to nodes before, from the nodes themselves."""

    def obstacle(self, host: str) -> str | None:
        """Return why a node can't be cordoned by us: there is none of that name, or somebody else cordoned it."""

    def cordon(self, one: Proposal) -> str | None:
        """Let no new work onto a node, and mark it as ours.

        Returns
        -------
        str
            Why nothing was done: no such node, or somebody else cordoned it. None: it is done.
        """

    def release(self, host: str, why: str) -> str | None:
        """Give a node back, if it is still cordoned and the mark is still ours; returns as `cordon` does."""

    def accuse(self, accused: Mapping[str, Proposal]) -> None:
        """Let just these nodes show that they are suspected; does nothing where nodes can't show it."""
