"""Is a host accused now? The answer in the words of node-problem-detector: a status and a line of 80 characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from irregulars.messages.judgements import Verdict
from irregulars.sinks.advice import name_device, name_kind, plan_of

OK: Final = 0
PROBLEM: Final = 1
UNKNOWN: Final = 2
MOST_CHARACTERS: Final = 80
"""What node-problem-detector takes of a plug-in's output (``max_output_length``)."""


def check_host(revisions: Iterable[Verdict], host: str) -> tuple[int, str]:
    """Return the status of a host, and a line that says why.

    It is a problem if an open verdict is sure enough to have the host cordoned (`sinks.advice.plan_of`).

    Parameters
    ----------
    revisions
        In any order: of each verdict the newest counts.
    """
    newest: dict[str, Verdict] = {}
    for one in revisions:
        if one.verdict_id not in newest or one.revision >= newest[one.verdict_id].revision:
            newest[one.verdict_id] = one
    accusing = [one for one in newest.values() if _accuses(one, host)]
    if not accusing:
        return OK, short_line(f"no open verdict accuses {host}")
    worst = max(accusing, key=lambda one: (one.suspects[0].probability, one.verdict_id))
    more = f" (and {len(accusing) - 1} more)" if len(accusing) > 1 else ""
    return PROBLEM, short_line(_told(worst), more)


def short_line(text: str, end: str = "") -> str:
    r"""Return a text as one line of ASCII that a node's condition holds; of a long one its start, and the end.

    >>> len(short_line("é" * 100, " (and 2 more)")), short_line("a\nb")
    (80, 'a b')
    """
    line = "".join(sign if sign.isprintable() else " " for sign in text).encode("ascii", "replace").decode()
    room = MOST_CHARACTERS - len(end)
    return (line if len(line) <= room else f"{line[: room - 3]}...") + end


def _accuses(verdict: Verdict, host: str) -> bool:
    is_open = verdict.state != "closed"
    return is_open and "cordon" in plan_of(verdict).actions and verdict.suspects[0].host == host


def _told(verdict: Verdict) -> str:
    suspect = verdict.suspects[0]
    percent = min(round(100 * suspect.probability), 99)
    return f"{name_kind(verdict.kind)} {percent}%: {name_device(suspect)}, job {verdict.job}"
