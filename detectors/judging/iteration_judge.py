"""Judge one iteration after the other: δ-irregular or not, where the time went, and which verdicts change.

is it irregular?                 detectors/irregular/window.py
is it suspect, and why?          suspicion.py
where did its time go?           investigation.py
who is to blame, since when?     detectors/verdicts/tracker.py
is a healthy job healthy?        standing_review.py
do detectors find anything?      detector_panel.py
do checkpoints come late?        detectors/verdicts/slow_checkpoints.py
do devices report errors?        detectors/verdicts/reported_verdicts.py
does it hang, and does it still? hang_watch.py
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.blame.reported import EventLog, onset_of, score_metrics, with_events
from irregulars.detectors.irregular.late_rank import Late, LatenessState, LatenessWatch, latest_ranks
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.irregular.window import IterationWindow, WindowState
from irregulars.detectors.job.lanes import EVERYBODY
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.judging.detector_panel import DetectorPanel, DetectorsSay, SayState, Scored
from irregulars.detectors.judging.hang_watch import HangWatch, OpenHang, OpenHangs
from irregulars.detectors.judging.investigation import Circumstances, Finding, Investigator, Level, Source
from irregulars.detectors.judging.iteration_rows import IterationRows, ReadBack, parts_of, pauses_beyond_usual
from irregulars.detectors.judging.operator_reader import Announcements, LogTraffic, OperatorReader
from irregulars.detectors.judging.reading_budget import BudgetState, ReadingBudget
from irregulars.detectors.judging.result_log import JudgementLog
from irregulars.detectors.judging.review_candidates import lateness_of
from irregulars.detectors.judging.standing_review import Plan, StandingReview, review_regular
from irregulars.detectors.judging.suspicion import Suspicion, suspicion_of
from irregulars.detectors.numerics.numerics_judge import NumericsJudge, NumericsState
from irregulars.detectors.path.critical_path import Attribution
from irregulars.detectors.plugins.stored_state import StoredDetector
from irregulars.detectors.verdicts.custom_verdicts import Moment, Others
from irregulars.detectors.verdicts.reasons import steps_of
from irregulars.detectors.verdicts.reported_verdicts import OpenReport, ReportedVerdicts
from irregulars.detectors.verdicts.slow_checkpoints import CheckpointState, SlowCheckpoints
from irregulars.detectors.verdicts.tracker import TrackerState, VerdictTracker
from irregulars.messages.announcements import Announcement
from irregulars.messages.device_events import DeviceEvent
from irregulars.messages.judgements import JudgedIteration, Judgements, Verdict
from irregulars.messages.reasons import Step
from irregulars.settings import JudgeSettings
from irregulars.state_codec import Part


@dataclass(frozen=True, slots=True)
class JudgeState:
    """The state of an `IterationJudge` and its parts; names and meanings are those of their attributes."""

    job: str
    attempt: int
    window: WindowState
    tracker: TrackerState
    codes: tuple[str, ...]
    stages: Mapping[int, int]
    traffic: LogTraffic
    budget: BudgetState
    read_last: tuple[Attribution, float] | None
    regular: tuple[Part[IterationRows], ...]
    usual_rows: tuple[Part[IterationRows], ...]
    usual_age: int
    healthy_before: Level | None
    lateness: LatenessState
    judged: int
    planned: tuple[Plan, ...]
    newest: tuple[Part[IterationRows], ...]
    last: int | None
    hung: int | None
    told: tuple[int | None, tuple[int, ...]]
    detectors: tuple[StoredDetector, ...]
    say: SayState | None
    open_hangs: tuple[OpenHang, ...]
    numerics: NumericsState | None = None
    checkpoints: CheckpointState | None = None
    events: tuple[tuple[DeviceEvent, ...], tuple[DeviceEvent, ...]] = ((), ())
    held_until: int = 0
    well_until: int | None = None
    onsets: Mapping[str, int] = field(default_factory=dict)
    reported: tuple[OpenReport, ...] = ()


class _Answer(NamedTuple):
    """Result of judging an iteration of training; the fields of `JudgedIteration` with these names."""

    verdict_ids: tuple[str, ...] = ()
    part: Step | None = None
    last_rank: int | None = None
    last_ns: float | None = None


class IterationJudge:
    """Judge the iterations of one attempt of a job in ascending order.

    `job`, `attempt`: the job and its start number. `settings`: δ, window and the detectors of ranks.
    """

    def __init__(self, job: str, attempt: int, settings: JudgeSettings) -> None:
        self.job = job
        self.attempt = attempt
        self._silence_s = settings.silence_s
        self._window = IterationWindow(delta=settings.delta, window=settings.window)
        self._tracker = VerdictTracker(job, attempt, settings.severity)
        self._panel = DetectorPanel(settings)
        self._say = DetectorsSay(job, attempt, settings.severity, self._panel)
        self._numerics = NumericsJudge(job, attempt)
        self._checkpoints = SlowCheckpoints(job, attempt, settings.severity)
        self._reported = ReportedVerdicts(job, attempt, settings.event_verdicts)
        self._watch = settings.watch
        self._reader = OperatorReader()
        self._log = JudgementLog(job, attempt, fills_columns=settings.fills_columns)
        self._investigator = Investigator(self._reader, ReadingBudget(settings.window), self._log)
        self._healthy_before: Level | None = None  # the window's level before the newest verdict's fault
        self._held_until = 0  # how many iterations of training are judged when the window holds no more of that fault
        self._lateness = LatenessWatch()
        self._review = StandingReview()
        self._hangs = HangWatch()
        self._open_hangs = OpenHangs()
        self._events = EventLog()
        self._onsets: dict[str, int] = {}  # of open verdicts, ns: when their first revisions had their causes begin
        self._judged = 0  # iterations of training
        self._last: int | None = None  # number of the last iteration

    @property
    def traffic(self) -> LogTraffic:
        """How much of the job's log was read back."""
        return self._reader.traffic

    @property
    def newest_ns(self) -> int | None:
        """Start of the newest iteration, ns since the epoch; None before the first."""
        return self._hangs.newest[-1].start_ns if self._hangs.newest else None

    def successor(self, settings: JudgeSettings) -> IterationJudge:
        """Return the judge of the iterations to come, in which ranks have other places: it has all to learn anew."""
        judge = IterationJudge(self.job, self.attempt, settings)
        judge._reader.traffic, judge._last, judge._events = self.traffic, self._last, self._events
        return judge

    def follow(self, settings: JudgeSettings) -> None:
        """Judge by another δ, other costs and another silence from here on; nothing else may differ.

        None of them is in a state, nor a limit made of one: the window keeps times as they were clipped by the δ of
        their iteration, and the level from before a verdict is kept without δ.
        """
        self._window.delta = settings.delta
        self._silence_s = settings.silence_s
        self._tracker.follow(settings.severity)
        self._say.follow(settings.severity)
        self._checkpoints.follow(settings.severity)

    def is_before(self, number: int) -> bool:
        """Whether an iteration is still to be judged."""
        return self._last is None or number > self._last

    def pass_over(self, number: int) -> None:
        """Take in that an iteration is not judged; its rows that are still to come are late."""
        self._last = number

    def add_late(self, rows: IterationRows) -> None:
        """Take in the rows of ranks that came after their iteration was judged without them."""
        self._hangs.add_late(rows)

    def note_events(self, events: Sequence[DeviceEvent]) -> None:
        """Take in the reports of devices and hosts."""
        self._events.add(events)

    def judge(self, rows: IterationRows, announcements: Announcements, read_back: ReadBack) -> None:
        """Judge one iteration; rows of all ranks that delivered it."""
        self._last, told = rows.number, len(self._log.verdicts)
        self._log.verdicts += self._open_hangs.go_on(rows)
        self._hangs.add(rows)
        self._reader.traffic.flowed += int(rows.columns["operators"].sum())
        self._reader.set_announcements(announcements)
        ended_ns = rows.start_ns + rows.elapsed_ns
        events = self._events.until(ended_ns)
        self._tracker.note_events(events, self._topology)
        # Stages of an unannounced pipeline show in the first iterations, or not at all.
        if self._judged < IRREGULAR.min_iterations:
            self._reader.infer_stages(rows)
        # Before the window learns: the level that this very iteration is held against.
        reference_ns = self._healthy.mean_ns
        is_irregular: bool | None = None
        answer = _Answer()
        scored = self._panel.score(rows, self._topology.stages(rows.columns["rank"]))
        since_ns = self._say.metrics_since_ns
        metrics = score_metrics(events, self._events.past, rows.columns["rank"], self._topology, since_ns)
        if metrics is not None:
            scored = scored.with_metrics(metrics)
        if rows.phase == "train":
            is_irregular = self._window.judge(rows.elapsed_ns)
            answer = self._judge_training(rows, scored, read_back, is_irregular=is_irregular)
        others = [
            self._reported.observe(events, self._topology, rows.number, ended_ns),
            self._numerics.observe(rows, self._topology, rows.start_ns, rows.phase),
        ]
        if rows.phase == "checkpoint" and not rows.is_untimed:
            others.append(self._judge_checkpoint(rows))
        for revisions, seen_in in others:
            self._log.verdicts += revisions
            answer = answer._replace(verdict_ids=(*answer.verdict_ids, *seen_in))
        self._log.add_ranks(rows, scored.largest)
        self._log.add_scores(rows, scored.named, is_irregular=bool(is_irregular))
        # Learned from irregular iterations, a fault would become the normal.
        # None, too early to tell or no training, counts as regular: detectors must begin somewhere.
        if not is_irregular:
            self._panel.learn(scored)
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
                verdict_ids=answer.verdict_ids,
                part=answer.part,
                last_rank=answer.last_rank,
                last_ns=answer.last_ns,
            )
        )
        self._weigh_by_events(told)

    def close(self, reason: str, announcements: Announcements, read_back: ReadBack) -> None:
        """Close the verdicts that are open, and open one if the job hangs.

        A hang stays open while its job is silent: `close_standing` is for the job that is forgotten.
        """
        self._reader.set_announcements(announcements)
        told = len(self._log.verdicts)
        # No iteration will come whose end could let the last events count.
        events = self._events.until(math.inf)
        self._log.verdicts += self._reported.observe(events, self._topology, self._last or 0, self.newest_ns or 0)[0]
        self._log.verdicts += self._say.testify(self._tracker.close(reason, self._topology))
        if reason != "silent":
            self.close_standing(reason)
        self._log.verdicts += self._hang(reason, read_back)
        self._log.verdicts += self._say.close(reason, self._topology)
        self._log.verdicts += self._numerics.close(reason, self._topology)
        self._log.verdicts += self._checkpoints.close(reason, self._topology)
        self._weigh_by_events(told)

    def _weigh_by_events(self, told: int) -> None:
        """Weigh the verdicts after the first `told` by the reports of devices so far."""
        events = self._events.past
        for at, one in enumerate(self._log.verdicts[told:], told):
            if one.time_ns is not None:
                onset_ns = self._onsets.setdefault(one.verdict_id, onset_of(one, one.time_ns))
                self._log.verdicts[at] = with_events(one, events, onset_ns, self._topology)
            if one.state == "closed":
                self._onsets.pop(one.verdict_id, None)

    def stand(self, still_s: float) -> None:
        """Take in for how long the job has not moved: so long has a hang lasted that no iteration ends."""
        self._open_hangs.stand(still_s)

    def close_standing(self, reason: str) -> None:
        """Close the verdicts that last while a job is silent: on hangs, and on devices' reports."""
        self._log.verdicts += self._open_hangs.close(reason) + self._reported.close(reason, self._topology)

    def drain(self, announced: Sequence[Announcement]) -> Judgements:
        """Return the new judgements, oldest first, and forget them; reasons get δ, which changes between calls."""
        self._log.verdicts = [
            one
            if one.explanation is None
            else replace(one, explanation=replace(one.explanation, delta=self._window.delta))
            for one in self._log.verdicts
        ]
        return self._log.drain(announced)

    @property
    def has_unended(self) -> bool:
        """Whether the newest iterations hold operators that never ended, on which no verdict was opened yet."""
        return self._hangs.has_unended

    @property
    def open_kinds(self) -> list[tuple[str, str]]:
        """Severity and kind of each verdict that is open."""
        hangs = [(one.verdict.severity or "page", one.verdict.kind) for one in self._open_hangs.open]
        others = (self._tracker, self._say, self._numerics, self._checkpoints, self._reported)
        return [*hangs, *(kind for one in others for kind in one.open_kinds)]

    def _judge_checkpoint(self, rows: IterationRows) -> tuple[list[Verdict], tuple[str, ...]]:
        allowed_ns = (self._window.delta - 1) * self._healthy.mean_ns
        span_ns = (rows.start_ns, rows.start_ns + rows.elapsed_ns)
        writes = rows.writes(self._investigator.regular, list(self._hangs.newest)[-2:-1])
        return self._checkpoints.observe(writes, self._topology, rows.number, span_ns, allowed_ns)

    # --- an iteration of training -----------------------------------------------------------------------------------

    def _judge_training(
        self, rows: IterationRows, scored: Scored, read_back: ReadBack, *, is_irregular: bool | None
    ) -> _Answer:
        """Judge an iteration, and learn from it."""
        lateness = lateness_of(rows, self._topology, self._investigator.regular)
        late_ns = latest_ranks(*lateness, rows.columns["rank"])
        # Where many ranks are late at once, the latest ones don't show whether an accused one still is. Of one
        # without a row, whose source died say, it is not known.
        (rank, ranks_late_ns), accused = lateness, self._tracker.accused
        is_accused = np.isin(rank, list(accused))
        known_ns = dict(zip(rank[is_accused].tolist(), ranks_late_ns[is_accused].tolist(), strict=True))
        accused_ns = {**late_ns, **dict.fromkeys(accused, math.nan), **known_ns}
        observation, suspicion, finding = self._observe(rows, late_ns, accused_ns, read_back)
        if self._watch is not None:
            self._watch(observation, self._window, self._topology)
        self._say.hear(scored)
        silent = accused.keys() - (rows.columns["rank"].tolist() if accused else ()) - self._topology.unlogged
        verdict_ids = self._update_verdicts(observation, finding, accused_ns, silent)
        # Detectors open verdicts of their own; to these counts the loss that no other verdict explains.
        one = observation
        lost_ns = {one.iteration: float(one.excess_ns)} if is_irregular and not verdict_ids else {}
        moment = Moment(one.iteration, one.time_ns, float(one.elapsed_ns), float(one.reference_ns), lost_ns)
        others = Others(self._tracker.accused, self._tracker.explained)
        revisions, strange_in = self._say.observe(moment, scored, others, self._topology)
        self._log.verdicts += revisions
        verdict_ids += strange_in
        # Let the window and the usual values follow the job; suspect iterations show no usual values
        has_open = self._tracker.has_open
        self._lateness.learn(rows.number, late_ns, has_open=has_open)
        had_shift = self._window.has_shift
        self._window.learn(rows.elapsed_ns, is_irregular=is_irregular, has_open=has_open)
        self._investigator.learn(rows, is_regular=not suspicion and not has_open)
        if self._window.has_shift and not had_shift:
            self._investigator.unlearn(self._window.shifted_ns, IRREGULAR.shift_iterations)
        self._judged += 1
        if self._judged == IRREGULAR.min_iterations:  # warm-up, as long as two others or more, is not usual
            self._investigator.unlearn(2 * self._window.level_ns, IRREGULAR.min_iterations)
        self._review_if_due(read_back)
        last_rank, last_ns = next(((rank, ns) for rank, ns in late_ns.items() if ns > 0), (None, None))
        part = self._longest_part(observation) if is_irregular else None
        return _Answer(verdict_ids, part, last_rank, last_ns)

    def _longest_part(self, observation: Observation) -> Step | None:
        """Return the part of the path that took most beyond its usual time.

        None where all ranks worked longer, or one that logs nothing may have been late.
        """
        attribution = observation.attribution
        if attribution is None or observation.is_carried:
            return None
        pieces = [one for one in attribution.pieces.values() if one.lane.kind != "nic"]
        longest = max(pieces, key=lambda one: one.excess_ns, default=None)
        least_ns = max(attribution.path_excess_ns.get(EVERYBODY, 0.0), 0.0)
        if longest is None or longest.excess_ns <= least_ns or self._topology.hides_late_ranks(longest.lane):
            return None
        return next(iter(steps_of(attribution, (), self._topology)[-1:]), None)

    def _observe(
        self, rows: IterationRows, late_ns: Late, accused_ns: Late, read_back: ReadBack
    ) -> tuple[Observation, Suspicion, Finding]:
        """Find whether an iteration is suspect and, if so, where its time went."""
        healthy, has_open = self._healthy, self._tracker.has_open
        latest = self._lateness.look(late_ns)
        suspicion = suspicion_of(
            rows.elapsed_ns,
            latest,
            self._window,
            healthy.limit.at(self._window.delta),
            has_open=has_open,
            is_quiet=self._tracker.is_quiet(accused_ns),
        )
        finding = Finding()
        if suspicion:
            now = Circumstances(self._judged, healthy, self._window.delta, self._window.window, has_open)
            is_worth_reading = suspicion.is_worth_reading
            finding = self._investigator.investigate(rows, now, read_back, is_worth_reading=is_worth_reading)
        observation = Observation(
            rows.number,
            rows.elapsed_ns,
            reference_ns=healthy.usual_ns,
            time_ns=rows.start_ns,
            attribution=finding.attribution,
            # 1 ns: the iterations of a simulator may have no noise at all.
            sigmas=(rows.elapsed_ns - self._window.level_ns) / max(self._window.noise_ns, 1.0),
            latest=latest,
            is_long=suspicion.is_long,
            is_unread=bool(suspicion) and finding.source is Source.UNKNOWN,
            is_carried=finding.source is Source.CARRIED,
            is_shifted=suspicion.is_shifted,
            spread_ns=self._window.spread_ns(max(0.0, rows.elapsed_ns - healthy.mean_ns)),
            # With the iteration before: its pauses behind its last operator delay this one.
            pauses=pauses_beyond_usual(list(self._hangs.newest)[-2:], self._investigator.usual_rows)
            if finding.attribution is not None
            else None,
        )
        return observation, suspicion, finding

    def _update_verdicts(
        self, observation: Observation, finding: Finding, accused_ns: Late, silent: Collection[int]
    ) -> tuple[str, ...]:
        """Let verdicts open, go on and close; return the ids of those whose cause was seen in the iteration."""
        healthy = self._healthy
        revisions, verdict_ids = self._tracker.observe(
            observation, self._topology, accused_ns, finding.what_if, silent
        )
        self._log.verdicts += self._say.testify(revisions)
        has_open = self._tracker.has_open
        excess_ns = observation.elapsed_ns - observation.reference_ns
        self._investigator.note_seen(finding, excess_ns, has_open=has_open, is_in_verdict=bool(verdict_ids))
        # A fault that lasts fills the window in the end. Its verdict goes on against the level from before it.
        # So do iterations after it, until those with the fault have left the window.
        if has_open:
            self._healthy_before, self._held_until = healthy, self._judged + self._window.window
        elif self._judged >= self._held_until:
            self._healthy_before = None
        return verdict_ids

    @property
    def _healthy(self) -> Level:
        """The level that iterations are held against: the window's, or that from before a verdict opened.

        Once no verdict is open, what is suspect is again the window's to say: the job's level may have changed.
        """
        level, before = (
            Level(self._window.healthy_ns, self._window.limit, self._window.usual_ns),
            self._healthy_before,
        )
        if before is None or self._tracker.has_open:
            return before or level
        return level._replace(
            mean_ns=min(level.mean_ns, before.mean_ns), usual_ns=min(level.usual_ns, before.usual_ns)
        )

    # --- reviews and hangs ------------------------------------------------------------------------------------------

    def _review_if_due(self, read_back: ReadBack) -> None:
        """Hold regular iterations against peers now and then, unless a verdict accuses somebody already."""
        has_standing = self._tracker.has_standing
        if not self._review.is_due(self._judged, has_standing=has_standing) or self._tracker.has_blamed:
            return
        regular, delta = self._investigator.regular, self._window.delta
        found = review_regular(
            regular, self._reader, delta, read_back, has_standing=has_standing, judged=self._judged
        )
        if found is None:
            # A later review would else confirm it however long it was gone, and reviews would stay as frequent.
            self._review.planned = ()
            return
        causes, observations = found
        causes = self._review.confirmed(causes, [one for one in causes if self._tracker.is_standing(one)])
        history = self._review.unreviewed(self._lateness.history, regular[-1].number)
        revisions = self._tracker.review_standing(causes, observations, history, self._topology)
        self._log.verdicts += self._say.testify(revisions)

    def _hang(self, reason: str, read_back: ReadBack) -> list[Verdict]:
        """Return the verdict on a hang of the newest iterations, if there is one that was not published before.

        The revisions that close earlier hangs come after it, so that a host which both accuse is accused all along.
        """
        # Where no source gave the end of its recording, no hang "began before" it (a time below 0).
        until_ns = max((a.recorded_until_ns or 0 for a in self._reader.announcements.values()), default=0) or None
        stood_since_ns = (until_ns or 0) - IRREGULAR.level_iterations * self._window.mean_ns
        found = self._hangs.look(self._reader, read_back, math.inf if reason == "silent" else stood_since_ns)
        if found is None:
            return []
        hang, columns = found
        self._log.add_hung(columns, self._topology.names)
        last = self._hangs.newest[-1]
        observation = Observation(last.number, last.elapsed_ns, self._window.mean_ns, last.start_ns, None)
        if until_ns is None and hang.since_ns is not None and reason == "silent":
            until_ns = hang.since_ns + round(self._silence_s * 1e9)  # it has lasted for the silence at least
        verdict = self._tracker.hang(hang, observation, until_ns, reason, self._topology)
        return [verdict, *self._open_hangs.add(verdict, hang.since_ns, last.start_ns)]

    # --- snapshots --------------------------------------------------------------------------------------------------

    @property
    def cold_detectors(self) -> tuple[str, ...]:
        """Detectors that began cold although a snapshot should have held them."""
        return self._panel.cold

    @property
    def _topology(self) -> Topology:
        return self._reader.topology

    def state(self) -> JudgeState:
        """Everything that `from_state` needs; call it after `drain`."""
        own = self._investigator
        return JudgeState(
            job=self.job,
            attempt=self.attempt,
            window=self._window.state(),
            tracker=self._tracker.state(),
            codes=tuple(self._reader.codes),
            stages=dict(self._reader.stages),
            traffic=replace(self.traffic),
            budget=own.budget.state(),
            read_last=own.read_last,
            regular=parts_of(own.regular),
            usual_rows=parts_of(own.usual_rows),
            usual_age=own.usual_age,
            healthy_before=self._healthy_before,
            held_until=self._held_until,
            lateness=self._lateness.state(),
            judged=self._judged,
            planned=self._review.planned,
            newest=parts_of(self._hangs.newest),
            last=self._last,
            hung=self._hangs.hung,
            told=self._hangs.told,
            detectors=self._panel.states(),
            say=self._say.state(),
            open_hangs=self._open_hangs.open,
            numerics=self._numerics.state(),
            checkpoints=self._checkpoints.state(),
            events=self._events.state(),
            well_until=self._review.well_until,
            onsets=dict(self._onsets),
            reported=self._reported.state(),
        )

    @classmethod
    def from_state(cls, state: JudgeState, settings: JudgeSettings) -> IterationJudge:
        """Restore."""
        judge = cls(state.job, state.attempt, settings)
        judge._window = IterationWindow.from_state(state.window, delta=settings.delta, window=settings.window)
        judge._tracker = VerdictTracker.from_state(state.tracker, settings.severity)
        judge._reader.codes = {name: code for code, name in enumerate(state.codes)}
        judge._reader.stages = dict(state.stages)
        judge._reader.traffic = replace(state.traffic)
        own = judge._investigator
        own.budget = ReadingBudget.from_state(state.budget, judge._window.window)
        own.read_last = state.read_last
        own.regular.extend(part.value for part in state.regular)
        own.usual_rows, own.usual_age = [part.value for part in state.usual_rows], state.usual_age
        before = state.healthy_before
        if before is not None and math.isnan(before.usual_ns):  # of a worker without it
            before = before._replace(usual_ns=before.mean_ns)
        judge._healthy_before, judge._held_until = before, state.held_until
        judge._lateness = LatenessWatch.from_state(state.lateness)
        judge._judged, judge._review.planned = state.judged, state.planned
        judge._review.well_until = state.well_until
        judge._hangs.newest.extend(part.value for part in state.newest)
        judge._last, judge._hangs.hung, judge._hangs.told = state.last, state.hung, state.told
        judge._open_hangs = OpenHangs(state.open_hangs)
        judge._panel.restore(state.detectors)
        judge._say = DetectorsSay(state.job, state.attempt, settings.severity, judge._panel, state.say)
        judge._numerics = NumericsJudge(state.job, state.attempt, state.numerics)
        judge._checkpoints = SlowCheckpoints(state.job, state.attempt, settings.severity, state.checkpoints)
        named = settings.event_verdicts
        judge._reported = ReportedVerdicts(state.job, state.attempt, named, state.reported)
        judge._events, judge._onsets = EventLog(*state.events), dict(state.onsets)
        return judge
