"""What detectors have to say of a job: verdicts of their own, and testimony in the evidence of others.

They change nothing else: neither which iterations are looked into, nor who is accused, nor the ids of other verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.detector_panel import DetectorPanel, Scored
from irregulars.detectors.verdicts.custom_verdicts import CustomState, CustomVerdicts, Moment
from irregulars.detectors.verdicts.strange_ranks import RankScores, StrangeRanks, StrangeRanksWatch
from irregulars.messages.judgements import Verdict
from irregulars.settings import SeverityLimits


@dataclass(frozen=True, slots=True)
class SayState:
    """What `DetectorsSay` keeps; names and meanings are those of its attributes."""

    strange: Mapping[str, StrangeRanks] = field(default_factory=dict)
    testimony: Mapping[str, str] = field(default_factory=dict)
    custom: CustomState | None = None


class DetectorsSay:
    """Gives the detectors of one attempt of a job their say.

    Parameters
    ----------
    job, attempt, limits
        As of `CustomVerdicts`.
    panel
        The detectors.
    """

    def __init__(
        self, job: str, attempt: int, limits: SeverityLimits, panel: DetectorPanel, state: SayState | None = None
    ) -> None:
        state = state or SayState()
        self._panel = panel
        self._speakers = panel.openers | panel.witnesses
        self._strange = StrangeRanksWatch(state.strange)
        self._testimony = dict(state.testimony)  # by the ids of open verdicts: what was last said of them
        self._custom = CustomVerdicts(job, attempt, limits, state.custom)

    def follow(self, limits: SeverityLimits) -> None:
        """Call verdicts urgent by other limits from here on."""
        self._custom.follow(limits)

    def hear(self, scored: Scored) -> None:
        """Take in the scores of a judged iteration, before its verdicts are told."""
        if self._speakers:
            self._strange.look(_of(scored, self._speakers))

    def testify(self, revisions: Sequence[Verdict]) -> list[Verdict]:
        """Add to the evidence of verdicts which detectors find a suspect strange."""
        return [self._attested(verdict) for verdict in revisions] if self._panel.witnesses else list(revisions)

    def _attested(self, verdict: Verdict) -> Verdict:
        suspects = [suspect.ranks for suspect in verdict.suspects]
        text = self._strange.testimony(self._panel.witnesses, suspects) or self._testimony.get(verdict.verdict_id, "")
        self._testimony[verdict.verdict_id] = text
        if verdict.state == "closed" or not text:
            del self._testimony[verdict.verdict_id]
        return replace(verdict, evidence=verdict.evidence + text) if text else verdict

    def observe(
        self, moment: Moment, scored: Scored, accused: frozenset[int], topology: Topology
    ) -> tuple[list[Verdict], tuple[str, ...]]:
        """Let detectors open, follow and close verdicts; the result is that of `CustomVerdicts.observe`."""
        if not self._panel.openers:
            return [], ()
        scores = _of(scored, self._panel.openers)

        def explain(name: str, rank: int) -> str:
            return self._panel.explain(scored, name, rank)

        return self._custom.observe(moment, scores, self._strange, accused, explain, topology)

    def close(self, reason: str, topology: Topology) -> list[Verdict]:
        """Close the verdicts of detectors, because the job ended, restarted or fell silent."""
        return self._custom.close(reason, topology)

    def state(self) -> SayState | None:
        """Everything that a new object needs to go on; None: nobody has a say."""
        if not self._speakers:
            return None
        return SayState(dict(self._strange.by_detector), dict(self._testimony), self._custom.state())


def _of(scored: Scored, names: frozenset[str]) -> RankScores:
    """Return the scores of some detectors, in the order of their names: so no order of settings matters."""
    found = scored.named.by_detector
    return RankScores(scored.named.ranks, {name: found[name] for name in sorted(names) if name in found})
