"""Hangs that were told while their job was silent, until it turns out what became of them.

Such a verdict is closed when it comes: nothing more is expected of its job. If the job goes on after all, or ends,
or is started anew, one more revision says so. Otherwise nobody who reads verdicts alone would know that it is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.messages.at_work import still_hangs
from irregulars.messages.judgements import Verdict


@dataclass(frozen=True, slots=True)
class StandingHang:
    """A verdict on a hang, as it was told, and since when the job has hung (ns since the epoch; None: not known)."""

    verdict: Verdict
    since_ns: int | None


class StandingHangs:
    """Those of one attempt of a job.

    Attributes
    ----------
    standing
        Oldest first. The next hang that is told ends those before it; states of older workers hold several.
    """

    def __init__(self, standing: Sequence[StandingHang] = ()) -> None:
        self.standing = tuple(standing)

    def note(self, verdict: Verdict, since_ns: int | None, begun_ns: int) -> list[Verdict]:
        """Take in a hang that is told now, and return the revisions that say that those before it are over.

        A job hangs in one place at a time: either it has moved on to where it hangs now, or the new hang corrects
        who was accused of the old one. A new one whose job has ended is over already.

        Parameters
        ----------
        begun_ns
            When the iteration in which it hangs now began: the earlier hangs lasted up to there.
        """
        over = self.end("recovered", begun_ns)
        if still_hangs(verdict.kind, verdict.close_reason):
            self.standing = (*self.standing, StandingHang(verdict, since_ns))
        return over

    def go_on(self, rows: IterationRows) -> list[Verdict]:
        """Return the revisions that say that the job goes on, if an iteration shows it: a later one that has ended.

        What was lost counts up to that iteration: when the hang was told nobody knew how long it would last.
        """
        last = max((one.verdict.iterations[1] - 1 for one in self.standing), default=rows.number)
        if rows.number <= last or rows.columns["unended"].any():
            return []
        return self.end("recovered", rows.start_ns)

    def end(self, reason: str, until_ns: int | None = None) -> list[Verdict]:
        """Return the revisions that say that all of them are over, and why; `until_ns`: when, if that is known."""
        standing, self.standing = self.standing, ()
        return [_revised(one, reason, until_ns) for one in standing]


def _revised(one: StandingHang, reason: str, until_ns: int | None) -> Verdict:
    lasted_s = 0.0 if until_ns is None or one.since_ns is None else (until_ns - one.since_ns) / 1e9
    verdict = one.verdict
    return replace(verdict, revision=verdict.revision + 1, event="closed", close_reason=reason,
                   lost_s=max(verdict.lost_s, round(lasted_s, 6)))  # fmt: skip
