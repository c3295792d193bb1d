"""Verdicts on checkpoints: kind ``slow_checkpoint``.

Iterations that write a checkpoint are not judged beside those of training, but beside each other: who writes so much
longer than usual that the others wait?

==========  ========================================================================================================
usual       the rank's own earlier checkpoints; before there are two, its peers, but for rank 0, which often writes
            more than they do. A rank that usually writes for less than `allowed_ns` counts as not writing
late        twice the usual time at least (SCOUT's factor), while the job waits for more than δ allows. One rank, or
            ranks of one host: where ranks of several hosts are late at once, or the one host has all that write,
            their storage is slow, and no device
opens       the first time where a rank's own past is known; else the second time, as SCOUT asks
closes      two checkpoints without it, or the job ended
severity    by the cost, as verdicts on iterations
==========  ========================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import lower_median
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device, Topology
from irregulars.detectors.verdicts.counted_verdicts import CountedVerdict, CountedVerdicts
from irregulars.detectors.verdicts.revision import suspect_of
from irregulars.detectors.verdicts.severity import Loss, severity_of, worse
from irregulars.dtypes import Flags, Floats, Ints
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import GPU, layer_of
from irregulars.settings import SeverityLimits
from irregulars.words import duration, name_ranks

_KEPT: Final = 4  # checkpoints whose times are known
_TWICE: Final = 2  # checkpoints: for a usual time, to accuse by peers alone, and without the cause to close
_PEERS: Final = 3  # ranks, below which peers show nothing


class Writes(NamedTuple):
    """How long ranks wrote in one checkpoint."""

    ranks: Ints  # ascending
    elapsed_ns: Floats

    def of(self, ranks: Ints) -> Floats:
        """Return the times of some ranks; NaN: not known."""
        at = np.searchsorted(self.ranks, ranks).clip(max=len(self.ranks) - 1)
        return np.where(self.ranks[at] == ranks, self.elapsed_ns[at], np.nan)


class LateWriters(NamedTuple):
    """Ranks for which the others waited."""

    device: Device
    held_ns: float  # how much sooner the checkpoint would have been written
    elapsed_ns: float  # how long the latest of them wrote
    usual_ns: float  # how long that one usually writes
    is_of_past: bool  # whether its own past shows it, and not its peers

    def usual(self, writes: Writes) -> Writes:
        """Return the checkpoint as its past is to know it, with the usual time of the late ranks."""
        is_late = np.isin(writes.ranks, self.device.ranks)
        if not self.is_of_past:
            return Writes(writes.ranks[~is_late], writes.elapsed_ns[~is_late])
        return Writes(writes.ranks, np.minimum(writes.elapsed_ns, np.where(is_late, self.usual_ns, np.inf)))


def late_writers(now: Writes, past: Sequence[Writes], topology: Topology, allowed_ns: float) -> LateWriters | None:
    """Find the device whose ranks write a checkpoint longer than usual, so that the others wait.

    `past`: earlier checkpoints, by `LateWriters.usual`. `allowed_ns`: shorter waiting is not reported.
    """
    if not len(now.ranks):
        return None
    usual_ns, is_of_past = _usual(now, past)
    is_late = (usual_ns > allowed_ns) & (now.elapsed_ns >= JOB.twice * usual_ns)  # NaN: not known, not late
    late = now.ranks[is_late]
    device = _one_device(late, topology)
    if device is None:
        return None
    # A host with all ranks that write cannot be told from their storage, nor the one rank of a job.
    writes = (usual_ns > allowed_ns) | (device.kind == GPU)
    if np.isin(now.ranks[writes], device.ranks).all():
        return None
    others_ns = float(now.elapsed_ns[~is_late].max(initial=0.0))
    latest = int(np.argmax(np.where(is_late, now.elapsed_ns, -1.0)))
    held_ns = float(now.elapsed_ns[latest] - max(usual_ns[latest], others_ns))
    # Others wrote about as long, or δ allows the wait.
    if held_ns <= allowed_ns:
        return None
    return LateWriters(
        device, held_ns, float(now.elapsed_ns[latest]), float(usual_ns[latest]), bool(is_of_past[latest])
    )


def _usual(now: Writes, past: Sequence[Writes]) -> tuple[Floats, Flags]:
    """Return how long each rank usually writes, NaN where that is not known, and whether its own past gives it."""
    usual_ns = np.full(len(now.ranks), np.nan)
    if len(now.ranks) >= _PEERS:
        # The first of the ascending ranks, mostly rank 0, often writes more than its peers: they show nothing of it.
        usual_ns[1:] = lower_median(now.elapsed_ns)
    known = np.array([one.of(now.ranks) for one in past]).reshape(len(past), len(now.ranks))
    has_past = np.count_nonzero(~np.isnan(known), axis=0) >= _TWICE
    if has_past.any():
        usual_ns[has_past] = np.nanmedian(known[:, has_past], axis=0)
    return usual_ns, has_past


def _one_device(ranks: Ints, topology: Topology) -> Device | None:
    """Return the one rank, or the host of them all; None: there is no such device."""
    if len(ranks) == 1:
        return Device(GPU, (int(ranks[0]),))
    host = topology.host(int(ranks[0])) if len(ranks) else None
    return host if host is not None and set(ranks.tolist()) <= set(host.ranks) else None


@dataclass(slots=True, kw_only=True)
class OpenCheckpoint(CountedVerdict):
    """One open verdict; `seen` and `quiet` count checkpoints."""

    device: Device
    since_ns: int  # event time of the first
    is_of_past: bool
    lost_ns: float = 0.0
    lasted_ns: float = 0.0  # from the first until the newest ended
    ratio: float = math.nan  # of the newest: iteration time over its time without the wait
    text: str = ""


@dataclass(slots=True)
class CheckpointState:
    """State of `SlowCheckpoints`."""

    past: list[Writes] = field(default_factory=list)  # the newest, `_KEPT` at most
    open: list[OpenCheckpoint] = field(default_factory=list)


class SlowCheckpoints(CountedVerdicts[OpenCheckpoint]):
    """Judges the checkpoints of one attempt of a job."""

    def __init__(self, job: str, attempt: int, limits: SeverityLimits, state: CheckpointState | None = None) -> None:
        super().__init__(job, attempt, state.open if state else ())
        self._limits = limits
        self._past: list[Writes] = state.past if state else []

    @property
    def open_kinds(self) -> list[tuple[str, str]]:
        """Severity and kind of each verdict that is open."""
        return [(one.severity, "slow_checkpoint") for one in self._open if one.revision]

    def follow(self, limits: SeverityLimits) -> None:
        """Call verdicts urgent by other limits from here on."""
        self._limits = limits

    def observe(
        self, writes: Writes, topology: Topology, iteration: int, span_ns: tuple[int, int], allowed_ns: float
    ) -> tuple[list[Verdict], tuple[str, ...]]:
        """Take in a checkpoint; `span_ns`: when its iteration began and ended.

        Returns revisions, and the ids of verdicts whose device was late in it.
        """
        found = late_writers(writes, self._past, topology, allowed_ns)
        known = writes if found is None else found.usual(writes)
        # After the search, and with usual times for late ranks: a fault that lasts must not become usual.
        self._past = [*self._past, known][-_KEPT:]
        seen = None if found is None else self._see(found, iteration, span_ns)
        for one in self._open:
            one.quiet += one is not seen
        return self._follow_up(topology), () if seen is None else (seen.verdict_id,)

    def _see(self, found: LateWriters, iteration: int, span_ns: tuple[int, int]) -> OpenCheckpoint:
        """Add a late device to the verdict on it, a new one if there is none; return the verdict."""
        began_ns, ended_ns = span_ns
        seen = next((o for o in self._open if set(o.device.ranks) & set(found.device.ranks)), None)
        if seen is None:
            name = f"{self.job}:{self.attempt}:{iteration}:slow_checkpoint.0"
            seen = OpenCheckpoint(name, iteration, iteration, began_ns, device=found.device, since_ns=began_ns,
                                  is_of_past=found.is_of_past)  # fmt: skip
            self._open.append(seen)
        # A rank may turn out to be one of its host's late ranks, never the other way round.
        if len(found.device.ranks) > len(seen.device.ranks):
            seen.device = found.device
        seen.last, seen.time_ns, seen.seen, seen.quiet = iteration, began_ns, seen.seen + 1, 0
        seen.lost_ns += found.held_ns
        seen.lasted_ns = max(float(ended_ns - seen.since_ns), seen.lost_ns)
        seen.ratio = (ended_ns - began_ns) / max(ended_ns - began_ns - found.held_ns, 1.0)
        whose = "usual for it" if found.is_of_past else "usual for its peers"
        seen.text = (
            f"{name_ranks(found.device.ranks)} wrote the checkpoint of iteration {iteration} for "
            f"{duration(found.elapsed_ns)} ({whose}: {duration(found.usual_ns)}), "
            f"and the others waited {duration(found.held_ns)} for that"
        )
        return seen

    def _is_over(self, one: OpenCheckpoint) -> bool:
        return one.quiet >= _TWICE

    def _event_of(self, one: OpenCheckpoint, topology: Topology) -> str | None:
        if not one.revision:
            return "opened" if one.is_of_past or one.seen >= _TWICE else None
        if one.quiet:
            return None
        if self._severity_of(one, topology, is_over=False) != one.severity:
            return "raised"
        return "continued" if one.seen >= JOB.twice * one.said_seen else None

    def _severity_of(self, one: OpenCheckpoint, topology: Topology, *, is_over: bool) -> str:
        lost_s, lasted_s = one.lost_ns / 1e9, one.lasted_ns / 1e9
        loss = Loss("slow_checkpoint", True, one.seen, lost_s, lasted_s, topology.world_size, is_over)
        return worse(one.severity, severity_of(loss, self._limits))

    def _revise(
        self, one: OpenCheckpoint, event: str, topology: Topology, close_reason: str | None = None
    ) -> Verdict:
        one.severity = self._severity_of(one, topology, is_over=event == "closed")
        return self._revision(
            one, event, topology, close_reason,
            kind="slow_checkpoint",
            delta=round(one.ratio, 3),
            lost_s=round(one.lost_ns / 1e9, 6),
            suspects=(suspect_of(one.device, JOB.sure, topology),),
            evidence=one.text if one.seen == 1 else f"{one.text}; in {one.seen} checkpoints since {one.first}",
            time_ns=one.time_ns,
            lasted_s=round(one.lasted_ns / 1e9, 6),
            layer=layer_of("slow_checkpoint"),
            cause="checkpoint_write",
            cause_share=1.0,
        )  # fmt: skip

    def state(self) -> CheckpointState | None:
        """Everything that a new object needs to go on; None: no checkpoint has come."""
        return deepcopy(CheckpointState(self._past, self._open)) if self._past else None
