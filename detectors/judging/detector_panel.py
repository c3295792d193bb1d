"""The detectors of a job: they score its ranks in each iteration, and learn those that were not irregular."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.judging.reading.iteration_rows import IterationRows
from irregulars.detectors.plugins.protocol import (
    Detector,
    Frame,
    MakeDetector,
    explanation_of,
    is_witness,
    name_of,
    opens_verdicts,
)
from irregulars.detectors.plugins.stored_state import StoredDetector, restore_detectors, stored_detectors
from irregulars.detectors.verdicts.strange_ranks import RankScores
from irregulars.dtypes import Column, Floats, Ints
from irregulars.messages.evidence import DETECTOR_SCORE
from irregulars.settings import JudgeSettings

STATE_BYTES_OF_JOB: Final = 256 * 1024
"""Most bytes of one detector's state in a job's snapshot, whatever its size; chosen."""

STATE_BYTES_OF_RANK: Final = 256
"""As many more for each rank of the job; chosen: a quarter of what a rank's snapshot may take."""


class Scored(NamedTuple):
    """What detectors say of an iteration."""

    largest: Floats  # of each rank, the largest score of all detectors; NaN: no opinion
    named: RankScores  # all scores by detector, those of the first hop too
    frame: Frame  # what the detectors of ranks were given; empty where there are none


class DetectorPanel:
    """The detectors of one attempt of a job.

    Parameters
    ----------
    settings
        Make the detectors. Those of operators run in the first hop; here they are asked for their names.

    Attributes
    ----------
    openers, witnesses
        Names of those that open verdicts, and of those that evidence tells of.
    cold
        Names of those that began cold although a snapshot should have held them.
    """

    def __init__(self, settings: JudgeSettings) -> None:
        self._makers: tuple[MakeDetector, ...] = settings.rank_detectors
        self._own = _named(self._makers)
        everybody = [*self._own, *_named(settings.operator_detectors)]
        self.openers = frozenset(name for name, one in everybody if opens_verdicts(one))
        self.witnesses = frozenset(name for name, one in everybody if is_witness(one))
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
            largest = np.fmax(largest, named[name])
        return Scored(largest, RankScores(columns["rank"], named), frame)

    def learn(self, scored: Scored) -> None:
        """Let the detectors of ranks learn an iteration."""
        for _, detector in self._own:
            detector.learn(scored.frame)

    def explain(self, scored: Scored, name: str, rank: int) -> str:
        """Return what a detector says of a rank; empty for one of the first hop, which is not here."""
        detector = next((one for own_name, one in self._own if own_name == name), None)
        if detector is None:
            return ""
        return explanation_of(detector, scored.frame, int(np.searchsorted(scored.named.ranks, rank)))

    # --- snapshots --------------------------------------------------------------------------------------------------

    def states(self) -> tuple[StoredDetector, ...]:
        """Return the states of those that have one, bounded by the number of ranks in the newest iteration."""
        return stored_detectors(self._own, STATE_BYTES_OF_JOB + STATE_BYTES_OF_RANK * self._ranks)

    def restore(self, states: tuple[StoredDetector, ...]) -> None:
        """Let the detectors go on from their states; who has none begins cold."""
        if states:
            self._own, self.cold = restore_detectors(self._makers, states)


def _named(makers: Iterable[MakeDetector]) -> list[tuple[str, Detector]]:
    return [(name_of(one), one) for one in (make() for make in makers)]


def _frame(rows: IterationRows, stages: Ints) -> dict[str, Column]:
    columns = rows.columns
    frame = {name: columns[name] for name in ("rank", "iteration", "work_ns", "communication_ns", "tokens")}
    frame |= {name: columns[name].astype(np.float64) for name in ("elapsed_ns", "operators")}
    frame["stage"] = stages
    return frame
