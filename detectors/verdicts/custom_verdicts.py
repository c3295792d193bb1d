"""Verdicts that detectors open: kind ``custom``, with the persistence that the monitor asks of all verdicts.

A detector says how strange each rank is; from `strange_ranks.STRANGE` on a score is strange. The rules by
which a verdict opens and closes:

==========  ========================================================================================================
opens       a rank was strange in 4 of the last 6 judged iterations, the newest included (`JOB.often`),
            and no open verdict of another kind tells of it: that one's evidence mentions the detector then
joins       a rank that becomes strange as often within the first 6 iterations of a verdict of the same detector
goes on     one of its ranks is strange
closes      none was for 10 judged iterations (`IRREGULAR.min_iterations`), or the job ended; iterations in which the
            detector has no opinion on any of them do not count; or another has come to tell of it: they are one
told        by a verdict that accuses its ranks, but of a detector that reads numbers; of one that reads times alone,
            by verdicts whose causes were seen in all of its iterations but 3 (a victim's times are strange as well)
costs       excess of irregular iterations while it was seen, if no other verdict's cause was seen in them
severity    by that cost, and a ticket at least, but of metrics: people who let a detector speak want to hear it
==========  ========================================================================================================
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median

import numpy as np

from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.verdicts.counted_verdicts import CountedVerdict, CountedVerdicts, merged_text, next_ordinal
from irregulars.detectors.verdicts.revision import suspect_of
from irregulars.detectors.verdicts.severity import Loss, severity_of, worse
from irregulars.detectors.verdicts.strange_ranks import STRANGE, RankScores, StrangeRanksWatch
from irregulars.messages.device_events import GPU_METRICS
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import GPU
from irregulars.settings import SeverityLimits

_KEPT = 64  # iterations of which a verdict keeps how long they took

Explain = Callable[[str, int], str]
"""Detector and rank: gives the detector's explanation of the rank in the newest iteration; empty: none."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One judged iteration."""

    iteration: int
    time_ns: int
    # Its time, and the usual one; NaN: not known
    elapsed_ns: float
    reference_ns: float
    # Excess by iteration of the irregular ones in which no other verdict's cause was seen: its own, and of those
    # since the one before it in which detectors had an opinion
    lost_ns: Mapping[int, float]
    told_by: str = ""  # id of the verdict whose cause was seen in it; empty: of none
    between_ns: float = 0.0  # how long those between took


@dataclass(frozen=True, slots=True)
class Others:
    """Open verdicts of other kinds, by their ids."""

    accused: Mapping[int, str] = field(default_factory=dict)  # by the ranks that they accuse
    seen: Mapping[int, str] = field(default_factory=dict)  # by the newest iterations that showed their causes

    def tell(self, moments: deque[Moment]) -> tuple[int, float]:
        """Mark the iterations that they have come to tell of: the loss is theirs; return how many, and that loss."""
        told, lost_ns = 0, 0.0
        for at, one in enumerate(list(moments)):
            told_by, theirs = one.told_by or self.seen.get(one.iteration, ""), one.lost_ns.keys() & self.seen.keys()
            if told_by == one.told_by and not theirs:
                continue
            kept = {number: ns for number, ns in one.lost_ns.items() if number not in theirs}
            told += told_by != one.told_by
            lost_ns += sum(one.lost_ns.values()) - sum(kept.values())
            moments[at] = replace(one, lost_ns=kept, told_by=told_by)
        return told, lost_ns


@dataclass(slots=True, eq=False, kw_only=True)
class CustomVerdict(CountedVerdict):
    """One open verdict of a detector; `seen` and `quiet` count iterations."""

    detector: str
    ranks: tuple[int, ...]  # who is strange; ascending
    judged: int  # iterations since the first
    since_ns: int = 0  # when that began
    lost_ns: float = 0.0  # lost in those in which one of them was strange
    highest: float = 0.0  # largest score so far
    explanation: str = ""  # the detector's, of the iteration in which a score was that high
    moments: deque[Moment] = field(default_factory=deque)  # the newest iterations in which one of them was strange
    said_ranks: tuple[int, ...] = ()  # of the newest revision
    # How long the judged ones took, with those in which no detector had an opinion; `lasted_ns`: those up to `last`
    passed_ns: float = 0.0
    lasted_ns: float = 0.0
    told: int = 0  # of `seen`, those in which another verdict's cause was seen
    merged: str = ""  # id of the verdict that tells of it

    def __post_init__(self) -> None:
        # `replace` runs this too, and so a copy shares no deque with the verdict that lives on.
        self.moments = deque(self.moments, _KEPT)

    def see(self, moment: Moment) -> None:
        """Count an iteration in which one of its ranks was strange."""
        if not self.seen:  # those between were before it
            own = {at: ns for at, ns in moment.lost_ns.items() if at == moment.iteration}
            moment = replace(moment, lost_ns=own, between_ns=0.0)
        self.last, self.time_ns = moment.iteration, moment.time_ns
        self.seen, self.quiet, self.lasted_ns = self.seen + 1, 0, self.passed_ns
        self.lost_ns += sum(moment.lost_ns.values())
        self.told += bool(moment.told_by)
        self.moments.append(moment)

    def severity_now(self, world_size: int, limits: SeverityLimits, *, is_over: bool) -> str:
        """Return how urgent it is: a ticket at least where people let it speak, never less than was published."""
        loss = Loss("custom", True, self.seen, self.lost_ns / 1e9, self.passed_ns / 1e9, world_size, is_over)
        least = "note" if self.detector == GPU_METRICS else "ticket"
        return worse(self.severity, worse(least, severity_of(loss, limits)))


@dataclass(frozen=True, slots=True)
class CustomState:
    """State of `CustomVerdicts`."""

    recent: tuple[Moment, ...]
    ordinals: Mapping[str, int]
    open: tuple[CustomVerdict, ...]
    between_ns: float = 0.0
    between_lost_ns: Mapping[int, float] = field(default_factory=dict)


class CustomVerdicts(CountedVerdicts[CustomVerdict]):
    """Open, follow and close the verdicts of detectors.

    `job`, `attempt`: the job and its start number. They make a verdict's id, with its first iteration, the detector
    and an ordinal. `limits`: from which cost on a verdict is urgent. `of_times`, `of_numbers`: detectors that read
    times alone, and those that read numbers.
    """

    def __init__(
        self,
        job: str,
        attempt: int,
        limits: SeverityLimits,
        state: CustomState | None = None,
        of_times: Collection[str] = (),
        of_numbers: Collection[str] = (),
    ) -> None:
        super().__init__(job, attempt, [replace(one) for one in state.open] if state else ())
        self._limits, self._of_times, self._of_numbers = limits, of_times, of_numbers
        self._recent: deque[Moment] = deque(state.recent if state else (), IRREGULAR.recent)
        self._ordinals = dict(state.ordinals) if state else {}
        # As of the next `Moment`
        self._between_ns, self._lost_ns = (state.between_ns, dict(state.between_lost_ns)) if state else (0.0, {})

    @property
    def open_kinds(self) -> list[tuple[str, str]]:
        """Severity and kind of each verdict that is open."""
        return [(one.severity, "custom") for one in self._open]

    @property
    def since_ns(self) -> float:
        """When the oldest that is open began; infinite: none is."""
        return min((one.since_ns for one in self._open), default=math.inf)

    def follow(self, limits: SeverityLimits) -> None:
        """Call verdicts urgent by other limits from here on."""
        self._limits = limits

    def observe(
        self,
        moment: Moment,
        scores: RankScores,
        watch: StrangeRanksWatch,
        others: Others,
        explain: Explain,
        topology: Topology,
    ) -> tuple[list[Verdict], tuple[str, ...]]:
        """Take in one judged iteration.

        `scores`: by the detectors that open verdicts. `watch`: who was strange of late, this iteration included.
        `others`: with it. Returns revisions of verdicts, and the ids of those of which a rank was strange in this
        iteration.
        """
        lost_ns = {**self._lost_ns, **moment.lost_ns}
        self._recent.append(replace(moment, between_ns=self._between_ns, lost_ns=lost_ns))
        self._between_ns, self._lost_ns = 0.0, {}
        others.tell(self._recent)
        seen_in = [one for one in self._open if self._follow(one, self._recent[-1], scores, explain)]
        for one in self._open:
            told, their_ns = others.tell(one.moments)
            one.told, one.lost_ns = one.told + told, one.lost_ns - their_ns
            one.merged = self._merged(one, others)
        revisions = self._close([one for one in self._open if one.merged], "merged", topology)
        untold = sum(1 << back for back, one in enumerate(reversed(self._recent)) if not one.told_by)
        for name in scores.by_detector:
            counted = untold if name in self._of_times else -1
            due = {
                rank: own for rank, mask in watch.due(name).items()
                if (own := mask & counted).bit_count() >= JOB.often
                and (rank not in others.accused or name in self._of_numbers)
            }  # fmt: skip
            seen_in += [one for one in self._open_due(name, due, scores, explain) if one not in seen_in]
        return revisions + self._follow_up(topology), tuple(one.verdict_id for one in seen_in if not one.merged)

    def pass_by(self, moment: Moment) -> None:
        """Count a judged iteration in which no detector has an opinion: none goes on, and none is over."""
        self._between_ns += moment.elapsed_ns
        self._lost_ns |= moment.lost_ns
        if len(self._lost_ns) > _KEPT:  # then the oldest two count as one
            oldest, second = islice(self._lost_ns, 2)
            self._lost_ns[second] += self._lost_ns.pop(oldest)

    def _merged(self, one: CustomVerdict, others: Others) -> str:
        """Return the id of a verdict that tells of this one; empty: none does."""
        accusers = [others.accused.get(rank, "") for rank in one.ranks]
        if all(accusers) and one.detector not in self._of_numbers:
            return accusers[0]
        if one.seen - one.told >= JOB.often or one.detector not in self._of_times:
            return ""
        return next((m.told_by for m in reversed(one.moments) if m.told_by), "")

    # --- how they open and go on ------------------------------------------------------------------------------------

    def _follow(self, one: CustomVerdict, moment: Moment, scores: RankScores, explain: Explain) -> bool:
        """Let an open verdict take in an iteration; return whether one of its ranks was strange."""
        one.judged, one.passed_ns = one.judged + 1, one.passed_ns + moment.elapsed_ns + moment.between_ns
        own = scores.of(one.detector, one.ranks)
        if not (own >= STRANGE).any():
            # No opinion on any of its ranks does not show that they are no longer strange.
            one.quiet += not np.isnan(own).all()
            return False
        one.see(moment)
        _note_highest(one, one.ranks, scores, explain)
        return True

    def _open_due(
        self, name: str, due: Mapping[int, int], scores: RankScores, explain: Explain
    ) -> list[CustomVerdict]:
        """Open a verdict on ranks that are in none of this detector, or let them join one; return it."""
        own = [one for one in self._open if one.detector == name]
        news = {rank: mask for rank, mask in due.items() if not any(rank in one.ranks for one in own)}
        if not news:
            return []
        newest = own[-1] if own else None
        # Ranks that become strange soon after the first ones are of one cause with them; later ones join as well
        # where as many verdicts are open as may be.
        if newest is None or (newest.judged > IRREGULAR.recent and len(own) < IRREGULAR.most_ranks):
            newest = self._begin(name, news)
            self._open.append(newest)
        else:
            newest.ranks = tuple(sorted({*newest.ranks, *news}))
        _note_highest(newest, sorted(news), scores, explain)
        return [newest]

    def _begin(self, name: str, due: Mapping[int, int]) -> CustomVerdict:
        """Begin a verdict on ranks that became strange often enough, with the iterations in which one of them was."""
        mask = 0
        for own in due.values():
            mask |= own
        # Bit n of a mask is the n-th newest iteration; the verdict takes them in oldest first.
        moments = [one for back, one in enumerate(reversed(self._recent)) if mask >> back & 1][::-1]
        first = moments[0].iteration
        key = f"{first}:{name}"
        # A detector may open two verdicts that begin with the same iteration.
        verdict_id = f"{self.job}:{self.attempt}:{key}.{next_ordinal(self._ordinals, key)}"
        verdict = CustomVerdict(verdict_id, first, first, 0, detector=name, ranks=tuple(sorted(due)),
                                judged=mask.bit_length(), since_ns=moments[0].time_ns)  # fmt: skip
        own_ns = [(one.elapsed_ns, one.between_ns) for one in self._recent if one.iteration >= first]
        verdict.passed_ns = sum(map(sum, own_ns)) - own_ns[0][1]
        for one in moments:
            verdict.see(one)
        return verdict

    # --- revisions --------------------------------------------------------------------------------------------------

    def _is_over(self, one: CustomVerdict) -> bool:
        return one.quiet >= IRREGULAR.min_iterations

    def _event_of(self, one: CustomVerdict, topology: Topology) -> str | None:
        if not one.revision:
            return "opened"
        if one.ranks != one.said_ranks:
            return "changed"
        # No news while none of its ranks is strange.
        if one.quiet:
            return None
        if one.severity_now(topology.world_size, self._limits, is_over=False) != one.severity:
            return "raised"
        return "continued" if one.seen >= JOB.twice * one.said_seen else None

    def _revise(self, one: CustomVerdict, event: str, topology: Topology, close_reason: str | None = None) -> Verdict:
        one.severity = one.severity_now(topology.world_size, self._limits, is_over=event == "closed")
        one.said_ranks = one.ranks
        ratios = [m.elapsed_ns / m.reference_ns for m in one.moments if m.reference_ns > 0]
        # A finding that most ranks share is no device's.
        is_job = 2 * topology.logged_share(Device(GPU, one.ranks)) > 1
        suspect = suspect_of(_device(one.ranks, topology), JOB.most, topology)
        return self._revision(
            one, event, topology, close_reason,
            kind="custom",
            delta=round(median(ratios), 3) if ratios else math.nan,
            lost_s=round(one.lost_ns / 1e9, 6),
            suspects=() if is_job else (suspect,),
            evidence=_text(one),
            time_ns=one.time_ns,
            detector=one.detector,
            lasted_s=round(one.lasted_ns / 1e9, 6) or None,
        )  # fmt: skip

    def state(self) -> CustomState:
        """Everything that a new object needs to go on."""
        opened = tuple(replace(one) for one in self._open)
        return CustomState(tuple(self._recent), dict(self._ordinals), opened, self._between_ns, dict(self._lost_ns))


def _note_highest(one: CustomVerdict, ranks: Sequence[int], scores: RankScores, explain: Explain) -> None:
    """Ask for an explanation where one of some ranks, not all of them unknown, is stranger than any was before."""
    own = scores.of(one.detector, ranks)
    worst = int(np.nanargmax(own))
    if own[worst] > one.highest:
        one.highest = float(own[worst])
        one.explanation = explain(one.detector, ranks[worst]) or one.explanation


def _device(ranks: tuple[int, ...], topology: Topology) -> Device:
    """Return the host whose ranks these are, all of them and more than one; else the ranks themselves."""
    host = topology.host(ranks[0])
    return host if host is not None and len(ranks) > 1 and host.ranks == ranks else Device(GPU, ranks)


def _text(one: CustomVerdict) -> str:
    who = f"rank {one.ranks[0]}" if len(one.ranks) == 1 else f"{len(one.ranks)} ranks"
    text = (
        f"detector {one.detector} finds {who} strange in {one.seen} of the {one.judged} iterations since {one.first}"
    )
    text += f", its highest score is {one.highest:.3g} ({STRANGE:g}: strange begins)"
    text += f": {one.explanation}" if one.explanation else ""
    return merged_text(text, one.merged) if one.merged else text
