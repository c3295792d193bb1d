"""Where a suspect iteration's time went: read from its operators, or known without reading them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

from irregulars.detectors.blame.what_if import WhatIf
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.irregular.window import Limit
from irregulars.detectors.job.lanes import EVERYBODY
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.judging.iteration_rows import IterationRows, ReadBack
from irregulars.detectors.judging.nic_rates import attribute_rates, has_operators, usual_rates, with_rates
from irregulars.detectors.judging.operator_reader import OperatorReader
from irregulars.detectors.judging.reading_budget import Need, ReadingBudget
from irregulars.detectors.judging.result_log import JudgementLog
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.detectors.path.critical_path import Attribution


class Source(Enum):
    """How it is known where a suspect iteration's time went."""

    READ = auto()  # from its own operators or bandwidth samples
    CARRIED = auto()  # it looks like an iteration of the open verdict that was read
    UNKNOWN = auto()  # no usual values are known yet, or the budget is spent


class Finding(NamedTuple):
    """Where a suspect iteration's time went."""

    attribution: Attribution | None = None  # none exactly if the source is `Source.UNKNOWN`
    source: Source = Source.UNKNOWN
    what_if: WhatIf | None = None  # the iteration, to be run again; None where no operators with times were read


class Level(NamedTuple):
    """Duration of a healthy iteration of the job: its mean and median, ns, and the limit of irregular ones."""

    mean_ns: float
    limit: Limit
    usual_ns: float = math.nan


class Circumstances(NamedTuple):
    """State of the judge when it has an iteration looked into."""

    judged: int  # iterations that were judged before it
    healthy: Level  # the level that it is held against
    # Of `irregulars.settings.JudgeSettings`
    delta: float
    window: int
    has_open: bool  # whether a verdict is open that irregular iterations opened


class Investigator:
    """Looks into suspect iterations, and keeps the iterations that it compares them with.

    `reader`: reads operators, and knows the job. `budget`: which iterations of a large job may be read. `log`: keeps
    operators and behaviour patterns for the sinks. `regular`: the newest regular iterations. `usual_rows`,
    `usual_age`: those of them that show the usual values, and for how many iterations they have done so. `read_last`:
    the newest iteration that was read of an open verdict, and its excess, ns.
    """

    def __init__(self, reader: OperatorReader, budget: ReadingBudget, log: JudgementLog) -> None:
        self.reader = reader
        self.budget = budget
        self._log = log
        self.regular: deque[IterationRows] = deque(maxlen=IRREGULAR.min_iterations)
        self.usual_rows: list[IterationRows] = []
        self.usual_age = 0
        self.read_last: tuple[Attribution, float] | None = None

    def investigate(
        self, rows: IterationRows, now: Circumstances, read_back: ReadBack, *, is_worth_reading: bool
    ) -> Finding:
        """Find where a suspect iteration's time went, if that can be known.

        Small jobs are always read. Of a large one, an iteration that an open verdict explains is mostly taken for
        known, and others are read as far as the budget goes (`detectors.judging.reading_budget`).

        `is_worth_reading`: see `detectors.judging.suspicion.Suspicion`.
        """
        self._renew_usual(now, read_back)
        # Too few regular iterations so far: there is nothing to compare with.
        if not self.reader.has_usual:
            return Finding()
        # Patterns come with the evidence and need no reading: they are kept whatever the budget allows.
        self._log.add_patterns(rows, self.usual_rows, self.reader.codes)
        # Only NICs were sampled: their rates are all that can show where the time went.
        if not has_operators(rows):
            rates = usual_rates(self.usual_rows)
            return Finding(attribute_rates(rows, now.healthy.mean_ns, rates, self.reader.topology), Source.READ)
        excess_ns = rows.elapsed_ns - now.healthy.mean_ns
        is_large = len(rows) > JUDGING.whole_ranks
        carried = self._carry_over(rows, excess_ns, has_open=now.has_open) if is_large else None
        need = Need.CONFIRM if carried is not None else Need.EXPLAIN if is_worth_reading else Need.PURSUE
        if is_large and not self.budget.may_read(now.judged, self.reader.traffic.flowed, need):
            return Finding(carried, Source.UNKNOWN if carried is None else Source.CARRIED)
        # Charged with all operators read for this iteration, also those that extend the usual values.
        read_before = self.reader.traffic.read
        # A part that costs less than δ allows is not looked into more closely, however small the excess is.
        allowed_ns = (now.delta - 1) * now.healthy.mean_ns
        attribution, graph = self.reader.attribute(rows, max(excess_ns, allowed_ns), read_back)
        attribution = beyond_common(replace(attribution, excess_ns=max(excess_ns, 0.0)), allowed_ns)
        attribution = with_rates(attribution, rows, usual_rates(self.usual_rows), self.reader.codes)
        ratios = self.reader.abnormal_ratios(graph) if self._log.fills_columns else None
        self._log.add_operators(graph, rows.number, self.reader.topology.names, self.reader.clocks.ahead_ns, ratios)
        finding = Finding(attribution, Source.READ, self.reader.what_if(graph))
        self.budget.note(now.judged, self.reader.traffic.read - read_before, need)
        return finding

    def learn(self, rows: IterationRows, *, is_regular: bool) -> None:
        """Take in a judged iteration; a regular one shows the usual values."""
        self.usual_age += 1
        if is_regular:
            self.regular.append(rows)

    def unlearn(self, above_ns: float, newest: int) -> None:
        """Take back those of the newest iterations that were longer: a shift had begun, and nobody knew it yet."""
        rows = list(self.regular)
        kept = [*rows[:-newest], *(one for one in rows[-newest:] if one.elapsed_ns <= above_ns)]
        # With fewer left nothing could be compared: then the shifted ones stay.
        if len(kept) >= JOB.repeated:
            self.regular = deque(kept, maxlen=self.regular.maxlen)

    def note_seen(self, finding: Finding, excess_ns: float, *, has_open: bool, is_in_verdict: bool) -> None:
        """Remember the newest iteration that was read of an open verdict: later ones may look like it.

        One whose cause is in no verdict is not kept, as it would explain nothing.
        """
        if not has_open:
            self.read_last = None
        if finding.attribution is not None and finding.source is Source.READ and is_in_verdict:
            self.read_last = finding.attribution, excess_ns

    def _carry_over(self, rows: IterationRows, excess_ns: float, *, has_open: bool) -> Attribution | None:
        """Return the attribution of the iteration that was read last, if evidence shows that this one is like it."""
        if self.read_last is None or not has_open:
            return None
        # An accused lane that is quick again shows that this iteration is of another incident.
        if self.reader.has_quick(rows, self.read_last[0]):
            return None
        return carry_over(*self.read_last, rows.number, excess_ns, self.reader.work_excess_ns(rows))

    def _renew_usual(self, now: Circumstances, read_back: ReadBack) -> None:
        """Learn the usual values when they are first needed, and anew when they are older than the window.

        While a verdict is open it stays: the iterations since then hold the fault.
        """
        is_old = self.usual_age > now.window and not now.has_open
        if len(self.regular) >= JOB.repeated and (is_old or not self.usual_rows):
            self.usual_rows, self.usual_age = list(self.regular), 0
            self.reader.forget_usual()
        if not self.reader.has_usual and self.usual_rows:
            self.reader.set_usual(self.usual_rows, read_back)


def beyond_common(attribution: Attribution, allowed_ns: float) -> Attribution:
    """Count the excess that all ranks share first; lanes get the rest of the iteration's excess, in proportion.

    Of ranks with a longer batch one is the last, in this iteration as in those before: held against its own usual
    work it took longer by much, and made the iteration longer by nothing.

    `allowed_ns`: excess that makes no iteration irregular. A shared excess of up to that changes nothing: it may
    be noise alone.
    """
    common_ns = attribution.path_excess_ns.get(EVERYBODY, 0.0)
    if attribution.excess_ns is None or common_ns <= allowed_ns:
        return attribution
    others_ns = sum(ns for lane, ns in attribution.path_excess_ns.items() if ns > 0 and lane != EVERYBODY)
    left_ns = max(attribution.excess_ns - common_ns, 0.0)
    # Lanes and the shared part fit into the excess: nothing is counted twice.
    if others_ns <= left_ns:
        return attribution
    scale = left_ns / others_ns
    scaled = {
        lane: ns if ns <= 0 or lane == EVERYBODY else ns * scale for lane, ns in attribution.path_excess_ns.items()
    }
    return replace(attribution, path_excess_ns=scaled)


# --------------------------------------------------------------------------------------------------------------------
# Judge an iteration without reading its operators, by another iteration of the same incident that was read.
# A fault that lasts looks the same in each iteration. That can be seen without operators: the job lost about as much
# time again, the ranks that were late by their own work still are, and no others are.


def carry_over(
    read: Attribution, read_excess_ns: float, iteration: int, excess_ns: float, work_excess_ns: Mapping[int, float]
) -> Attribution | None:
    """Return where the excess of `iteration` went, if it is like one that was read; None if it is not.

    `read`, `read_excess_ns`: the iteration that was read, and how much longer than usual it took. `excess_ns`,
    `work_excess_ns`: how much longer the iteration to judge took, and how much longer each of its ranks worked than
    usual.
    """
    if min(read_excess_ns, excess_ns) < JUDGING.like_ratio * max(read_excess_ns, excess_ns) or excess_ns <= 0:
        return None
    late = _late(read.work_excess_ns, read_excess_ns)
    if late != _late(work_excess_ns, excess_ns):
        return None
    scale = excess_ns / read_excess_ns
    return replace(
        read,
        iteration=iteration,
        path_excess_ns={lane: ns * scale for lane, ns in read.path_excess_ns.items()},
        lanes={
            lane: one._replace(excess_ns=one.excess_ns * scale if one.excess_ns > 0 else one.excess_ns)
            for lane, one in read.lanes.items()
        },
        work_excess_ns=dict(work_excess_ns),
        excess_ns=excess_ns,
        left_first=(),  # who left first was seen once, and counts once
    )


def _late(work_excess_ns: Mapping[int, float], excess_ns: float) -> set[int]:
    return {rank for rank, ns in work_excess_ns.items() if ns >= JOB.most * excess_ns}
