"""Which calls stand: those without an end, and those whose end only says that TorchComms gave up.

The hook writes an end for an operator that failed or timed out too. But a collective can't end before all members
have called it. So an end of one that a member never called is none, and its rank stands in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from irregulars.producers.foreign_files.groups import Group
from irregulars.producers.importers.clog.lines import BAD, LogParser

RUNNING_MS: Final = 300_000
"""A job whose newest line is not older is running, as far as its logs tell: its open calls say nothing yet."""

Collective = tuple[str, int]
"""A communicator, as a log names it, and the number of a collective on it."""


def is_running(parsers: Mapping[str, LogParser], now_ms: int) -> bool:
    """Whether a job may still write its logs. Where clocks are far apart it is taken as over."""
    newest_ms = max((parser.newest_ms for parser in parsers.values()), default=0)
    return abs(now_ms - newest_ms) <= RUNNING_MS


def given_up(
    parsers: Mapping[str, LogParser],
    groups: Mapping[str, Mapping[str, Group | None]],
    newest_ended: Mapping[str, Mapping[str, int]],
) -> Mapping[str, Set[Collective]]:
    """Find the collectives that ended on some ranks and were never called on others, by log.

    Only the first that a member never called is one, and only as the newest that ended: beyond it the member's log is
    just shorter. Logs that lost lines tell nothing.

    Parameters
    ----------
    newest_ended
        Number of the newest collective that ended, by log and communicator.
    """
    found: dict[str, set[Collective]] = {}
    for logs in _by_group(groups).values():
        counts = {file: parsers[file].collectives(name) for file, name in logs.items()}
        first = min(counts.values())
        ended = {file: newest_ended[file].get(name, -1) for file, name in logs.items()}
        if max(ended.values()) == first and not any(_has_gaps(parsers[file]) for file in logs):
            for file in (file for file, number in ended.items() if number == first):
                found.setdefault(file, set()).add((logs[file], first))
    return found


def _by_group(groups: Mapping[str, Mapping[str, Group | None]]) -> dict[Group, dict[str, str]]:
    """Logs of the members of each group, with the name that each of them calls it by."""
    found: dict[Group, dict[str, str]] = {}
    for file, own in groups.items():
        for name, group in own.items():
            if group is not None:
                found.setdefault(group, {})[file] = name
    return found


def _has_gaps(parser: LogParser) -> bool:
    return parser.lost > 0 or parser.skipped[BAD] > 0
