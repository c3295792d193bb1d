"""The life of verdicts: they open, are followed while their cause is seen, and close when it is over.

`opening.py` decides when a cause was seen often enough to open one, `single_spikes.py` when a single iteration does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from irregulars.detectors.blame.causes import Cause, is_sure
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.blame.reported import reports_about
from irregulars.detectors.blame.what_if import Recoveries, Recovery, WhatIf, recovered_ratio
from irregulars.detectors.irregular.late_rank import HISTORY
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.path.find_hang import Hang
from irregulars.detectors.verdicts.counted_verdicts import merged_text, next_ordinal
from irregulars.detectors.verdicts.open_verdict import History, OpenVerdict
from irregulars.detectors.verdicts.opening import (
    Evidence,
    is_same,
    stands_alone,
    verdict_on_recurring,
    verdict_on_standing,
)
from irregulars.detectors.verdicts.revision import hang_verdict, revision_of
from irregulars.detectors.verdicts.severity import severity_now
from irregulars.detectors.verdicts.single_spikes import SpikeWatch, clear_cause
from irregulars.detectors.verdicts.suspicions import Suspicion, Suspicions
from irregulars.messages.device_events import DeviceEvent
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import GPU
from irregulars.settings import SeverityLimits


@dataclass(frozen=True, slots=True)
class TrackerState:
    """The state of a `VerdictTracker`."""

    job: str
    attempt: int
    recent: tuple[Observation, ...]
    spikes: tuple[Observation, ...]
    suspicions: tuple[Suspicion, ...]
    recoveries: tuple[Recovery, ...]
    told_uneven: int
    ordinals: Mapping[int, int]
    open: tuple[OpenVerdict, ...]
    elapsed_ns: tuple[tuple[int, float], ...] = ()  # empty in a state of a worker without it


class VerdictTracker:
    """Turn judged iterations, in their order, into revisions of verdicts.

    `job`, `attempt`: the job and its start number: part of each verdict's id. `limits`: from which cost on a verdict
    is urgent.
    """

    def __init__(self, job: str, attempt: int, limits: SeverityLimits | None = None) -> None:
        self.job = job
        self.attempt = attempt
        self._limits = limits or SeverityLimits()
        self._recent: deque[Observation] = deque(maxlen=IRREGULAR.recent)
        self._elapsed_ns: deque[tuple[int, float]] = deque(maxlen=HISTORY)
        self._spikes = SpikeWatch()
        self._suspicions = Suspicions()
        self._recoveries = Recoveries()
        self._told_uneven = -1  # the last iteration that a closed verdict was about
        self._open: list[OpenVerdict] = []
        self._ordinals: dict[int, int] = {}

    def follow(self, limits: SeverityLimits) -> None:
        """Call verdicts urgent by other limits from here on."""
        self._limits = limits

    @property
    def has_open(self) -> bool:
        """Whether a verdict is open that irregular iterations opened."""
        return any(verdict.standing is None for verdict in self._open)

    @property
    def open_kinds(self) -> list[tuple[str, str]]:
        """Severity and kind of each verdict that is open."""
        return [(one.severity, one.cause.kind) for one in self._open]

    @property
    def has_blamed(self) -> bool:
        """Whether one of these accuses somebody, of late and in most iterations."""
        return any(
            one.standing is None and one.cause.suspects
            and one.quiet < IRREGULAR.min_iterations and 2 * one.seen > one.judged
            for one in self._open
        )  # fmt: skip

    @property
    def has_standing(self) -> bool:
        """Whether a verdict is open on a fault without a healthy past."""
        return any(verdict.standing is not None for verdict in self._open)

    def is_standing(self, cause: Cause) -> bool:
        """Whether a verdict is open on this fault without a healthy past."""
        return any(verdict.standing is not None and is_same(cause, verdict.cause) for verdict in self._open)

    @property
    def accused(self) -> dict[int, str]:
        """Ranks of the first suspect of each open verdict, with its id."""
        return {rank: one.verdict_id for one in self._open if one.first_device for rank in one.first_device.ranks}

    @property
    def explained(self) -> dict[int, str]:
        """The newest iterations that showed the cause of an open verdict, with its id."""
        return {at: one.verdict_id for one in self._open for at in one.shown}

    @property
    def _working(self) -> frozenset[Device]:
        """Devices that work longer though their transfers are as always, as open verdicts know."""
        return frozenset(one.first_device for one in self._open if one.first_device and one.is_working)

    # --- iterations -------------------------------------------------------------------------------------------------

    def observe(
        self,
        observation: Observation,
        topology: Topology,
        late_ns: Mapping[int, float] = MappingProxyType({}),
        what_if: WhatIf | None = None,
        silent: Collection[int] = (),
    ) -> tuple[list[Verdict], tuple[str, ...]]:
        """Take in one judged iteration.

        `late_ns`: by how much ranks work longer than their stage; those of `accused` suffice. NaN: of a rank it is
        not known. `what_if`: the iteration, to be run again; None where its operators were not read. `silent`: ranks
        of `accused` that log and have no row. Returns revisions of verdicts, and the ids of the verdicts whose cause
        was seen in this iteration.
        """
        # Counted here, as an iteration's number is a name and no count.
        observation = replace(observation, place=self._recent[-1].ordinal + 1 if self._recent else 0)
        self._recent.append(observation)
        self._elapsed_ns.append((observation.iteration, float(observation.elapsed_ns)))
        is_suspect = observation.is_long or observation.is_shifted or observation.has_late_rank
        if observation.attribution is not None and is_suspect:
            self._suspicions.note(observation, topology)
        for verdict in self._open:
            ranks = () if verdict.first_device is None else verdict.first_device.ranks
            verdict.unheard = verdict.unheard + 1 if silent and ranks and set(ranks) <= set(silent) else 0
            # First, so that an iteration whose path passes another lane of a switch still shows its cause.
            verdict.take_in_lanes(observation, topology)
        seen_in = [verdict for verdict in self._open if verdict.is_seen(observation, late_ns)]
        revisions = self._follow(observation, seen_in, late_ns, topology, what_if)
        if observation.attribution is not None:
            opened = self._open_recurring(topology, observation, what_if)
            seen_in += opened
            revisions += [self._revise(verdict, "opened", topology) for verdict in opened]
            if not any(_claims(verdict) for verdict in seen_in):
                self._spikes.add(observation, topology, what_if)
        for verdict in seen_in:
            if verdict.cause.suspects:
                self._suspicions.tell(verdict.cause.explained_ns.keys() | {observation.iteration})
        # After verdicts went on and opened: one of them may explain a spike that is due.
        revisions += self._decide_spikes(self._recent, topology)
        lasting: list[OpenVerdict] = []
        merged: dict[OpenVerdict, str] = {}  # with the one that tells of it
        for verdict in (one for one in self._open if not one.is_over):
            # Told by one that goes on itself: else nobody would tell of it.
            if teller := self._teller(lasting, verdict):
                merged[verdict] = teller.verdict_id
            else:
                lasting.append(verdict)
        over = [one for one in self._open if one not in lasting and one not in merged]
        revisions += self._close(over, "recovered", topology)
        for one, teller_id in merged.items():
            [last] = self._close([one], "merged", topology)
            revisions.append(replace(last, evidence=merged_text(last.evidence, teller_id)))
        return revisions, tuple(verdict.verdict_id for verdict in seen_in)

    def is_quiet(self, late_ns: Mapping[int, float]) -> bool:
        """Whether verdicts are open, and lateness alone shows that none of their causes is there."""
        return bool(self._open) and all(verdict.is_absent(late_ns) for verdict in self._open)

    def note_events(self, events: Sequence[DeviceEvent], topology: Topology) -> None:
        """Have open verdicts published again whose suspects' devices reported something new.

        A link that flaps reports errors each second.
        """
        for verdict in self._open if events else ():
            ranks = {rank for device, _ in verdict.cause.suspects for rank in device.ranks}
            new = reports_about(events, ranks, topology).difference(verdict.reported)
            verdict.has_news |= bool(new)
            verdict.reported += tuple(sorted(new))

    def review_standing(
        self,
        causes: Sequence[Cause],
        reviewed: Sequence[Observation],
        history: History,
        topology: Topology,
    ) -> list[Verdict]:
        """Take in the causes of a review: open verdicts on standing faults, confirm open ones, close the others.

        `reviewed`: the reviewed iterations; their attributions are against peers. `history`: how long it has been so.
        """
        revisions = self._close(self._unconfirmed(causes, reviewed, history), "recovered", topology)
        corrected = [verdict for verdict in self._open if verdict.standing is not None and verdict.has_changed]
        revisions += [self._revise(verdict, "changed", topology) for verdict in corrected]
        for cause in causes:
            if not self._is_followed(cause):
                verdict = verdict_on_standing(self._name, cause, reviewed, history, dict(self._elapsed_ns))
                self._spikes.forget(cause, verdict.first)
                self._open.append(verdict)
                revisions.append(self._revise(verdict, "opened", topology))
        return revisions

    def hang(self, hang: Hang, last: Observation, until_ns: int | None, reason: str, topology: Topology) -> Verdict:
        """Return the verdict that the job hangs in the iteration `last`: open if it is silent, else closed at once.

        `until_ns`: when its recording ended, ns since the epoch; None: not known. `reason`: why that ended.
        """
        name = self._name(last.iteration)
        return hang_verdict(name, hang, last, until_ns, reason, self.job, self.attempt, topology)

    def close(self, reason: str, topology: Topology) -> list[Verdict]:
        """Close the open verdicts, because the job ended, restarted or fell silent."""
        spikes = self._decide_spikes(None, topology)
        for one in self._open:
            one.presume(self._recent[-1])
        return spikes + self._close(list(self._open), reason, topology)

    # --- how a verdict opens ----------------------------------------------------------------------------------------

    def _open_recurring(self, topology: Topology, newest: Observation, what_if: WhatIf | None) -> list[OpenVerdict]:
        """Open verdicts on causes that were seen often enough."""
        # One that was taken for like another does not show that the same rank was late again.
        recent = [o for o in self._recent if o.attribution is not None and not o.is_carried]
        is_uneven = any(verdict.cause.kind == "imbalance" for verdict in self._open)
        starved = {one.first_device for one in self._open if one.is_working and one.is_starved}
        evidence = Evidence(recent, self._suspicions, is_uneven, topology, self._working - starved)
        causes = evidence.find(self._new_imbalance(topology))
        # Causes that may be accused one day are replayed first: the newest replay decides as well.
        for cause in causes:
            if len(cause.explained_ns) >= JOB.another and is_sure(cause) and not self._is_followed(cause):
                beside = [*causes, *evidence.late_beside(cause)]
                ratio = recovered_ratio(cause, beside, newest, what_if)
                self._recoveries.note(newest.iteration, cause, ratio)
        opened, told = list[OpenVerdict](), self._told_last
        for cause in causes:
            may_accuse = is_sure(cause) and evidence.is_seen_enough(cause)
            if may_accuse and not self._is_followed(cause) and not self._hardly_comes_back(cause):
                verdict = verdict_on_recurring(
                    self._name, cause, evidence.recent, self._suspicions, dict(self._elapsed_ns), told
                )
                verdict.note_recovery(newest, what_if)
                self._open.append(verdict)
                # Else they would be published a second time, as single spikes.
                self._spikes.forget(cause)
                opened.append(verdict)
        return opened

    def _new_imbalance(self, topology: Topology) -> list[Cause]:
        """Return uneven data, if the newest suspect iterations look like it and no verdict explains any of them."""
        explained = self._suspicions.uneven(topology)
        if not explained:
            return []
        is_new = max(explained) == self._recent[-1].iteration and min(explained) > self._told_last
        return [Cause("imbalance", (), frozenset(), None, explained)] if is_new else []

    @property
    def _told_last(self) -> int:
        """The last iteration that a verdict explains."""
        return max([self._told_uneven, *(verdict.last for verdict in self._open if verdict.standing is None)])

    def _hardly_comes_back(self, cause: Cause) -> bool:
        """Whether most of a cause's estimated cost is lost without it as well."""
        ratio = self._recoveries.typical(cause)
        return ratio is not None and ratio < JOB.most

    def _decide_spikes(self, recent: Sequence[Observation] | None, topology: Topology) -> list[Verdict]:
        """Open verdicts on single iterations that are due, clear, and in no verdict, and on those since like them."""
        revisions = []
        for spike in self._spikes.take_due(recent, topology):
            cause = self._cause_of_spike(spike, topology)
            if cause is None:
                continue
            verdict = verdict_on_recurring(self._name, cause, [spike], self._suspicions)
            # It was not open meanwhile, and so did not follow the iterations since.
            for other in (one for one in self._recent if one.ordinal > spike.ordinal):
                verdict.pass_by(other)
                if verdict.is_seen(other, {}):
                    verdict.tried += 1
                    verdict.add(other)
                else:
                    verdict.quiet += 1
                    verdict.pass_unseen(other)
            self._open.append(verdict)
            revisions.append(self._revise(verdict, "opened", topology))
        return revisions

    def _cause_of_spike(self, spike: Observation, topology: Topology) -> Cause | None:
        """Return the cause that made a single iteration long, if it is clear and in no verdict; else None."""
        around = [one for one in self._open if one.first <= spike.iteration <= one.last]
        if any(map(_claims, around)):
            return None
        cause = clear_cause(spike, topology)
        if cause is None:
            return None
        # Where data are uneven, a heavy batch is no pause: a rank must be later than the latest ones are there.
        device = cause.first_device
        if around and device is not None and device.kind == GPU and not spike.is_late(cause):
            return None
        if self._is_followed(cause) or not stands_alone(cause, [spike], self._suspicions, topology):
            return None
        hardly_comes_back = spike.recovers_ratio is not None and spike.recovers_ratio < JOB.most
        return None if hardly_comes_back else cause

    def _is_followed(self, cause: Cause) -> bool:
        """Whether an open verdict already has this cause."""
        return any(is_same(cause, verdict.cause) for verdict in self._open)

    @staticmethod
    def _teller(others: Sequence[OpenVerdict], verdict: OpenVerdict) -> OpenVerdict | None:
        """Return the one of some verdicts that has come to accuse the same device, or nobody, of the same."""
        own = verdict.first_device
        return next((one for one in others if own == one.first_device and is_same(verdict.cause, one.cause)), None)

    def _name(self, first: int) -> str:
        return f"{self.job}:{self.attempt}:{first}:{next_ordinal(self._ordinals, first)}"

    # --- how it goes on, and ends -----------------------------------------------------------------------------------

    def _follow(
        self,
        observation: Observation,
        seen_in: Sequence[OpenVerdict],
        late_ns: Mapping[int, float],
        topology: Topology,
        what_if: WhatIf | None,
    ) -> list[Verdict]:
        """Let open verdicts take in an iteration; return the revisions of those that are worth one."""
        revisions, share = [], 1.0
        if observation.attribution is None:  # several causes together cost no more than the iteration took longer
            excess_ns = observation.elapsed_ns - observation.reference_ns
            all_ns = sum(one.cost_by_time_ns(observation) for one in self._open if one not in seen_in)
            share = excess_ns / all_ns if abs(all_ns) > abs(excess_ns) else 1.0
        for verdict in self._open:
            if verdict.standing is not None and verdict.standing.is_unknown(verdict.cause, late_ns):
                verdict.standing.unknown += 1
                verdict.pass_by(observation)
                continue
            is_seen = verdict in seen_in
            verdict.follow(observation, is_seen, topology, late_ns, self._working, share)
            event = self._event_of(verdict, topology) if is_seen else None
            if event is not None:
                # A replay takes long: only for iterations with a revision, before it is made, as it holds the result.
                verdict.note_recovery(observation, what_if)
                revisions.append(self._revise(verdict, event, topology))
        return revisions

    def _event_of(self, verdict: OpenVerdict, topology: Topology) -> str | None:
        """Return the event that is worth a revision, if there is one."""
        if verdict.has_changed or verdict.has_found_cause:
            return "changed"
        if severity_now(verdict, topology.world_size, self._limits) != verdict.severity:
            return "raised"
        return "continued" if verdict.has_grown else None

    def _unconfirmed(
        self, causes: Sequence[Cause], reviewed: Sequence[Observation], history: History
    ) -> list[OpenVerdict]:
        """Confirm standing faults that a review found again.

        Return those that it did not find, and that it alone could see or whose ranks send no more rows.
        """
        over = []
        for verdict in self._open:
            if verdict.standing is None:
                continue
            same = next((cause for cause in causes if is_same(cause, verdict.cause)), None)
            if same is not None:
                verdict.confirm()
                verdict.learn_more(same, reviewed, history)
            elif verdict.standing.is_seen_by_review_alone:
                verdict.cut_back()
                over.append(verdict)
            elif verdict.is_unheard:
                over.append(verdict)
        return over

    def _close(self, verdicts: list[OpenVerdict], reason: str, topology: Topology) -> list[Verdict]:
        self._open = [verdict for verdict in self._open if verdict not in verdicts]
        # The same iterations must open no verdict on uneven data as soon as this one is closed.
        told = [one.last for one in verdicts if one.standing is None or one.cause.kind == "imbalance"]
        self._told_uneven = max([self._told_uneven, *told])
        # Nobody saw ranks recover that send no more rows: their host is to take no work for that.
        return [
            self._revise(one, "closed", topology, "stopped" if reason == "recovered" and one.is_unheard else reason)
            for one in verdicts
        ]

    def _revise(
        self, verdict: OpenVerdict, event: str, topology: Topology, close_reason: str | None = None
    ) -> Verdict:
        """Make the next revision of a verdict; an event as `messages.judgements.Verdict` lists them."""
        verdict.mark_published(severity_now(verdict, topology.world_size, self._limits, is_over=event == "closed"))
        revision = revision_of(verdict, event, self.job, self.attempt, topology, close_reason)
        said = revision.cause or revision.layer
        if event == "continued" and verdict.said_cause not in (None, said):  # the next step is another one
            revision = replace(revision, event="changed")
        verdict.said_cause = said
        return revision

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> TrackerState:
        """Everything that `from_state` needs."""
        return TrackerState(
            job=self.job,
            attempt=self.attempt,
            recent=tuple(self._recent),
            spikes=self._spikes.state(),
            suspicions=self._suspicions.state(),
            recoveries=self._recoveries.state(),
            told_uneven=self._told_uneven,
            ordinals=dict(self._ordinals),
            open=tuple(verdict.state() for verdict in self._open),
            elapsed_ns=tuple(self._elapsed_ns),
        )

    @classmethod
    def from_state(cls, state: TrackerState, limits: SeverityLimits | None = None) -> VerdictTracker:
        """Restore; `limits` are a setting, and not part of the state."""
        tracker = cls(state.job, state.attempt, limits)
        tracker._recent.extend(state.recent)
        tracker._elapsed_ns.extend(state.elapsed_ns)
        tracker._spikes = SpikeWatch(state.spikes)
        tracker._suspicions = Suspicions(state.suspicions)
        tracker._recoveries = Recoveries(state.recoveries)
        tracker._told_uneven = state.told_uneven
        tracker._ordinals = dict(state.ordinals)
        tracker._open = [verdict.state() for verdict in state.open]
        return tracker


def _claims(verdict: OpenVerdict) -> bool:
    """Whether an iteration that shows a verdict's cause needs no other: where data are uneven a device may pause."""
    return verdict.cause.kind != "imbalance"
