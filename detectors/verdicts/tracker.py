"""The life of verdicts: when a cause has been seen often enough to accuse, and when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from irregulars.detectors.blame.causes import Cause, find_causes, is_sure
from irregulars.detectors.blame.nic_ends import is_capped
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.blame.transfer_causes import is_carried, stands_out
from irregulars.detectors.blame.what_if import Recoveries, WhatIf, recovered_ratio
from irregulars.detectors.hang.find_hang import Hang
from irregulars.detectors.job.lanes import LANE_KINDS, Lane
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.verdicts.open_verdict import OpenVerdict, verdict_on_recurring, verdict_on_standing
from irregulars.detectors.verdicts.revision import hang_verdict, revision_of
from irregulars.detectors.verdicts.severity import SeverityLimits, severity_now
from irregulars.detectors.verdicts.single_spikes import SpikeWatch, clear_cause
from irregulars.detectors.verdicts.standing_fault import History
from irregulars.detectors.verdicts.suspicions import Suspicions
from irregulars.streams.messages.judgements import Verdict

OPEN_RECENT: Final = 6
OPEN_SEEN: Final = 3
OPEN_SEEN_TRANSFER: Final = 4
"""A verdict opens when its cause was seen in so many of the last `OPEN_RECENT` judged iterations. Single late ranks
occur on every healthy job; single transfers that hang for a moment (a lost packet) even more often."""

MEMORY: Final = 20
"""Slow transfers may come and go, or make only some iterations stand out of the noise: then the last `OPEN_RECENT`
iterations that were looked into count, within so many, and each must show the cause beyond the noise of its lanes. It
must be as clear whose they are as `CLEARLY` says: a whole communicator's transfers hang now and then, and nobody is
to blame."""

OPEN_CLEAR: Final = 3
"""So many in a row suffice for transfers that are beyond noise in each, if it is this sure whose (`CLEARLY`)."""

CLEARLY: Final = 0.8

OPEN_TWICE: Final = 2
"""A rank that stands out twice so, both times in a long iteration, is accused if nothing else made an iteration of
late as long: pauses hit ever different ranks."""

MIN_RECOVERED: Final = 0.5
"""Of what a cause is said to have cost an iteration, typically this share must come back when that is run again with
its device as usual: most of it. Who brings back less is late or slow beside something that is as late or slow."""

OPEN_CERTAINTY: Final = 0.9
"""Where none of them is long by itself, the cause must be seen in all of them beyond the noise of its transfers, and
its first suspect be as probable as this: a job has slow phases that nobody is to blame for. Where the counters of the
accused NIC show a capped rate, which slow phases don't, all of them together must stand out of that noise."""

CLOSE_QUIET: Final = 10
"""A verdict closes after so many judged iterations in a row in which its cause was not seen."""


class VerdictTracker:
    """Turn judged iterations, in their order, into revisions of verdicts.

    Parameters
    ----------
    job, attempt
        The job and its start number: part of each verdict's id.
    limits
        From which cost on a verdict is urgent.
    """

    def __init__(self, job: str, attempt: int, limits: SeverityLimits | None = None) -> None:
        self.job = job
        self.attempt = attempt
        self._limits = limits or SeverityLimits()
        self._recent: deque[Observation] = deque(maxlen=OPEN_RECENT)
        self._looked_into: deque[Observation] = deque(maxlen=OPEN_RECENT)
        self._spikes = SpikeWatch()
        self._suspicions = Suspicions()
        self._recoveries = Recoveries()
        self._settled = -1  # the last iteration that a closed verdict was about
        self._told_uneven = -1  # the last iteration that a closed verdict on uneven data was about
        self._open: list[OpenVerdict] = []
        self._ordinals: dict[int, int] = {}

    @property
    def has_open(self) -> bool:
        """Whether a verdict is open that irregular iterations opened."""
        return any(verdict.standing is None for verdict in self._open)

    @property
    def has_blamed(self) -> bool:
        """Whether one of these accuses somebody."""
        return any(verdict.standing is None and verdict.cause.suspects for verdict in self._open)

    @property
    def has_standing(self) -> bool:
        """Whether a verdict is open on a fault without a healthy past."""
        return any(verdict.standing is not None for verdict in self._open)

    # --- what is observed -------------------------------------------------------------------------------------------

    def observe(
        self,
        observation: Observation,
        topology: Topology,
        late_ns: Mapping[int, float] = MappingProxyType({}),
        what_if: WhatIf | None = None,
    ) -> tuple[list[Verdict], tuple[str, ...]]:
        """Take in one judged iteration.

        Parameters
        ----------
        late_ns
            By how much ranks work longer than their stage; the latest ranks suffice. NaN: of a rank it is not known.
        what_if
            The iteration, to be run again; None where its operators were not read.

        Returns
        -------
        Revisions of verdicts, and the ids of the verdicts whose cause was seen in this iteration.
        """
        self._recent.append(observation)
        if observation.attribution is not None and (observation.is_long or observation.has_late_rank):
            self._suspicions.note(observation.attribution, topology)
        if observation.attribution is not None:
            self._looked_into.append(observation)
        seen_in = [verdict for verdict in self._open if verdict.is_seen(observation, late_ns)]
        revisions = self._follow(observation, seen_in, late_ns, topology, what_if)
        if observation.attribution is not None:
            opened, changed = self._open_recurring(topology, observation, what_if)
            seen_in += opened
            revisions += [self._say(verdict, "opened", topology) for verdict in opened]
            revisions += [self._say(verdict, "changed", topology) for verdict in changed]
            if not seen_in:
                self._spikes.add(observation, topology, what_if)
        revisions += self._decide_spikes(observation.iteration, topology)
        revisions += self._close([v for v in self._open if v.quiet >= CLOSE_QUIET], "recovered", topology)
        return revisions, tuple(verdict.verdict_id for verdict in seen_in)

    def is_quiet(self, late_ns: Mapping[int, float]) -> bool:
        """Whether verdicts are open, and lateness alone shows that none of their causes is there."""
        return bool(self._open) and all(verdict.is_absent(late_ns) for verdict in self._open)

    def stand(
        self, causes: Sequence[Cause], reviewed: Sequence[Observation], history: History, topology: Topology
    ) -> list[Verdict]:
        """Take in what a review found: open verdicts on standing faults, confirm those that are, close the others.

        Parameters
        ----------
        reviewed
            The reviewed iterations; their attributions are against peers.
        history
            How long it has been so.
        """
        revisions = self._close(self._unconfirmed(causes, reviewed), "recovered", topology)
        corrected = [verdict for verdict in self._open if verdict.standing is not None and verdict.has_changed]
        revisions += [self._say(verdict, "changed", topology) for verdict in corrected]
        for cause in causes:
            if not self._is_followed(cause):
                verdict = verdict_on_standing(self._name, cause, reviewed, history)
                self._open.append(verdict)
                revisions.append(self._say(verdict, "opened", topology))
        return revisions

    def hang(self, hang: Hang, last: Observation, until_ns: int | None, reason: str, topology: Topology) -> Verdict:
        """Say, once and for all, that the job hung after the iteration `last`, until its recording ended."""
        name = self._name(last.iteration)
        return hang_verdict(name, hang, last, until_ns, reason, self.job, self.attempt, topology)

    def close(self, reason: str, topology: Topology) -> list[Verdict]:
        """Close what is open, because the job ended, restarted or fell silent."""
        spikes = self._decide_spikes(None, topology)
        return spikes + self._close(list(self._open), reason, topology)

    # --- how a verdict opens ----------------------------------------------------------------------------------------

    def _open_recurring(
        self, topology: Topology, newest: Observation, what_if: WhatIf | None
    ) -> tuple[list[OpenVerdict], list[OpenVerdict]]:
        """Open verdicts on causes that were seen often enough; return them, and those that now accuse somebody."""
        irregular = [o for o in self._recent if o.attribution is not None]
        since = max(newest.iteration - MEMORY, self._settled)
        returning = [o for o in self._looked_into if o.iteration > since]
        found = [*find_causes([o.attribution for o in irregular if o.attribution], topology), *self._uneven(topology)]
        found += self._returned(found, irregular, returning, topology)
        for cause in found:
            if len(cause.explained_ns) >= OPEN_TWICE and is_sure(cause) and not self._is_followed(cause):
                self._recoveries.note(newest.iteration, cause, recovered_ratio(cause, found, newest, what_if))
        causes = [
            one for one in found
            if is_sure(one)
            and (self._is_seen_enough(one, irregular, topology) or self._has_returned(one, returning, topology))
        ]  # fmt: skip
        opened: list[OpenVerdict] = []
        changed: list[OpenVerdict] = []
        for cause in causes:
            verdict = next((one for one in self._open if is_explained(cause, one.cause, topology)), None)
            if verdict is None and not self._is_followed(cause):
                ratio = self._recoveries.typical(cause)
                if ratio is not None and ratio < MIN_RECOVERED:
                    continue
                shown = irregular if self._is_seen_enough(cause, irregular, topology) else returning
                opened.append(verdict_on_recurring(self._name, cause, shown))
                self._open.append(opened[-1])
                opened[-1].note_recovery(newest, what_if)
                self._spikes.forget(cause)
            elif verdict is not None and verdict.takes_over(cause, topology):
                changed.append(verdict)
        return opened, changed

    def _returned(
        self,
        found: Sequence[Cause],
        irregular: Sequence[Observation],
        returning: Sequence[Observation],
        topology: Topology,
    ) -> list[Cause]:
        """Slow transfers that come and go, so that the newest iterations alone don't show them often enough."""
        if len(returning) == len(irregular):
            return []
        causes = find_causes([o.attribution for o in returning if o.attribution], topology)
        return [
            cause for cause in causes
            if cause.kind != "slow_rank" and self._has_returned(cause, returning, topology)
            and not any(_is_same(cause, one) and self._is_seen_enough(one, irregular, topology) for one in found)
        ]  # fmt: skip

    def _has_returned(self, cause: Cause, returning: Sequence[Observation], topology: Topology) -> bool:
        """Whether slow transfers were seen often enough of late, though not in the newest iterations alone."""
        if cause.kind in ("slow_rank", "slow_stage", "imbalance"):
            return False
        clear = [
            o for o in returning
            if o.iteration in cause.explained_ns and o.is_mainly(cause) and o.is_beyond_noise(cause)
        ]  # fmt: skip
        return (
            len(clear) >= OPEN_SEEN_TRANSFER
            and any(probability >= CLEARLY for _, probability in cause.suspects[:1])
            and sum(o.is_long for o in clear) >= OPEN_TWICE
            and self._stands_alone(cause, topology, ("collective", "pair"))
        )

    def _uneven(self, topology: Topology) -> list[Cause]:
        """Uneven data, if the newest suspect iterations look like it and no verdict says so."""
        explained = self._suspicions.uneven(topology)
        is_told = any(verdict.standing is None and verdict.quiet == 0 for verdict in self._open)
        is_new = (
            bool(explained) and max(explained) == self._recent[-1].iteration and min(explained) > self._told_uneven
        )
        return [Cause("imbalance", (), frozenset(), None, explained)] if is_new and not is_told else []

    def _is_seen_enough(self, cause: Cause, irregular: Sequence[Observation], topology: Topology) -> bool:
        """Whether a cause was seen often enough; see `OPEN_SEEN`, `OPEN_TWICE` and `OPEN_CERTAINTY`."""
        if cause.kind == "imbalance":
            return True
        seen = [o for o in irregular if o.iteration in cause.explained_ns and o.is_mainly(cause)]
        clear = [o for o in seen if o.is_long or o.is_late(cause) or (o.is_shifted and o.is_slow_group(cause))]
        if len(clear) >= (OPEN_SEEN if cause.kind == "slow_rank" else OPEN_SEEN_TRANSFER):
            return cause.kind != "slow_rank" or self._is_one_of_few(len(clear), irregular, topology)
        if _is_clear_run(cause, clear):
            return True
        if len(clear) >= OPEN_TWICE and all(o.is_late(cause) and o.is_long for o in clear):
            return self._stands_alone(cause, topology, ("work",))
        if any(probability < OPEN_CERTAINTY for _, probability in cause.suspects[:1]):
            return False
        shown = [o for o in seen if o.may_show(cause)]
        if len(shown) < OPEN_RECENT:
            return False
        return all(o.is_beyond_noise(cause) for o in shown) or _is_capped(cause, shown, topology)

    def _is_one_of_few(self, seen: int, irregular: Sequence[Observation], topology: Topology) -> bool:
        """Whether a rank was seen in most long iterations: where data are uneven, each is last now and then."""
        others = sum(o.is_long for o in irregular) - seen
        is_uneven = any(verdict.cause.kind == "imbalance" for verdict in self._open)
        if is_uneven or self._suspicions.uneven(topology):
            return others <= 1 and seen >= OPEN_RECENT - 1
        return seen >= 2 * others

    def _stands_alone(self, cause: Cause, topology: Topology, kinds: Collection[str] = LANE_KINDS) -> bool:
        """Whether nothing else of these kinds made iterations of late as long as this cause did.

        A transfer that hung once is no reason to doubt a rank that was late twice, nor are other lanes of a device.
        """
        least_ns = min(cause.explained_ns.values())
        lanes = {
            lane for lane in self._suspicions.lanes if lane in cause.lanes or _carries_lane(cause, lane, topology)
        }
        return not self._suspicions.rivals(lanes, cause.explained_ns.keys(), least_ns, kinds)

    def _decide_spikes(self, newest: int | None, topology: Topology) -> list[Verdict]:
        """Open verdicts on single iterations that are due, clear, and in no verdict."""
        revisions = []
        for spike in self._spikes.take_due(newest):
            if any(verdict.first <= spike.iteration <= verdict.last for verdict in self._open):
                continue
            cause = clear_cause(spike, topology)
            if cause is None or self._is_followed(cause) or not self._stands_alone(cause, topology):
                continue
            if spike.recovers_ratio is not None and spike.recovers_ratio < MIN_RECOVERED:
                continue
            if any(is_explained(cause, one.cause, topology) for one in self._open):
                continue
            verdict = verdict_on_recurring(self._name, cause, [spike])
            for other in self._spikes.showing(cause):
                verdict.tried += 1
                verdict.add(other)
            verdict.judged = verdict.last - verdict.first + 1
            self._open.append(verdict)
            revisions.append(self._say(verdict, "opened", topology))
        return revisions

    def _is_followed(self, cause: Cause) -> bool:
        """Whether an open verdict already says this."""
        return any(_is_same(cause, verdict.cause) for verdict in self._open)

    def _name(self, first: int) -> str:
        ordinal = self._ordinals.get(first, 0)
        self._ordinals[first] = ordinal + 1
        return f"{self.job}:{self.attempt}:{first}:{ordinal}"

    # --- how it goes on, and ends -----------------------------------------------------------------------------------

    def _follow(
        self,
        observation: Observation,
        seen_in: Sequence[OpenVerdict],
        late_ns: Mapping[int, float],
        topology: Topology,
        what_if: WhatIf | None,
    ) -> list[Verdict]:
        revisions = []
        for verdict in self._open:
            if verdict.is_unknown(late_ns):
                verdict.judged += 1
                continue
            is_seen = verdict in seen_in
            verdict.follow(observation, is_seen, topology)
            event = self._news(verdict, topology) if is_seen else None
            if event is not None:
                verdict.note_recovery(observation, what_if)
                revisions.append(self._say(verdict, event, topology))
        return revisions

    def _news(self, verdict: OpenVerdict, topology: Topology) -> str | None:
        """Return the event that is worth a revision, if there is one."""
        if verdict.has_changed:
            return "changed"
        if severity_now(verdict, topology.world_size, self._limits) != verdict.severity:
            return "raised"
        return "continued" if verdict.has_grown else None

    def _unconfirmed(self, causes: Sequence[Cause], reviewed: Sequence[Observation]) -> list[OpenVerdict]:
        """Confirm standing faults that a review found again; return those that it alone could see, and did not."""
        over = []
        for verdict in self._open:
            if verdict.standing is None:
                continue
            same = next((cause for cause in causes if _is_same(cause, verdict.cause)), None)
            if same is not None:
                verdict.standing.confirmed = verdict.last
                verdict.learn_more(same, reviewed)
            elif verdict.standing.is_seen_by_review_alone:
                verdict.last = verdict.standing.confirmed
                over.append(verdict)
        return over

    def _close(self, verdicts: list[OpenVerdict], reason: str, topology: Topology) -> list[Verdict]:
        self._open = [verdict for verdict in self._open if verdict not in verdicts]
        self._settled = max([self._settled, *(verdict.last for verdict in verdicts)])
        uneven = [verdict.last for verdict in verdicts if verdict.cause.kind == "imbalance"]
        self._told_uneven = max([self._told_uneven, *uneven])
        return [self._say(verdict, "closed", topology, reason) for verdict in verdicts]

    def _say(self, verdict: OpenVerdict, event: str, topology: Topology, close_reason: str | None = None) -> Verdict:
        verdict.note_said(severity_now(verdict, topology.world_size, self._limits, is_over=event == "closed"))
        return revision_of(verdict, event, self.job, self.attempt, topology, close_reason)

    # --- snapshots --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values."""
        return {
            "job": self.job,
            "attempt": self.attempt,
            "recent": [one.state() for one in self._recent],
            "looked_into": [one.state() for one in self._looked_into if not self._is_recent(one)],
            "settled": self._settled,
            "spikes": self._spikes.state(),
            "suspicions": self._suspicions.state(),
            "recoveries": self._recoveries.state(),
            "told_uneven": self._told_uneven,
            "ordinals": [[first, count] for first, count in sorted(self._ordinals.items())],
            "open": [verdict.state() for verdict in self._open],
        }

    def _is_recent(self, one: Observation) -> bool:
        return bool(self._recent) and one.iteration >= self._recent[0].iteration

    @classmethod
    def from_state(cls, state: Mapping[str, Any], limits: SeverityLimits | None = None) -> VerdictTracker:
        """Restore; `limits` are a setting, and not part of the state."""
        tracker = cls(state["job"], state["attempt"], limits)
        tracker._recent.extend(Observation.from_state(one) for one in state["recent"])
        tracker._looked_into.extend(Observation.from_state(one) for one in state.get("looked_into", ()))
        tracker._looked_into.extend(one for one in tracker._recent if one.attribution is not None)
        tracker._spikes = SpikeWatch.from_state(state["spikes"])
        tracker._suspicions = Suspicions.from_state(state.get("suspicions", ()))
        tracker._recoveries = Recoveries(state.get("recoveries", ()))
        tracker._settled = state.get("settled", -1)
        tracker._told_uneven = state.get("told_uneven", -1)
        tracker._ordinals = dict(state["ordinals"])
        tracker._open = [OpenVerdict.from_state(verdict) for verdict in state["open"]]
        return tracker


def is_explained(cause: Cause, by: Cause, topology: Topology) -> bool:
    """Whether what a cause blames is what the other one's device slows down, or the other way round.

    A throttled NIC makes its communicators slow, and communicators may be seen first: one cause, one verdict.
    """
    if "slow_stage" in (cause.kind, by.kind) or not cause.lanes or not by.lanes:
        return False
    if _accuse_others(cause, by):
        return False
    return _carries(by, cause, topology) or _carries(cause, by, topology)


def _carries(one: Cause, other: Cause, topology: Topology) -> bool:
    if not one.suspects or other.kind == "slow_rank" or one.kind == "slow_rank":
        return False
    return all(_carries_lane(one, lane, topology) for lane in other.lanes if lane.kind != "work")


def _carries_lane(cause: Cause, lane: Lane, topology: Topology) -> bool:
    """Whether a cause's first suspect carries the transfers of a lane."""
    if not cause.suspects or cause.kind == "slow_rank" or lane.kind == "work":
        return False
    return is_carried(cause.suspects[0][0], lane, min(cause.lanes), topology)


def _is_same(one: Cause, other: Cause) -> bool:
    """Whether two causes blame the same lanes; those of a whole stage or of nobody are told by their kind.

    A stage that works more than the others is a plan: what slows one of its ranks down besides is another matter.
    """
    if (one.kind == "slow_stage") != (other.kind == "slow_stage"):
        return False
    shared = one.lanes & other.lanes
    if _accuse_others(one, other) and all(lane.kind == "collective" for lane in shared):
        return False  # both NICs are in the communicator of all ranks
    return bool(shared) or (not one.lanes and one.kind == other.kind)


def _is_clear_run(cause: Cause, clear: Sequence[Observation]) -> bool:
    """Whether three iterations in a row suffice: transfers slow beyond noise in each, and a suspect that is clear."""
    run = clear[-OPEN_CLEAR:]
    is_run = len(run) == OPEN_CLEAR and run[-1].iteration - run[0].iteration < OPEN_CLEAR
    is_sure_enough = all(probability >= CLEARLY for _, probability in cause.suspects[:1])
    return (
        is_run and is_sure_enough and cause.kind not in ("slow_rank", "slow_stage")
        and all(o.is_long and o.is_beyond_noise(cause) for o in run)
    )  # fmt: skip


def _is_capped(cause: Cause, shown: Sequence[Observation], topology: Topology) -> bool:
    """Whether iterations together show that transfers are slow, and the counters of the accused NIC that it is it."""
    attributions = [o.attribution for o in shown if o.attribution is not None]
    if cause.kind != "slow_nic" or not cause.suspects:
        return False
    worst = max(sorted(cause.lanes), key=lambda lane: sum(a.path_excess_ns.get(lane, 0.0) for a in attributions))
    return stands_out(worst, attributions) and is_capped(cause.suspects[0][0], worst, attributions, topology)


def _accuse_others(one: Cause, other: Cause) -> bool:
    """Whether two causes surely accuse devices that have no rank in common, all alternatives included."""
    if not one.suspects or not other.suspects:
        return False
    if min(cause.suspects[0][1] for cause in (one, other)) < OPEN_CERTAINTY:
        return False
    first, second = ({rank for device, _ in cause.suspects for rank in device.ranks} for cause in (one, other))
    return first.isdisjoint(second)
