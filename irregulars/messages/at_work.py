"""Whether an incident is over: one rule, which notices, checks, commands and pages ask.

A verdict of kind ``hang`` is closed when it comes, as its job is silent; yet the job still hangs. It is over when a
later revision says why (its job goes on, ended, or was started again), or a day after it was told, as nobody may ever
say more. All other verdicts are over when they are closed.

Who asks the database asks its view ``incidents`` (column ``is_at_work``; ``sinks/sql/migrations``), which says the
same, and sees at once that a job which hung announced itself again. When a hang was told follows there from the
job's clock, since rows may be stored again: a recording that is played back later is no job that hangs.
"""

from __future__ import annotations

from typing import Final

HANG_NS: Final = 86_400 * 10**9
"""So long after it was told a job that hangs counts as an incident that goes on, if nothing more is heard. A day: by
then somebody has seen to it."""


def still_hangs(kind: str, close_reason: str | None) -> bool:
    """Whether a revision leaves a job that hangs: closed, as nobody speaks, and not over.

    >>> still_hangs("hang", "silent"), still_hangs("hang", "finished"), still_hangs("slow_nic", "silent")
    (True, False, False)
    """
    return kind == "hang" and close_reason == "silent"


def hangs_until_ns(kind: str, close_reason: str | None, told_ns: int) -> int | None:
    """Return until when a verdict counts as at work though it is closed, ns since the epoch; None: it does not."""
    return told_ns + HANG_NS if still_hangs(kind, close_reason) else None


def is_at_work(state: str, kind: str, close_reason: str | None, told_ns: int, now_ns: int) -> bool:
    """Whether the cause is still at work, as far as the newest revision of a verdict tells.

    Parameters
    ----------
    state, kind, close_reason
        As in `messages.judgements.Verdict`. A newer worker's own state counts as open.
    told_ns
        When the verdict was told first, ns since the epoch, by the clock of whoever took it in: the time of the event
        may be that of a recording.

    Examples
    --------
    >>> is_at_work("closed", "hang", "silent", 0, HANG_NS - 1), is_at_work("closed", "hang", "silent", 0, HANG_NS)
    (True, False)
    >>> is_at_work("open", "slow_nic", None, 0, 9 * HANG_NS), is_at_work("closed", "hang", "recovered", 0, 1)
    (True, False)
    """
    until_ns = hangs_until_ns(kind, close_reason, told_ns)
    return state != "closed" or (until_ns is not None and now_ns < until_ns)
