"""The life of verdicts: when a cause has been seen often enough to accuse, what it costs, and when it is over."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from detectors.attribution_state import attribution_from_state, attribution_to_state
from detectors.causes import MATCH_SHARE, Cause, find_causes, is_sure, slow_transfers
from detectors.critical_path import Attribution, Lane, Piece
from detectors.hang import Hang
from detectors.topology import Device, Topology
from detectors.verdict_text import evidence_text, hang_text, standing_text
from streams.judgements import Suspect, Verdict

OPEN_RECENT: Final = 6
OPEN_SEEN: Final = 3
OPEN_SEEN_TRANSFER: Final = 4
"""A verdict opens when its cause was seen in so many of the last `OPEN_RECENT` judged iterations. Single late ranks
occur on every healthy job; single transfers that hang for a moment (a lost packet) even more often."""

SPIKE_SIGMAS: Final = 4.0
SPIKE_TRANSFERS: Final = 3.0
SPIKE_SHARE: Final = 0.5
SPIKE_WAIT: Final = 5
MAX_SPIKES: Final = 3
SPIKE_MEMORY: Final = 50
"""A single iteration accuses where it is clear: it stands `SPIKE_SIGMAS` out of the noise, one cause explains
`SPIKE_SHARE` of all that took longer, and `SPIKE_TRANSFERS` transfers at least were slow: one that hangs for a moment
is no device's fault. Of a rank that lost rows it may be the loss that shows. It is decided `SPIKE_WAIT` iterations
later, when it is known that it was one. After `MAX_SPIKES` in `SPIKE_MEMORY` iterations more accuse nobody."""

CLOSE_QUIET: Final = 10
"""A verdict closes after so many judged iterations in a row in which its cause was not seen."""

HANG_PROBABILITY: Final = 0.9

ODDS: Final = 3.0
"""By so much the odds of the first suspect are better than the shares and likelihoods of `detectors.causes` say: of
93 first suspects in the development split of the localization suite 91 were right, promised with 0.90 on average. A
higher factor fits that split still better; recordings of real jobs are less tidy."""

_KEPT: Final = 64  # attributions that a verdict keeps to think over its suspects
_STANDS: Final = 0.5  # a standing fault is there while its rank is late by this share of what it was
_LOSS_STEP: Final = 2.0  # a revision says that it goes on when the loss has grown by this factor


@dataclass(frozen=True, slots=True)
class Observation:
    """One judged iteration; ``attribution`` is None for a regular one, ``sigmas`` say how far it stands out."""

    iteration: int
    elapsed_ns: float
    reference_ns: float
    time_ns: int
    attribution: Attribution | None
    sigmas: float = 0.0

    @property
    def excess_ns(self) -> float:
        """How much longer than usual it took, ns."""
        return max(self.elapsed_ns - self.reference_ns, 0.0)


@dataclass(slots=True)
class _OpenVerdict:
    """A verdict in the making, or open."""

    verdict_id: str
    cause: Cause
    kept: deque[Observation] = field(default_factory=lambda: deque(maxlen=_KEPT))
    first: int = 0
    last: int = 0
    time_ns: int = 0
    seen: int = 0  # irregular iterations in which the cause was seen
    tried: int = 0  # irregular iterations since the first one
    lost_ns: float = 0.0
    quiet: int = 0
    revision: int = 0
    said_lost_ns: float = 0.0
    said: tuple[str, Device | None] = ("", None)
    is_standing: bool = False  # a fault without a healthy past, found by review
    costs_ns: float = 0.0  # standing: what it typically costs an iteration
    late_ns: float = math.nan  # standing, a rank's own work: by how much the rank is late against its stage
    confirmed: int = 0  # standing: newest iteration in which a review saw it


class VerdictTracker:
    """Turn judged iterations, in their order, into revisions of verdicts.

    Parameters
    ----------
    job, attempt
        The job and its start number: part of each verdict's id.
    """

    def __init__(self, job: str, attempt: int) -> None:
        self.job = job
        self.attempt = attempt
        self._recent: deque[Observation] = deque(maxlen=OPEN_RECENT)
        self._spikes: deque[Observation] = deque()  # not decided yet
        self._lately: list[int] = []  # iterations that were clear spikes
        self._open: list[_OpenVerdict] = []
        self._ordinals: dict[int, int] = {}

    @property
    def has_open(self) -> bool:
        """Whether a verdict is open that irregular iterations opened."""
        return any(not verdict.is_standing for verdict in self._open)

    @property
    def has_standing(self) -> bool:
        """Whether a verdict is open on a fault without a healthy past."""
        return any(verdict.is_standing for verdict in self._open)

    def observe(
        self, observation: Observation, topology: Topology, late_ns: Mapping[int, float] = MappingProxyType({})
    ) -> tuple[list[Verdict], tuple[str, ...]]:
        """Take in one judged iteration.

        Parameters
        ----------
        late_ns
            By how much ranks work longer than their stage; the latest ranks suffice.

        Returns
        -------
        Revisions of verdicts, and the ids of the verdicts whose cause was seen in this iteration.
        """
        self._recent.append(observation)
        revisions = []
        seen_in = []
        for verdict in self._open:
            is_seen = _still_stands(verdict, late_ns) if verdict.is_standing else _is_seen(verdict.cause, observation)
            seen_in += [verdict] if is_seen else []
            revisions += self._follow(verdict, observation, is_seen, topology)
        if observation.attribution is not None:
            opened = self._open_new(topology)
            seen_in += opened
            revisions += [self._say(verdict, "opened", topology) for verdict in opened]
            if not seen_in:
                self._spikes.append(observation)
        revisions += self._decide_spikes(observation.iteration - SPIKE_WAIT, topology)
        revisions += self._close([v for v in self._open if v.quiet >= CLOSE_QUIET], "recovered", topology)
        return revisions, tuple(verdict.verdict_id for verdict in seen_in)

    def stand(
        self,
        causes: Sequence[Cause],
        reviewed: Sequence[Observation],
        history: Sequence[tuple[int, Mapping[int, float]]],
        topology: Topology,
    ) -> list[Verdict]:
        """Take in what a review found: open verdicts on standing faults, confirm those that are, close the others.

        Parameters
        ----------
        reviewed
            The reviewed iterations; their attributions are against peers.
        history
            Judged iterations with the lateness of their latest ranks, oldest first: how long it has been so.
        """
        confirmed = [v for v in self._open if v.is_standing and any(_is_same(c, v.cause) for c in causes)]
        over = [v for v in self._open if v.is_standing and v not in confirmed and math.isnan(v.late_ns)]
        for verdict in confirmed:
            verdict.confirmed = verdict.last
        for verdict in over:
            verdict.last = verdict.confirmed
        revisions = self._close(over, "recovered", topology)
        for cause in causes:
            if not self._is_followed(cause):
                verdict = self._new_standing(cause, reviewed, history)
                self._open.append(verdict)
                revisions.append(self._say(verdict, "opened", topology))
        return revisions

    def close(self, reason: str, topology: Topology) -> list[Verdict]:
        """Close what is open, because the job ended, restarted or fell silent."""
        spikes = self._decide_spikes(None, topology)
        return spikes + self._close(list(self._open), reason, topology)

    def hang(self, hang: Hang, last: Observation, until_ns: int | None, topology: Topology) -> Verdict:
        """Say, once and for all, that the job hung after the iteration `last`, until its recording ended."""
        lost_ns = 0 if until_ns is None or hang.since_ns is None else max(until_ns - hang.since_ns, 0)
        device = Device("gpu", hang.ranks)
        return Verdict(
            verdict_id=self._name(last.iteration),
            revision=1,
            state="closed",
            job=self.job,
            kind="hang",
            iterations=(last.iteration, last.iteration + 1),
            delta=round(1 + lost_ns / last.reference_ns, 3) if lost_ns and last.reference_ns else math.nan,
            lost_s=round(lost_ns / 1e9, 6),
            communicator=topology.names[hang.communicator],
            suspects=(_suspect(device, HANG_PROBABILITY, topology),),
            evidence=hang_text(hang, topology),
            attempt=self.attempt,
            world_size=topology.world_size,
            time_ns=last.time_ns,
            close_reason="finished",
            event="opened",
        )

    def _follow(
        self, verdict: _OpenVerdict, observation: Observation, is_seen: bool, topology: Topology
    ) -> list[Verdict]:
        verdict.tried += observation.attribution is not None
        if not is_seen:
            verdict.quiet += 1
            return []
        if verdict.is_standing:
            _extend(verdict, observation)
        else:
            _add(verdict, observation)
            _think_over(verdict, topology)
        if (verdict.cause.kind, _first_device(verdict.cause)) != verdict.said:
            return [self._say(verdict, "changed", topology)]
        if verdict.lost_ns >= _LOSS_STEP * verdict.said_lost_ns:
            return [self._say(verdict, "continued", topology)]
        return []

    def _open_new(self, topology: Topology) -> list[_OpenVerdict]:
        irregular = [o for o in self._recent if o.attribution is not None]
        causes = find_causes([o.attribution for o in irregular if o.attribution is not None], topology)
        opened = []
        for cause in causes:
            needed = OPEN_SEEN if cause.kind == "slow_rank" else OPEN_SEEN_TRANSFER
            if len(cause.explained_ns) >= needed and is_sure(cause) and not self._is_followed(cause):
                opened.append(self._new(cause, irregular))
        self._open += opened
        return opened

    def _decide_spikes(self, past: int | None, topology: Topology) -> list[Verdict]:
        """Open verdicts on single iterations before `past` (None: on all) that are clear, and in no verdict."""
        revisions = []
        while self._spikes and (past is None or self._spikes[0].iteration <= past):
            spike = self._spikes.popleft()
            if any(verdict.first <= spike.iteration <= verdict.last for verdict in self._open):
                continue
            cause = self._clear_cause(spike, topology)
            if cause is None or self._is_followed(cause):
                continue
            lately = [one for one in self._lately if one > spike.iteration - SPIKE_MEMORY]
            self._lately = [*lately, spike.iteration]
            if len(lately) < MAX_SPIKES:
                verdict = self._new(cause, [spike])
                for other in [one for one in self._spikes if _is_seen(cause, one)]:
                    verdict.tried += 1
                    _add(verdict, other)
                self._open.append(verdict)
                revisions.append(self._say(verdict, "opened", topology))
        return revisions

    def _clear_cause(self, spike: Observation, topology: Topology) -> Cause | None:
        """Return what made a single iteration long, if it is clear enough to be said; see `SPIKE_SIGMAS`."""
        assert spike.attribution is not None
        if spike.sigmas < SPIKE_SIGMAS:
            return None
        causes = find_causes([spike.attribution], topology)
        return next((cause for cause in causes if _is_clear(cause, spike, spike.attribution, topology)), None)

    def _is_followed(self, cause: Cause) -> bool:
        """Whether an open verdict already says this."""
        return any(_is_same(cause, verdict.cause) for verdict in self._open)

    def _new(self, cause: Cause, irregular: Iterable[Observation]) -> _OpenVerdict:
        first = min(cause.explained_ns)
        verdict = _OpenVerdict(self._name(first), cause, first=first)
        for observation in irregular:
            verdict.tried += observation.iteration >= first
            if observation.iteration in cause.explained_ns:
                _add(verdict, observation)
        return verdict

    def _new_standing(
        self, cause: Cause, reviewed: Sequence[Observation], history: Sequence[tuple[int, Mapping[int, float]]]
    ) -> _OpenVerdict:
        """Open a verdict from the first iteration on, or from when the rank is late without a break."""
        late_ns = _lateness(cause, [late for i, late in history if i in cause.explained_ns])
        first = min(cause.explained_ns)
        for iteration, late in reversed(history):
            if iteration < first and not math.isnan(late_ns) and _late_ranks_ns(cause, late) < _STANDS * late_ns:
                break
            first = min(first, iteration)
        last = max([max(cause.explained_ns), *(iteration for iteration, _ in history)])
        elapsed = [o for o in reviewed if o.iteration in cause.explained_ns]
        verdict = _OpenVerdict(self._name(first), cause, first=first, last=last, time_ns=elapsed[-1].time_ns)
        verdict.is_standing, verdict.late_ns, verdict.confirmed = True, late_ns, last
        verdict.costs_ns = median(cause.explained_ns.values())
        verdict.seen = verdict.tried = sum(first <= iteration <= last for iteration, _ in history)
        verdict.lost_ns = verdict.costs_ns * verdict.seen
        for o in elapsed:
            healthy_ns = max(o.elapsed_ns - cause.explained_ns[o.iteration], 1.0)
            verdict.kept.append(Observation(o.iteration, o.elapsed_ns, healthy_ns, o.time_ns, o.attribution))
        return verdict

    def _name(self, first: int) -> str:
        ordinal = self._ordinals.get(first, 0)
        self._ordinals[first] = ordinal + 1
        return f"{self.job}:{self.attempt}:{first}:{ordinal}"

    def _close(self, verdicts: list[_OpenVerdict], reason: str, topology: Topology) -> list[Verdict]:
        self._open = [verdict for verdict in self._open if verdict not in verdicts]
        return [self._say(verdict, "closed", topology, reason) for verdict in verdicts]

    def _say(self, verdict: _OpenVerdict, event: str, topology: Topology, close_reason: str | None = None) -> Verdict:
        verdict.revision += 1
        verdict.said = (verdict.cause.kind, _first_device(verdict.cause))
        verdict.said_lost_ns = verdict.lost_ns
        cause = verdict.cause
        return Verdict(
            verdict_id=verdict.verdict_id,
            revision=verdict.revision,
            state="closed" if event == "closed" else "open",
            job=self.job,
            kind=cause.kind,
            iterations=(verdict.first, verdict.last + 1),
            delta=round(median(o.elapsed_ns / o.reference_ns for o in verdict.kept), 3),
            lost_s=round(verdict.lost_ns / 1e9, 6),
            communicator=None if cause.communicator is None else topology.names[cause.communicator],
            suspects=tuple(_suspect(device, p, topology) for device, p in calibrated(cause.suspects)),
            evidence=_text(verdict, topology),
            attempt=self.attempt,
            world_size=topology.world_size,
            time_ns=verdict.time_ns,
            close_reason=close_reason,
            event=event,
        )

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values."""
        return {
            "job": self.job,
            "attempt": self.attempt,
            "recent": [_observation_to_state(o) for o in self._recent],
            "spikes": [_observation_to_state(o) for o in self._spikes],
            "lately": list(self._lately),
            "ordinals": [[first, count] for first, count in sorted(self._ordinals.items())],
            "open": [_open_to_state(verdict) for verdict in self._open],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> VerdictTracker:
        """Restore."""
        tracker = cls(state["job"], state["attempt"])
        tracker._recent.extend(_observation_from_state(o) for o in state["recent"])
        tracker._spikes.extend(_observation_from_state(o) for o in state["spikes"])
        tracker._lately = list(state["lately"])
        tracker._ordinals = dict(state["ordinals"])
        tracker._open = [_open_from_state(verdict) for verdict in state["open"]]
        return tracker


def _is_same(one: Cause, other: Cause) -> bool:
    """Whether two causes blame the same lanes; those of a whole stage or of nobody are told by their kind."""
    return bool(one.lanes & other.lanes) or (not one.lanes and one.kind == other.kind)


def calibrated(suspects: Sequence[tuple[Device, float]]) -> tuple[tuple[Device, float], ...]:
    """Say how probable it is that the first suspect is the culprit; the others share what is left as before."""
    if not suspects:
        return ()
    (first, raw), *others = suspects
    said = ODDS * raw / (1 + (ODDS - 1) * raw)
    left = (1 - said) / (1 - raw) if raw < 1 else 0.0
    return ((first, said), *((device, probability * left) for device, probability in others))


def _is_clear(cause: Cause, spike: Observation, attribution: Attribution, topology: Topology) -> bool:
    if not is_sure(cause) or any(attribution.incomplete.intersection(d.ranks) for d, _ in cause.suspects[:1]):
        return False
    others = {lane: ns for lane, ns in attribution.path_excess_ns.items() if ns > 0 and lane not in cause.lanes}
    stray_ns = sum(
        ns for lane, ns in others.items() if lane in attribution.lanes and attribution.lanes[lane].is_stray
    )
    own_ns = cause.explained_ns[spike.iteration]
    longer_ns = max(own_ns + sum(others.values()), spike.excess_ns) - stray_ns  # what hung besides is another matter
    return own_ns >= SPIKE_SHARE * longer_ns and slow_transfers(cause, attribution, topology) >= SPIKE_TRANSFERS


def _is_seen(cause: Cause, observation: Observation) -> bool:
    if observation.attribution is None:
        return False
    excess_ns = observation.attribution.path_excess_ns
    total_ns = sum(ns for ns in excess_ns.values() if ns > 0)
    return _explained_ns(cause, observation.attribution) >= MATCH_SHARE * total_ns > 0


def _still_stands(verdict: _OpenVerdict, late_ns: Mapping[int, float]) -> bool:
    """Whether a standing fault is still there; what only a review can see is believed until the next one."""
    return math.isnan(verdict.late_ns) or _late_ranks_ns(verdict.cause, late_ns) >= _STANDS * verdict.late_ns


def _lateness(cause: Cause, late: Sequence[Mapping[int, float]]) -> float:
    """Return the median lateness of the accused ranks; NaN where it is not a rank's own work or does not show."""
    if cause.kind != "slow_rank" or not late:
        return math.nan
    typical_ns = median(_late_ranks_ns(cause, one) for one in late)
    return typical_ns if typical_ns > 0 else math.nan


def _late_ranks_ns(cause: Cause, late_ns: Mapping[int, float]) -> float:
    return median(late_ns.get(rank, 0.0) for rank in cause.suspects[0][0].ranks)


def _extend(verdict: _OpenVerdict, observation: Observation) -> None:
    verdict.last, verdict.time_ns = observation.iteration, observation.time_ns
    verdict.seen += 1
    verdict.quiet = 0
    verdict.lost_ns += verdict.costs_ns


def _text(verdict: _OpenVerdict, topology: Topology) -> str:
    piece = _typical_piece(verdict) if verdict.cause.lanes else _piece_of_stage(verdict)
    if verdict.is_standing:
        return standing_text(verdict.cause.kind, piece, verdict.costs_ns, verdict.seen, topology)
    return evidence_text(piece, verdict.seen, verdict.tried, topology)


def _piece_of_stage(verdict: _OpenVerdict) -> Piece:
    """Make up a piece that stands for a stage, or for nobody: the path need not hold one that shows its excess."""
    device = _first_device(verdict.cause)
    rank = -1 if device is None else device.ranks[0]
    return Piece(Lane("work", rank), rank, 0, 0, verdict.costs_ns, 0.0)


def _explained_ns(cause: Cause, attribution: Attribution) -> float:
    return sum(ns for lane, ns in attribution.path_excess_ns.items() if lane in cause.lanes and ns > 0)


def _add(verdict: _OpenVerdict, observation: Observation) -> None:
    assert observation.attribution is not None
    verdict.kept.append(observation)
    verdict.last, verdict.time_ns = observation.iteration, observation.time_ns
    verdict.seen += 1
    verdict.quiet = 0
    verdict.lost_ns += min(_explained_ns(verdict.cause, observation.attribution), observation.excess_ns)


def _think_over(verdict: _OpenVerdict, topology: Topology) -> None:
    """Look for the cause again with all that was seen since; keep the one that this verdict is about."""
    attributions = [o.attribution for o in verdict.kept if o.attribution is not None]
    about = [cause for cause in find_causes(attributions, topology) if cause.lanes & verdict.cause.lanes]
    if about and is_sure(about[0]):
        verdict.cause = about[0]


def _first_device(cause: Cause) -> Device | None:
    return cause.suspects[0][0] if cause.suspects else None


def _typical_piece(verdict: _OpenVerdict) -> Piece:
    """Return the piece of the path with the median excess among the largest ones of each iteration."""
    largest = []
    for observation in verdict.kept:
        assert observation.attribution is not None
        pieces = observation.attribution.pieces
        own = [piece for lane, piece in pieces.items() if lane in verdict.cause.lanes]
        largest += [max(own, key=lambda piece: piece.excess_ns)] if own else []
    largest.sort(key=lambda piece: piece.excess_ns)
    return largest[len(largest) // 2]


def _suspect(device: Device, probability: float, topology: Topology) -> Suspect:
    rank = device.ranks[0]
    place = topology.place(rank)
    return Suspect(
        device=device.kind,
        rank=rank,
        ranks=device.ranks,
        probability=round(probability, 4),
        peer=device.ranks[1] if device.kind == "link" else None,
        host=place.host,
        gpu=None if device.kind == "host" else place.gpu,
        nic=None if device.kind == "host" else place.nic,
        switch=place.switch,
    )


# --- state ----------------------------------------------------------------------------------------------------------

_PLAIN: Final = (
    "is_standing",
    "costs_ns",
    "late_ns",
    "confirmed",
    "verdict_id",
    "first",
    "last",
    "time_ns",
    "seen",
    "tried",
    "lost_ns",
    "quiet",
    "revision",
    "said_lost_ns",
)


def _observation_to_state(observation: Observation) -> list[Any]:
    attribution = None if observation.attribution is None else attribution_to_state(observation.attribution)
    return [
        observation.iteration, observation.elapsed_ns, observation.reference_ns, observation.time_ns, attribution,
        observation.sigmas,
    ]  # fmt: skip


def _observation_from_state(state: list[Any]) -> Observation:
    iteration, elapsed_ns, reference_ns, time_ns, attribution, sigmas = state
    kept = None if attribution is None else attribution_from_state(attribution)
    return Observation(iteration, elapsed_ns, reference_ns, time_ns, kept, sigmas)


def _open_to_state(verdict: _OpenVerdict) -> dict[str, Any]:
    cause = verdict.cause
    return {
        **{name: getattr(verdict, name) for name in _PLAIN},
        "said": [verdict.said[0], verdict.said[1]],
        "kept": [_observation_to_state(o) for o in verdict.kept],
        "cause": {
            "kind": cause.kind,
            "suspects": [[d.kind, list(d.ranks), probability] for d, probability in cause.suspects],
            "lanes": sorted([*lane] for lane in cause.lanes),
            "communicator": cause.communicator,
            "explained_ns": [[i, ns] for i, ns in cause.explained_ns.items()],
        },
    }


def _open_from_state(state: Mapping[str, Any]) -> _OpenVerdict:
    cause = state["cause"]
    verdict = _OpenVerdict(
        verdict_id=state["verdict_id"],
        cause=Cause(
            kind=cause["kind"],
            suspects=tuple((Device(kind, tuple(ranks)), p) for kind, ranks, p in cause["suspects"]),
            lanes=frozenset(Lane(*lane) for lane in cause["lanes"]),
            communicator=cause["communicator"],
            explained_ns=dict(cause["explained_ns"]),
        ),
    )
    for name in _PLAIN:
        setattr(verdict, name, state[name])
    kind, device = state["said"]
    verdict.said = (kind, None if device is None else Device(device[0], tuple(device[1])))
    verdict.kept.extend(_observation_from_state(o) for o in state["kept"])
    return verdict
