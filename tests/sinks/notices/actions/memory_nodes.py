"""An orchestrator in memory, which fills the protocol `Nodes` as the real ones do; and messages without Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import TIMESTAMP_CREATE_TIME

from irregulars.errors import ServiceRefused, ServiceUnavailable
from irregulars.sinks.notices.actions.actor import Marked, Proposal


@dataclass
class MemoryNodes:
    """`owners` says by which action of ours, or else by whom, a node is cordoned; None: it is not."""

    owners: dict[str, str | None]
    accused: list[str] = field(default_factory=list)
    undone: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    away: int = 0  # how many calls find nobody at home
    stuck: set[str] = field(default_factory=set)  # nodes that can't be changed
    is_answer_lost: bool = False  # they are, and it says otherwise

    def marked(self) -> Marked:
        self._answer()
        found = {host: owner for host, owner in self.owners.items() if owner and owner.startswith("cordon-")}
        return Marked(found, self.undone)

    def obstacle(self, host: str) -> str | None:
        self._answer()
        owner = self.owners.get(host, "nobody knows it")
        return None if owner is None else f"it is {owner}'s"

    def cordon(self, one: Proposal) -> str | None:
        self._answer()
        self.calls.append(f"cordon {one.host}")
        self._change(one.host, one.action.action_id)
        return None

    def release(self, host: str, why: str) -> str | None:
        self._answer()
        self.calls.append(f"release {host}")
        self._change(host, None)
        return None

    def accuse(self, accused: Mapping[str, Proposal]) -> None:
        self.accused = sorted(accused)

    def _change(self, host: str, owner: str | None) -> None:
        if host not in self.stuck or self.is_answer_lost:
            self.owners[host] = owner
        if host in self.stuck:
            raise ServiceRefused(f"node {host} must be changed; got a refusal")

    def _answer(self) -> None:
        if self.away:
            self.away -= 1
            raise ServiceUnavailable("the orchestrator must answer; got nothing")


@dataclass
class Received:
    """What is used of a message of the topic."""

    data: bytes
    place: int = 7

    def value(self) -> bytes:
        return self.data

    def offset(self) -> int:
        return self.place

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 0
