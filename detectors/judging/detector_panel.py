"""The detectors of a job: they score its ranks in each iteration, and learn those that were not irregular."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.iteration_rows import IterationRows
from irregulars.detectors.plugins.protocol import (
    NUMBERS,
    Detector,
    Frame,
    MakeDetector,
    explanation_of,
    is_witness,
    name_of,
    opens_verdicts,
)
from irregulars.detectors.plugins.stored_state import StoredDetector, restore_detectors, stored_detectors
from irregulars.detectors.verdicts.custom_verdicts import CustomState, CustomVerdicts, Moment, Others
from irregulars.detectors.verdicts.strange_ranks import RankScores, StrangeRanks, StrangeRanksWatch
from irregulars.dtypes import Column, Floats, Ints
from irregulars.messages.device_events import GPU_METRICS
from irregulars.messages.evidence import DETECTOR_SCORE
from irregulars.messages.judgements import Verdict
from irregulars.settings import JudgeSettings, SeverityLimits

STATE_BYTES_OF_JOB: Final = 256 * 1024
"""Most bytes of one detector's state in a job's snapshot, whatever its size; chosen."""

STATE_BYTES_OF_RANK: Final = 256
"""As many more for each rank of the job; chosen: a quarter of the limit of a rank's own snapshot."""


class Scored(NamedTuple):
    """Scores of an iteration, and the frame that they rest on."""

    largest: Floats  # of each rank, the largest score of all detectors; NaN: no opinion
    named: RankScores  # all scores by detector, those of the first hop too
    frame: Frame  # input of the detectors of ranks; empty where there are none

    def with_metrics(self, scores: Floats) -> Scored:
        """Return them with the scores of the metrics that profiles tell of each rank."""
        named = {**self.named.by_detector, GPU_METRICS: scores}
        return self._replace(named=RankScores(self.named.ranks, named))


class DetectorPanel:
    """The detectors of one attempt of a job.

    `settings`: make the detectors. Those of operators run in the first hop; here only their names are used.
    `openers`, `witnesses`: names of those that open verdicts, and of those that the evidence of others mentions.
    `of_times`, `of_numbers`: names of those that read times alone, and of those that read numbers.
    `cold`: names of those that began cold although a snapshot should have held them.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        self._makers: tuple[MakeDetector, ...] = settings.rank_detectors
        self._own = _named(self._makers)
        everybody = [*self._own, *_named(settings.operator_detectors)]
        self.openers = frozenset(name for name, one in everybody if opens_verdicts(one))
        self.witnesses = frozenset(name for name, one in everybody if is_witness(one))
        self.of_numbers = frozenset(name for name, one in everybody if not NUMBERS.keys().isdisjoint(one.reads))
        self.of_times = frozenset(name for name, one in everybody if {"tokens", *NUMBERS}.isdisjoint(one.reads))
        self.cold: tuple[str, ...] = ()
        self._ranks = 0  # of the newest iteration

    def score(self, rows: IterationRows, stages: Ints) -> Scored:
        """Score each rank of an iteration, whose ranks ascend."""
        columns = rows.columns
        self._ranks = len(rows)
        named = {
            name.removeprefix(DETECTOR_SCORE): column
            for name, column in columns.items()
            if name.startswith(DETECTOR_SCORE)
        }
        largest, frame = columns["score"], _frame(rows, stages) if self._own else {}
        for name, detector in self._own:
            named[name] = detector.score(frame)
            # fmax passes over NaN: a detector without an opinion hides no other one's score.
            largest = np.fmax(largest, named[name])
        return Scored(largest, RankScores(columns["rank"], named), frame)

    def learn(self, scored: Scored) -> None:
        """Let the detectors of ranks learn an iteration."""
        for _, detector in self._own:
            detector.learn(scored.frame)

    def explain(self, scored: Scored, name: str, rank: int) -> str:
        """Return a detector's explanation of a rank; empty for a detector of the first hop, which is not here."""
        detector = next((one for own_name, one in self._own if own_name == name), None)
        if detector is None:
            return ""
        return explanation_of(detector, scored.frame, int(np.searchsorted(scored.named.ranks, rank)))

    # --- snapshots --------------------------------------------------------------------------------------------------

    def states(self) -> tuple[StoredDetector, ...]:
        """Return the states of those that have one, bounded by the number of ranks in the newest iteration."""
        return stored_detectors(self._own, STATE_BYTES_OF_JOB + STATE_BYTES_OF_RANK * self._ranks)

    def restore(self, states: tuple[StoredDetector, ...]) -> None:
        """Let the detectors go on from their states; one without a state begins cold."""
        if states:
            self._own, self.cold = restore_detectors(self._makers, states)


def _named(makers: Iterable[MakeDetector]) -> list[tuple[str, Detector]]:
    return [(name_of(one), one) for one in (make() for make in makers)]


def _frame(rows: IterationRows, stages: Ints) -> dict[str, Column]:
    columns = rows.columns
    frame = {name: columns[name] for name in ("rank", "iteration", "work_ns", "communication_ns", "tokens")}
    frame |= {name: columns[name].astype(np.float64) for name in ("elapsed_ns", "operators")}
    # Evidence has only those of these columns in which some rank reported a value.
    unknown = np.full(len(rows), np.nan)
    frame |= {name: columns.get(name, unknown).astype(np.float64) for name in NUMBERS}
    frame["stage"] = stages
    return frame


# --------------------------------------------------------------------------------------------------------------------
# The part of detectors in verdicts: they open some of their own, and testify in the evidence of others.
# They change nothing else: neither which iterations are looked into, nor who is accused, nor the ids of other
# verdicts.


@dataclass(frozen=True, slots=True)
class SayState:
    """State of `DetectorsSay`; names and meanings are those of its attributes."""

    strange: Mapping[str, StrangeRanks] = field(default_factory=dict)
    testimony: Mapping[str, str] = field(default_factory=dict)
    custom: CustomState | None = None
    metrics: CustomState | None = None


class DetectorsSay:
    """Lets the detectors of one attempt of a job open verdicts, and testify in others.

    `job`, `attempt`, `limits`: as of `CustomVerdicts`. `panel`: the detectors.
    """

    def __init__(
        self, job: str, attempt: int, limits: SeverityLimits, panel: DetectorPanel, state: SayState | None = None
    ) -> None:
        state = state or SayState()
        self._panel = panel
        self._speakers = panel.openers | panel.witnesses | {GPU_METRICS}
        self._strange = StrangeRanksWatch(state.strange)
        self._testimony = dict(state.testimony)  # by the ids of open verdicts: the one last published
        self._custom = CustomVerdicts(job, attempt, limits, state.custom, panel.of_times, panel.of_numbers)
        # Of their own, as they count the iterations that tell metrics, and not each.
        self._metrics = CustomVerdicts(job, attempt, limits, state.metrics)

    def follow(self, limits: SeverityLimits) -> None:
        """Call verdicts urgent by other limits from here on."""
        self._custom.follow(limits)
        self._metrics.follow(limits)

    @property
    def open_kinds(self) -> list[tuple[str, str]]:
        """Severity and kind of each verdict of detectors that is open."""
        return [*self._custom.open_kinds, *self._metrics.open_kinds]

    @property
    def metrics_since_ns(self) -> float:
        """Since when metrics are strange, as an open verdict says; infinite: none is open."""
        return self._metrics.since_ns

    def hear(self, scored: Scored) -> None:
        """Take in the scores of a judged iteration, before its verdicts are revised."""
        self._strange.look(_of(scored, self._speakers))

    def testify(self, revisions: Sequence[Verdict]) -> list[Verdict]:
        """Add to the evidence of verdicts which detectors find a suspect strange."""
        if not self._panel.witnesses:
            return list(revisions)
        attested, openers = [], self._panel.openers & self._panel.of_times
        for verdict in revisions:
            suspects = [suspect.ranks for suspect in verdict.suspects]
            text = self._strange.testimony(self._panel.witnesses, suspects, openers)
            # A later revision keeps the testimony of an earlier one, though the rank may be strange no longer.
            text = text or self._testimony.get(verdict.verdict_id, "")
            self._testimony[verdict.verdict_id] = text
            # A closed verdict has no further revision, so its text would stay in the state for ever.
            if verdict.state == "closed" or not text:
                del self._testimony[verdict.verdict_id]
            attested.append(replace(verdict, evidence=verdict.evidence + text) if text else verdict)
        return attested

    def observe(
        self, moment: Moment, scored: Scored, others: Others, topology: Topology
    ) -> tuple[list[Verdict], tuple[str, ...]]:
        """Let detectors open, follow and close verdicts; the result is that of `CustomVerdicts.observe`."""

        def explain(name: str, rank: int) -> str:
            return self._panel.explain(scored, name, rank)

        revisions: list[Verdict] = []
        seen_in: tuple[str, ...] = ()
        for verdicts, names in ((self._custom, self._panel.openers), (self._metrics, frozenset([GPU_METRICS]))):
            scores = _of(scored, names)
            if not scores.by_detector:
                verdicts.pass_by(moment)
            else:
                more, own = verdicts.observe(moment, scores, self._strange, others, explain, topology)
                revisions, seen_in = revisions + more, seen_in + own
        return revisions, seen_in

    def close(self, reason: str, topology: Topology) -> list[Verdict]:
        """Close the verdicts of detectors, because the job ended, restarted or fell silent."""
        return self._custom.close(reason, topology) + self._metrics.close(reason, topology)

    def state(self) -> SayState | None:
        """Everything that a new object needs to go on; None: no detector had an opinion, or testifies."""
        custom, metrics = self._custom.state(), self._metrics.state()
        if not (self._panel.openers or self._panel.witnesses or custom.recent or metrics.recent):
            return None
        return SayState(dict(self._strange.by_detector), dict(self._testimony), custom, metrics)


def _of(scored: Scored, names: frozenset[str]) -> RankScores:
    """Return the scores of some detectors, in the order of their names: so no order of settings matters."""
    found = scored.named.by_detector
    return RankScores(scored.named.ranks, {name: found[name] for name in sorted(names) if name in found})
