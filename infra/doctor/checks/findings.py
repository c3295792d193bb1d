"""A finding: how bad it is, what it is about, what was found, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from irregulars.infra.doctor.checks.facts import TopicFacts
from irregulars.infra.doctor.checks.what_to_do import TO_DO

Level = Literal["ok", "warning", "problem", "unknown"]
LEVELS: Final[tuple[Level, ...]] = ("ok", "warning", "problem", "unknown")

GROUPS: Final = {
    "machine": "This machine",
    "kafka": "Kafka",
    "topics": "Topics",
    "rights": "Rights",
    "clickhouse": "ClickHouse",
    "workers": "Workers",
    "jobs": "Producers and jobs",
    "alerts": "Alerts and notify",
}
"""Names for ``--only``, and what stands above the findings of each."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Parameters
    ----------
    level
        ``ok``; ``warning``: look at it; ``problem``: mend it; ``unknown``: it was not read, and why.
    group
        One of `GROUPS`.
    subject
        What it is about, in a word or two.
    text
        What was found.
    code
        For programs: names the case, and by `TO_DO` what to do. None where all is well.
    to_do
        What to do, for people.
    """

    level: Level
    group: str
    subject: str
    text: str
    code: str | None = None
    to_do: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as an object."""
        return asdict(self)


def ok(group: str, subject: str, text: str) -> Finding:
    """Return a finding that asks for nothing."""
    return Finding("ok", group, subject, text)


def finding(level: Level, group: str, subject: str, text: str, code: str, /, **values: object) -> Finding:
    """Return a finding of a case that `TO_DO` knows; `values` fill the places in what to do."""
    return Finding(level, group, subject, text, code, TO_DO[code].format(**values))


def unread(group: str, subject: str, reason: str) -> Finding:
    """Return the finding that something could not be read."""
    return finding("unknown", group, subject, f"not known: {reason}", "not_read")


def unseen(group: str, subject: str, topic: TopicFacts) -> Finding:
    """Return the finding that something was not looked at, since its topic is missing or hidden from us."""
    if topic.error == "missing":
        return finding("unknown", group, subject, f"not looked at: {topic.name} is missing", "topics_first")
    return unread(group, subject, why_not(topic.name, topic.error))


def why_not(what: str, error: str | None) -> str:
    """Say why a topic or consumer group could not be looked at.

    >>> why_not("irregulars.jobs", "refused")
    'irregulars.jobs may not be seen with these credentials'
    """
    return f"{what} may not be seen with these credentials" if error == "refused" else f"{what}: {error}"


def status_of(findings: list[Finding]) -> int:
    """Return the exit status: 1 where there is a problem, else 0."""
    return int(any(one.level == "problem" for one in findings))
