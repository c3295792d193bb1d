"""What makes the places of a job's ranks uncertain, and what is left of a verdict then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from irregulars.messages.announcements import Announcement
from irregulars.messages.judgements import Verdict

MOST_HOSTS: Final = 8
_EVIDENCE: Final = (
    "no device is named: the job's ranks are announced in contradicting places, or two jobs have one name"
)


class Contradiction(NamedTuple):
    """Why it is not known which devices a job's rows are of.

    Parameters
    ----------
    what
        In which respect announcements differ (`announcements.contradiction_of`); ``starts``: two starts run at once.
    hosts
        Some of those that are concerned, ascending.
    """

    what: str
    hosts: tuple[str, ...]


def hosts_of(announcements: Iterable[Announcement]) -> tuple[str, ...]:
    """Return some of the hosts of announcements, ascending."""
    return tuple(sorted({one.host for one in announcements if one.host is not None})[:MOST_HOSTS])


def without_places(verdict: Verdict) -> Verdict:
    """Take from a verdict who is suspected, and that anything recovered: its rows may be those of two starts."""
    reason = "restarted" if verdict.close_reason == "recovered" else verdict.close_reason
    return replace(verdict, suspects=(), evidence=_EVIDENCE, close_reason=reason)
