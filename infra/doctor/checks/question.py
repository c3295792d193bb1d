"""What the doctor is asked: of which installation, for whose work, which parts, and for how long."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from irregulars.infra.doctor.checks.findings import GROUPS
from irregulars.kafka.access_roles import Right, rights_of
from irregulars.kafka.topics import TopicSettings

_OF_EACH_ROLE: Final = frozenset({"machine", "kafka", "topics", "rights"})
_WITH_DATABASE: Final = frozenset({"worker", "console"})


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Parameters
    ----------
    group
        Consumer group of the workers.
    role
        Whose work we are to do: then only what that work needs is judged. None: the whole installation is.
    only
        Groups of findings; empty: all, or those that the role needs.
    within_s
        How long reading may take.
    """

    group: str = "irregulars"
    role: str | None = None
    only: Collection[str] = ()
    within_s: float = 20.0

    def wants(self, *groups: str) -> bool:
        """Whether one of the groups is asked for.

        >>> Question().wants("jobs"), Question(role="reader").wants("jobs"), Question(role="reader").wants("topics")
        (True, False, True)
        """
        return any(group in self._wanted for group in groups)

    def needed(self, topics: TopicSettings) -> tuple[Right, ...]:
        """Return the rights that the role needs; none where no role is asked for."""
        return () if self.role is None else rights_of(self.role, topics, self.group)

    @property
    def only_reads(self) -> bool:
        """Whether the work writes nothing to the database."""
        return self.role == "console"

    @property
    def _wanted(self) -> Collection[str]:
        if self.only or self.role is None:
            return self.only or GROUPS
        return _OF_EACH_ROLE | ({"clickhouse"} if self.role in _WITH_DATABASE else frozenset())
