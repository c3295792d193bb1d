"""Judge one iteration after the other: δ-irregular or not, where the time went, and what that means for verdicts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.blame.standing_causes import MIN_REVIEWED, review
from irregulars.detectors.blame.what_if import WhatIf
from irregulars.detectors.hang.find_hang import find_hang, lost_shares
from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.irregular.late_rank_history import LatenessWatch, latest_ranks
from irregulars.detectors.irregular.window import MIN_ITERATIONS, DriftWatch, IterationWindow
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.nic_rates import attribute_rates, has_operators, usual_rates, with_rates
from irregulars.detectors.judging.reading.iteration_rows import IterationRows, join_rows
from irregulars.detectors.judging.reading.operator_reader import WHOLE_RANKS, Announcements, OperatorReader, Traffic
from irregulars.detectors.judging.reading.reading_budget import ReadingBudget
from irregulars.detectors.judging.reading.spans import ReadBack
from irregulars.detectors.judging.result_columns import operator_columns, pattern_columns, rank_columns
from irregulars.detectors.judging.result_log import JudgementLog
from irregulars.detectors.judging.review_candidates import late_of, ranks_to_review
from irregulars.detectors.judging.settings import JudgeSettings
from irregulars.detectors.judging.standing_review import look_at, read_paths
from irregulars.detectors.path.attribution_state import attribution_from_state, attribution_to_state
from irregulars.detectors.path.critical_path import Attribution
from irregulars.detectors.path.operator_graph import OperatorGraph
from irregulars.detectors.path.same_incident import carry_over
from irregulars.detectors.verdicts.tracker import VerdictTracker
from irregulars.streams.messages.announcements import Announcement
from irregulars.streams.messages.judgements import JudgedIteration, Judgements, Verdict

Array = np.ndarray

REFERENCE_ITERATIONS: Final = 10
"""So many regular iterations, the newest ones, show what is usual."""

MIN_REFERENCE_ITERATIONS: Final = 3

REVIEWED: Final = 8
REVIEW_EVERY: Final = 50
REVIEW_STANDING: Final = 20
REVIEW_AGAIN: Final = 10
"""So many regular iterations are held against peers: at the start, then every so many iterations, and more often
while a fault is known that was always there, or where a review found a plan to change that the next one must
confirm."""

NEWEST: Final = 2
"""So many of the last iterations are looked at for a hang when the job is over."""

MOST_LOST: Final = 0.02
"""Of a rank that lost a larger share of its rows, a row that is missing says nothing."""

STAGES_WITHIN: Final = 10
"""Pipelines that nobody announced are looked for in so many iterations: in one, lost rows may hide them."""

LATE_COSTS: Final = 0.5
"""A rank that stands out makes an iteration suspect if its lateness is worth a look, and the iteration takes longer
by this share of it at least; where it is late again and again, the newest iterations."""


class IterationJudge:
    """Judge the iterations of one attempt of a job in ascending order.

    Parameters
    ----------
    job, attempt
        The job and its start number.
    settings
        δ, window and the detectors of ranks.
    """

    def __init__(self, job: str, attempt: int, settings: JudgeSettings) -> None:
        self.job = job
        self.attempt = attempt
        self._silence_s = settings.silence_s
        self._window = IterationWindow(delta=settings.delta, window=settings.window)
        self._drift = DriftWatch()
        self._tracker = VerdictTracker(job, attempt, settings.severity)
        self._detectors = [make() for make in settings.rank_detectors]
        self._fills_columns = settings.fills_columns
        self._reader = OperatorReader()
        self._regular: deque[IterationRows] = deque(maxlen=REFERENCE_ITERATIONS)
        self._reference_rows: list[IterationRows] = []
        self._reference_age = 0
        self._budget = ReadingBudget(self._window.window)
        self._what_if: WhatIf | None = None  # of the iteration that is being judged
        self._read_last: tuple[Attribution, float] | None = None  # newest that was read of an open verdict
        self._healthy_ns: tuple[float, float] | None = None  # mean and limit of the window when a verdict opened
        self._lateness = LatenessWatch()
        self._judged = 0
        self._planned: tuple[str, tuple[int, ...]] | None = None  # kind and ranks of what the last review alone found
        self._newest: deque[IterationRows] = deque(maxlen=NEWEST)
        self._last: int | None = None
        self._hung: int | None = None  # the last iteration before a hang that was told
        self._told: tuple[int | None, tuple[int, ...]] = (None, ())  # that iteration, and the ranks it was told of
        self._log = JudgementLog(job)

    @property
    def traffic(self) -> Traffic:
        """How much of the job's log was read back."""
        return self._reader.traffic

    def is_before(self, number: int) -> bool:
        """Whether an iteration is still to be judged."""
        return self._last is None or number > self._last

    def add_late(self, rows: IterationRows) -> None:
        """Take in what ranks tell of an iteration that was judged without them.

        If they stand in it too they are not the ones that others wait for, as a hang that was told may have said.
        """
        for at, known in enumerate(self._newest):
            if known.number == rows.number and rows.columns["unended"].any():
                self._newest[at], self._hung = join_rows([known, rows]), None

    def judge(self, rows: IterationRows, announcements: Announcements, read_back: ReadBack) -> None:
        """Judge one iteration; rows of all ranks that delivered it."""
        self._last = rows.number
        self._newest.append(rows)
        self._reader.traffic.flowed += int(rows.columns["operators"].sum())
        self._reader.know(announcements)
        if self._judged < STAGES_WITHIN:
            self._reader.infer_stages(rows)
        reference_ns = self._window.mean_ns
        is_irregular: bool | None = None
        verdict_ids: tuple[str, ...] = ()
        if rows.phase == "train":
            is_irregular = self._window.judge(rows.elapsed_ns)
            late_of_stage_ns = late_of(rows, self._known_topology, self._regular)
            late_ns = latest_ranks(late_of_stage_ns, rows.columns["rank"].tolist())
            observation = self._look_into(rows, late_ns, read_back, is_irregular=bool(is_irregular))
            verdict_ids = self._tell(observation, late_ns)
            is_suspect = observation.attribution is not None or observation.is_unread
            self._learn(rows, is_irregular, is_suspect)
            self._review(read_back)
        self._log.ranks.append(rank_columns(rows, self._score(rows, is_irregular)))
        self._log.iterations.append(
            JudgedIteration(
                job=self.job,
                attempt=self.attempt,
                iteration=rows.number,
                start_ns=rows.start_ns,
                elapsed_ns=rows.elapsed_ns,
                reference_ns=reference_ns,
                phase=rows.phase,
                is_irregular=is_irregular,
                ranks_reported=len(rows),
                verdict_ids=verdict_ids,
            )
        )

    def close(self, reason: str, announcements: Announcements, read_back: ReadBack) -> None:
        """Close the verdicts that are open; say so if the job ended in a hang."""
        self._reader.know(announcements)
        self._log.verdicts += self._tracker.close(reason, self._known_topology)
        self._log.verdicts += self._hang(reason, read_back)

    def drain(self, announced: Sequence[Announcement]) -> Judgements:
        """Return what is new, oldest first, and forget it."""
        return self._log.drain(announced)

    # --- blame ------------------------------------------------------------------------------------------------------

    def _is_worth_a_look(self, elapsed_ns: float, latest: Latest | None) -> bool:
        """Whether an iteration is suspect for one rank, late in it by chance or again and again."""
        if latest is None or not latest.stands_out:
            return False
        worth_ns = self._window.worth_ns
        longer_ns = self._window.rise_ns if latest.lasts else elapsed_ns - self._window.level_ns
        costs = longer_ns > LATE_COSTS * worth_ns or (latest.lasts and self._tracker.has_open)
        return latest.over_ns > worth_ns and costs

    def _look_into(
        self, rows: IterationRows, late_ns: Mapping[int, float], read_back: ReadBack, *, is_irregular: bool
    ) -> Observation:
        """Say how far an iteration stands out and, if it is suspect, where its time went."""
        self._what_if = None
        latest = self._lateness.look(late_ns)
        is_long = is_irregular or rows.elapsed_ns > min(self._healthy[1], self._window.suspect_ns)
        # What shifted the iterations before is known; while it pauses, an iteration is on its own.
        is_shifted = rows.elapsed_ns > self._window.shifted_ns and not self._tracker.is_quiet(late_ns)
        is_suspect = is_long or is_shifted or self._is_worth_a_look(rows.elapsed_ns, latest)
        attribution, is_read = self._attribute(rows, read_back) if is_suspect else (None, False)
        return Observation(
            rows.number,
            rows.elapsed_ns,
            reference_ns=self._healthy[0],
            time_ns=rows.start_ns,
            attribution=attribution,
            sigmas=(rows.elapsed_ns - self._window.level_ns) / max(self._window.noise_ns, 1.0),
            latest=latest,
            is_long=is_long,
            is_unread=is_suspect and attribution is None,
            is_carried=attribution is not None and not is_read,
            is_shifted=is_shifted,
        )

    def _tell(self, observation: Observation, late_ns: Mapping[int, float]) -> tuple[str, ...]:
        """Tell the verdicts of an iteration; return the ids of those whose cause was seen in it."""
        healthy = self._healthy
        revisions, verdict_ids = self._tracker.observe(observation, self._known_topology, late_ns, self._what_if)
        self._log.verdicts += revisions
        self._read_last = self._read_last if self._tracker.has_open else None
        attribution = None if observation.is_carried else observation.attribution
        if attribution is not None and verdict_ids:  # what no verdict explains explains nothing later
            self._read_last = attribution, observation.elapsed_ns - observation.reference_ns
        # A fault that lasts fills the window in the end; its verdict goes on against the window from before.
        self._healthy_ns = healthy if self._tracker.has_open else None
        self._lateness.learn(observation.iteration, late_ns, has_open=self._tracker.has_open)
        return verdict_ids

    @property
    def _healthy(self) -> tuple[float, float]:
        """Mean and limit that iterations are held against: the window's, or from before a verdict opened."""
        return self._healthy_ns or (self._window.mean_ns, self._window.limit_ns)

    def _attribute(self, rows: IterationRows, read_back: ReadBack) -> tuple[Attribution | None, bool]:
        """Say where a suspect iteration's time went, if that can be known, and whether it was read to know it."""
        self._renew_usual(read_back)
        if not self._reader.has_usual:
            return None, False
        self._store_patterns(rows)
        if not has_operators(rows):
            usual = usual_rates(self._reference_rows)
            return attribute_rates(rows, self._healthy[0], usual, self._known_topology), True
        excess_ns = rows.elapsed_ns - self._healthy[0]
        carried = self._carry_over(rows, excess_ns) if len(rows) > WHOLE_RANKS else None
        is_explained, is_to_be_known = carried is not None, self._is_to_be_known(rows.elapsed_ns)
        traffic = self._reader.traffic
        if len(rows) > WHOLE_RANKS and not self._budget.may_read(
            self._judged, traffic.flowed, is_explained=is_explained, is_irregular=is_to_be_known
        ):
            return carried, False
        before = traffic.read
        allowed_ns = (self._window.delta - 1) * self._healthy[0]  # what costs less is not looked into more closely
        attribution, graph = self._reader.attribute(rows, max(excess_ns, allowed_ns), read_back)
        attribution = replace(attribution, excess_ns=max(excess_ns, 0.0))
        attribution = with_rates(attribution, rows, usual_rates(self._reference_rows), self._reader.codes)
        self._budget.note(self._judged, traffic.read - before, is_explained=is_explained, is_irregular=is_to_be_known)
        self._what_if = self._reader.what_if(graph)
        self._store(graph, rows.number)
        return attribution, True

    def _carry_over(self, rows: IterationRows, excess_ns: float) -> Attribution | None:
        """Judge by evidence alone, if an open verdict says all there is to say."""
        if self._read_last is None or not self._tracker.has_open:
            return None
        if self._reader.has_quick(rows, self._read_last[0]):
            return None
        return carry_over(*self._read_last, rows.number, excess_ns, self._reader.work_excess_ns(rows))

    def _is_to_be_known(self, elapsed_ns: float) -> bool:
        """Whether an iteration is irregular, or one of a shift that no verdict explains yet."""
        is_shifted = not self._tracker.has_open and elapsed_ns > self._window.shifted_ns
        return is_shifted or elapsed_ns > self._healthy[1]

    def _store(self, graph: OperatorGraph, number: int) -> None:
        """Keep the operators of an iteration for the sinks, with how abnormal each of them is."""
        if not self._fills_columns:
            return
        names, ahead_ns, ratio = (
            self._known_topology.names,
            self._reader.clocks.ahead_ns,
            self._reader.abnormal_ratios(graph),
        )
        self._log.operators.append(operator_columns(graph, number, self.attempt, names, ahead_ns, ratio))

    def _store_patterns(self, rows: IterationRows) -> None:
        """Keep the behaviour patterns of an iteration for the sinks, with how abnormal each of them is."""
        if self._fills_columns and rows.pattern_counts.any():
            self._log.patterns.append(pattern_columns(rows, self._reference_rows, self._reader.codes))

    @property
    def has_unended(self) -> bool:
        """Whether the newest iterations, after a hang that was told, hold operators that never ended."""
        newest = (rows for rows in self._newest if self._hung is None or rows.number > self._hung)
        return any(rows.columns["unended"].any() for rows in newest)

    def _hang(self, reason: str, read_back: ReadBack) -> list[Verdict]:
        """Look in the last iterations for operators that never ended; tell it once, and again if it is of others."""
        if not self.has_unended:
            return []
        columns = self._reader.read(self._newest, read_back)
        lost = self._lost_shares(lost_shares(columns))
        trusted = {rank for rank, share in lost.items() if share <= MOST_LOST}
        hang = find_hang(columns, self._known_topology, trusted, {rank for rank in trusted if lost[rank] > 0})
        if hang is None:
            return []
        self._hung, told = self._last, self._told
        self._told = self._hung, hang.ranks
        if told == self._told:
            return []
        last = self._newest[-1]
        observation = Observation(last.number, last.elapsed_ns, self._window.mean_ns, last.start_ns, None)
        until_ns = max((a.recorded_until_ns or 0 for a in self._reader.announcements.values()), default=0) or None
        if until_ns is None and hang.since_ns is not None and reason == "silent":
            until_ns = hang.since_ns + round(self._silence_s * 1e9)  # at least
        return [self._tracker.hang(hang, observation, until_ns, reason, self._known_topology)]

    def _lost_shares(self, newest: Mapping[int, float]) -> dict[int, float]:
        """Share of its rows that each rank that logs has lost: of one that lost few, one missing is hardly lost.

        ``newest``: by the holes in their newest rows, which count where nobody said what was lost.
        """
        announced = self._reader.announcements
        operators = max(self._reader.traffic.flowed / max(len(announced), 1), 1.0)
        return {
            rank: newest.get(rank, 1.0) if one.lost_rows is None else one.lost_rows / operators
            for rank, one in announced.items()
            if one.is_logged
        }

    def _review(self, read_back: ReadBack) -> None:
        """From time to time, hold regular iterations against peers: a fault may be older than the recording."""
        self._judged += 1
        every = REVIEW_STANDING if self._tracker.has_standing else REVIEW_EVERY
        every = REVIEW_AGAIN if self._planned is not None else every
        is_due = self._judged == MIN_ITERATIONS or self._judged % every == 0
        if not is_due or self._tracker.has_blamed or len(self._regular) < MIN_REVIEWED:
            return
        rows = list(self._regular)[-REVIEWED:]
        if len(rows[-1]) <= WHOLE_RANKS:
            columns = self._reader.read(rows, read_back)
        else:
            rows, columns = self._read_odd(rows[-MIN_REVIEWED:], read_back)
            if not rows:
                return
        reviewed = look_at(rows, columns, self._reader)
        causes = self._without_new_plans(review(reviewed, self._known_topology, self._window.delta))
        observations = [
            Observation(one.number, one.elapsed_ns, one.elapsed_ns, one.start_ns, r.attribution)
            for one, r in zip(rows, reviewed, strict=True)
        ]
        self._log.verdicts += self._tracker.stand(causes, observations, self._lateness.history, self._known_topology)

    def _without_new_plans(self, causes: list[Cause]) -> list[Cause]:
        """Leave out a heavy stage or uneven data that the review before did not find: no plan is urgent."""
        before, self._planned = self._planned, None
        for cause in causes:
            if cause.kind in ("slow_stage", "imbalance"):
                self._planned = cause.kind, cause.suspects[0][0].ranks if cause.suspects else ()
        if self._planned is None or self._planned == before or self._tracker.has_standing:
            return causes
        return [cause for cause in causes if cause.kind not in ("slow_stage", "imbalance")]

    def _read_odd(
        self, rows: list[IterationRows], read_back: ReadBack
    ) -> tuple[list[IterationRows], dict[str, Array]]:
        """Read what a review of a large job needs; nothing if evidence alone shows nothing to find."""
        delta = self._window.delta
        found = ranks_to_review(rows, self._reader.codes, self._known_topology, delta)
        if rows[-1].is_untimed or (not found.is_odd and not self._tracker.has_standing):
            return [], {}
        return read_paths(rows, found, delta, self._reader, read_back)

    def _renew_usual(self, read_back: ReadBack) -> None:
        """What is usual: learned when it is first needed, kept while a verdict is open or it is not old."""
        is_old = self._reference_age > self._window.window and not self._tracker.has_open
        if len(self._regular) >= MIN_REFERENCE_ITERATIONS and (is_old or not self._reference_rows):
            self._reference_rows, self._reference_age = list(self._regular), 0
            self._reader.forget_usual()
        if not self._reader.has_usual and self._reference_rows:
            self._reader.set_usual(self._reference_rows, read_back)

    # --- what is learned --------------------------------------------------------------------------------------------

    def _learn(self, rows: IterationRows, is_irregular: bool | None, is_suspect: bool) -> None:
        """Let the window and what is usual follow the job; suspect iterations do not say what is usual."""
        self._window.learn(rows.elapsed_ns, is_irregular=is_irregular)
        self._reference_age += 1
        if not is_suspect and not self._tracker.has_open:
            self._regular.append(rows)
        if self._drift.learn(rows.elapsed_ns) and not self._tracker.has_open:
            self._window.restart(self._drift.recent_ns())
            self._regular.clear()
            self._reader.forget_usual()
            self._reference_rows, self._read_last = [], None

    def _score(self, rows: IterationRows, is_irregular: bool | None) -> Array:
        """Largest score of each rank, by the detectors of both hops."""
        score = rows.columns["score"]
        if not self._detectors:
            return score
        frame = {name: rows.columns[name] for name in ("rank", "iteration", "work_ns", "communication_ns", "tokens")}
        frame |= {name: rows.columns[name].astype(np.float64) for name in ("elapsed_ns", "operators")}
        frame["stage"] = self._known_topology.stages(rows.columns["rank"])
        for detector in self._detectors:
            score = np.fmax(score, detector.score(frame))
            if not is_irregular:
                detector.learn(frame)
        return score

    @property
    def _known_topology(self) -> Topology:
        return self._reader.topology

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values and numpy arrays; call after `drain`."""
        return {
            "job": self.job,
            "attempt": self.attempt,
            "window": self._window.state(),
            "drift": self._drift.state(),
            "tracker": self._tracker.state(),
            "codes": list(self._reader.codes),
            "stages": sorted(self._reader.stages.items()),
            "traffic": [self.traffic.flowed, self.traffic.read],
            "budget": self._budget.state(),
            "read_last": None
            if self._read_last is None
            else [attribution_to_state(self._read_last[0]), self._read_last[1]],
            "regular": [rows.state() for rows in self._regular],
            "reference_rows": [rows.state() for rows in self._reference_rows],
            "reference_age": self._reference_age,
            "healthy_ns": None if self._healthy_ns is None else [*self._healthy_ns],
            "lateness": self._lateness.state(),
            "judged": self._judged,
            "planned": None if self._planned is None else [self._planned[0], list(self._planned[1])],
            "newest": [rows.state() for rows in self._newest],
            "last": self._last,
            "hung": self._hung,
            "told": [self._told[0], list(self._told[1])],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], settings: JudgeSettings) -> IterationJudge:
        """Restore; the detectors of ranks begin anew."""
        judge = cls(state["job"], state["attempt"], settings)
        judge._window = IterationWindow.from_state(state["window"])
        judge._drift = DriftWatch.from_state(state["drift"])
        judge._tracker = VerdictTracker.from_state(state["tracker"], settings.severity)
        judge._reader = OperatorReader({name: code for code, name in enumerate(state["codes"])})
        judge._reader.stages = dict(state["stages"])
        judge._reader.traffic = Traffic(*state["traffic"])
        judge._budget = ReadingBudget.from_state(state["budget"], judge._window.window)
        last = state["read_last"]
        judge._read_last = None if last is None else (attribution_from_state(last[0]), last[1])
        judge._regular.extend(IterationRows.from_state(rows) for rows in state["regular"])
        judge._reference_rows = [IterationRows.from_state(rows) for rows in state["reference_rows"]]
        judge._reference_age = state["reference_age"]
        healthy_ns = state["healthy_ns"]
        judge._healthy_ns = None if healthy_ns is None else (healthy_ns[0], healthy_ns[1])
        judge._lateness = LatenessWatch.from_state(state["lateness"])
        judge._judged, planned = state["judged"], state.get("planned")
        judge._planned = None if planned is None else (planned[0], tuple(planned[1]))
        judge._newest.extend(IterationRows.from_state(rows) for rows in state["newest"])
        judge._last, judge._hung = state["last"], state["hung"]
        judge._told = state["told"][0], tuple(state["told"][1])
        return judge
