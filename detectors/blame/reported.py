"""Events that devices reported, as evidence beside the times: they move probabilities, and open no verdict.

An event counts if it is of the suspect's device, or of its host as a whole, and came at most `events_before_s` before
the cause was first seen. A later one may follow from the fault, or from people who act on it: it is named, and weighs
nothing.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Final

import numpy as np

from irregulars.detectors.blame.likelihoods import LIKELIHOODS, SUREST
from irregulars.detectors.blame.thresholds import BLAME
from irregulars.detectors.job.topology import Topology
from irregulars.detectors.nics.thresholds import NICS
from irregulars.detectors.path.rank_metrics import (
    Difference,
    find_differences,
    join_windows,
    text_of_difference,
    windows_of,
)
from irregulars.dtypes import Floats, Ints
from irregulars.messages.device_events import FLOPS, GPU_METRICS, KERNELS, ONE_LOOK_NS, DeviceEvent, Summary
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.kinds import layer_of
from irregulars.messages.reasons import Reported
from irregulars.messages.records import LOOKS
from irregulars.messages.xids import SYMPATHETIC, class_of_xid
from irregulars.words import duration, name_ranks

_KEPT: Final = 512  # events of each kind in a job: of a storm over thousands of hosts the newest count most
_KEPT_METRICS: Final = 1 << 13  # some twenty in each window of a rank
_MOST_COMING: Final = 1 << 16  # of a recording all are known at once
_NAMED: Final = 3  # of a verdict: the rest is counted
_OF_NETWORK: Final = frozenset({"link_down", "link_up", "link_errors"})
_OF_WORKERS: Final = frozenset({"xid", "ecc", "throttle", "out_of_memory", "process_exit"})
_NOT_THE_DEVICE: Final = frozenset({"process_exit", "node_state", "link_up", *LOOKS, "metric"})
DEGRADED: Final = frozenset({"throttle", "link_errors"})  # events of a device that still works
_PEERS: Final = "that of its peers"
_GPU: Final = re.compile(r"gpu(\d+)")
_APART: Final = 0.15
"""A difference of shares that is no chance: three standard deviations, sqrt(2 / 4 / n) each, of n = 250 samples."""


class EventLog:
    """The newest events of a job; one that comes twice counts once.

    They come when they come, and count from the iteration on in which they happened: so a recording, of which all is
    known at once, gives the same verdicts as the stream did.
    """

    def __init__(self, past: Iterable[DeviceEvent] = (), coming: Iterable[DeviceEvent] = ()) -> None:
        self._past: dict[str, deque[DeviceEvent]] = {}  # by kind: a storm of one must not push out another
        self._coming = list(coming)
        self._is_sorted = True  # `_coming`
        self._known = set(self._coming)  # with those of `_past`
        self._let_count(past)

    @property
    def past(self) -> tuple[DeviceEvent, ...]:
        """The events that count."""
        return tuple(chain.from_iterable(self._past.values()))

    def add(self, events: Iterable[DeviceEvent]) -> None:
        """Take in events."""
        # Frames of stacks are for people, and many.
        new = [one for one in dict.fromkeys(events) if one not in self._known and one.kind != "stack"]
        if new:
            self._known.update(new)
            self._coming += new
            self._is_sorted = False
        # Not sooner: each call of a storm would sort as many.
        if len(self._coming) > 2 * _MOST_COMING:
            self._sort()

    def _sort(self) -> None:
        """Sort the events that are to come; beyond the bound the oldest are lost."""
        if not self._is_sorted:
            self._coming.sort()
            self._known.difference_update(self._coming[:-_MOST_COMING])
            del self._coming[:-_MOST_COMING]
            self._is_sorted = True

    def until(self, time_ns: float) -> tuple[DeviceEvent, ...]:
        """Let the events up to a time count; return those that are new."""
        self._sort()
        count = bisect_right(self._coming, time_ns, key=lambda one: one.time_ns)
        new = tuple(self._coming[:count])
        del self._coming[:count]
        self._let_count(new)
        return new

    def _let_count(self, events: Iterable[DeviceEvent]) -> None:
        for one in events:
            own = self._past.setdefault(one.kind, deque())
            own.append(one)
            self._known.add(one)
            if len(own) > (_KEPT_METRICS if one.kind == "metric" else _KEPT):
                self._known.discard(own.popleft())

    def state(self) -> tuple[tuple[DeviceEvent, ...], tuple[DeviceEvent, ...]]:
        """Return the arguments of the constructor."""
        self._sort()
        return self.past, tuple(self._coming)


def with_events(
    verdict: Verdict, events: Sequence[DeviceEvent], onset_ns: int | None = None, topology: Topology | None = None
) -> Verdict:
    """Weigh the suspects of a verdict by what their devices reported, and name that in its evidence.

    `onset_ns`: when the cause was first seen, ns since the epoch; None: as long ago as the verdict lasted.
    `topology`: tells which ranks do the same work; None: all.
    """
    is_of_metrics = verdict.detector == GPU_METRICS
    if not events or verdict.time_ns is None or not (verdict.suspects or is_of_metrics):
        return verdict
    onset_ns = onset_of(verdict, verdict.time_ns) if onset_ns is None else onset_ns
    late_ns = math.inf if verdict.kind == "hang" else verdict.time_ns + BLAME.events_after_s * 1e9
    metrics = [one for one in events if one.kind == "metric"]
    events = [one for one in events if one.kind != "metric"]
    if metrics and (verdict.kind == "slow_rank" or is_of_metrics):
        verdict = _with_metrics(verdict, metrics, onset_ns, topology)
    functions = [one for one in events if one.kind == "function" and one.time_ns >= onset_ns]
    near = [one for one in events if onset_ns - BLAME.events_before_s * 1e9 <= one.time_ns <= late_ns]
    own = {suspect: [one for one in near if _is_of(one, suspect)] for suspect in verdict.suspects}
    if not any(own.values()):
        return replace(verdict, evidence=verdict.evidence + spent_apart(verdict, functions))
    until_ns = late_ns if verdict.kind == "hang" else onset_ns + BLAME.events_after_s * 1e9
    weights = [max((_weight(e) for e in own[one] if e.time_ns <= until_ns), default=1.0) for one in verdict.suspects]
    suspects = _weighed(verdict.suspects, weights)
    # A weighed suspect has another probability, and another may be the first now.
    first = next(one for one in own if replace(one, probability=suspects[0].probability) == suspects[0])
    told = _without_followers(own[first])
    reported = tuple(
        Reported(e.time_ns, e.rank, e.kind, e.device or None, e.code, e.detail or None, one.times)
        for one in told[:_NAMED]
        for e in (one.event,)
    )
    text = spent_apart(replace(verdict, suspects=suspects), functions)
    text += "".join(f"; {_text(one, onset_ns)}" for one in told[:_NAMED])
    more = f"; {len(told) - _NAMED} further events" if len(told) > _NAMED else ""
    reasons = verdict.explanation and replace(verdict.explanation, reported=reported)
    layer = verdict.layer
    if layer == "unknown":
        layer = _layer_by([one.event for one in told if one.event.time_ns <= until_ns], first)
    return replace(
        verdict, suspects=suspects, evidence=verdict.evidence + text + more, explanation=reasons, layer=layer
    )


def spent_apart(verdict: Verdict, events: Iterable[DeviceEvent]) -> str:
    """Return the function in which the first suspect spends more of its time than its peers; empty: none is known.

    And the operator of its CPU, and the kernel of its GPU. `events`: of kind ``function``, whose code is the share of
    the time in thousandths, and whose device tells these apart.
    """
    taken = [one for one in events if one.code is not None]
    # A job's processes are profiled less often than they are looked at: each device has a newest look of its own.
    newest_ns = {(one.rank, one.device): one.time_ns for one in sorted(taken)}
    # By device, rank and function
    found: dict[str, dict[int, dict[str, float]]] = {}
    for one in sorted(taken):
        if newest_ns[one.rank, one.device] - one.time_ns < ONE_LOOK_NS:
            found.setdefault(one.device, {}).setdefault(one.rank, {})[one.detail] = (one.code or 0) / 1000
    text = ""
    accused = verdict.suspects[0].ranks if verdict.suspects else ()
    for shares in found.values() if verdict.kind == "slow_rank" else ():
        rank = next((rank for rank in accused if rank in shares), None)
        peers = sorted(shares.keys() - {rank for one in verdict.suspects for rank in one.ranks})
        if rank is not None and peers:
            text += _most_apart(rank, shares, peers)
    return text


def _most_apart(rank: int, shares: Mapping[int, Mapping[str, float]], peers: Sequence[int]) -> str:
    def usual(function: str) -> float:
        return median(shares[peer].get(function, 0.0) for peer in peers)

    # EROICA's distance of patterns, scaled to the function's largest. Of mean and deviation of a resource beside the
    # share no profile tells: Kineto's occupancy of a kernel follows from its grid.
    apart = {function: share - usual(function) for function, share in shares[rank].items()}
    largest = {function: max(shares[one].get(function, 0.0) for one in (rank, *peers)) for function in apart}
    told = [one for one, more in apart.items() if more >= max(_APART, NICS.far * largest[one])]
    if not told:
        return ""
    most = max(told, key=lambda function: apart[function])
    beside = f"{name_ranks(peers)} {usual(most):.0%}"
    return f"; rank {rank} spends {shares[rank][most]:.0%} of its time in {most}, {beside}"


def score_metrics(
    new: Iterable[DeviceEvent], known: Iterable[DeviceEvent], ranks: Ints, topology: Topology,
    since_ns: float = math.inf,
) -> Floats | None:  # fmt: skip
    """Return how far the newest metrics of each rank are from those of its peers, or else from its own past.

    From 1 on the distance matters; NaN: no new ones are known of the rank. None: of no rank. `known`: with the new.
    `since_ns`: when an open verdict began: older ones alone are the past, else a fault that lasts would become usual.
    """
    metrics = [one for one in sorted(new, reverse=True) if one.kind == "metric"]
    windows = windows_of(one for one in known if one.kind == "metric") if metrics else {}
    # Of a large job not all are kept, and a newer producer may tell some that are not understood.
    times = {one.rank: one.time_ns for one in metrics if one.time_ns in windows.get(one.rank, ())}
    if not times:
        return None
    newest_ns = min(times.values())
    kept = {
        rank: {at: one for at, one in own.items() if at < since_ns or at >= newest_ns}
        for rank, own in windows.items()
    }
    found, _ = _unlike(kept, newest_ns, times.keys(), topology)
    scores = np.where(np.isin(ranks, [*times]), 0.0, np.nan)
    for one, others in found:
        # Against the past kernels are longer where the job has more to do.
        if others == _PEERS or not one.metric.startswith(KERNELS):
            scores[ranks == one.rank] = np.fmax(scores[ranks == one.rank], one.score)
    return scores


def _unlike(
    windows: Mapping[int, Mapping[int, Mapping[str, Summary]]], onset_ns: float, accused: Collection[int],
    topology: Topology | None,
) -> tuple[list[tuple[Difference, str]], dict[int, dict[str, Summary]]]:  # fmt: skip
    """Return in which metrics ranks are unlike their peers from a time on, or where none is, unlike their own past.

    Each comes with whose metric it is held against; second are the metrics of all ranks from that time on.
    """
    late = {rank: [one for at, one in own.items() if at >= onset_ns] for rank, own in windows.items()}
    ranks = {rank: join_windows(own) for rank, own in late.items() if own}
    order = np.array(sorted(ranks), np.int64)
    stages = np.zeros_like(order) if topology is None else topology.stages(order)
    found = find_differences(ranks, dict(zip(order.tolist(), stages.tolist(), strict=True)))
    told = [(one, _PEERS) for one in found if one.rank in accused]
    for rank in sorted(ranks.keys() & accused) if not told else ():
        before = [one for at, one in sorted(windows[rank].items()) if at < onset_ns]
        own = dict(enumerate([ranks[rank], *before])) if before else {}
        changes = find_differences(own, dict.fromkeys(own, 0))
        told += [(one._replace(rank=rank), "that of its windows before") for one in changes if one.rank == 0]
    return told, ranks


def _with_metrics(
    verdict: Verdict, events: Iterable[DeviceEvent], onset_ns: float, topology: Topology | None
) -> Verdict:
    """Name in which metrics the accused ranks are unlike their peers, or their own past where no peers are known.

    Multiplications at a lower rate are the GPU's: it does the same work more slowly.
    """
    windows = windows_of(events)
    accused = verdict.suspects[0].ranks if verdict.suspects else windows.keys()
    told, ranks = _unlike(windows, onset_ns, accused, topology)
    if not told:
        return verdict
    # A slow GPU has all of them: of classes of kernels the one that costs most time is named.
    costs = {one.metric: (one.value - one.usual) * ranks[one.rank][one.metric].count for one, _ in told}
    kernels = [name for name in costs if name.startswith(KERNELS)]
    dearest = max(kernels, key=lambda name: costs[name], default=None)
    told = [pair for pair in told if pair[0].metric not in kernels or pair[0].metric == dearest]
    text = "".join(f"; {text_of_difference(one, others)}" for one, others in told[:_NAMED])
    layer, cause = verdict.layer, verdict.cause
    if verdict.detector == GPU_METRICS and any(one.is_stalled for one, _ in told):
        cause = "gpu_idle"
        layer = layer_of(verdict.kind, cause)
    elif layer == "unknown" and verdict.suspects and any(one.metric.startswith(FLOPS) for one, _ in told):
        layer = "hardware"
    return replace(verdict, evidence=verdict.evidence + text, layer=layer, cause=cause)


def onset_of(verdict: Verdict, time_ns: int) -> int:
    """Return when the cause of a verdict was first seen, if it was last seen at `time_ns`, ns since the epoch.

    Later revisions would have it too late: only iterations of training count as time that it lasted. The newest one
    counts as well, and begins at `time_ns`: as long as a typical one is left out.
    """
    newest_ns = 0.0 if verdict.explanation is None else verdict.explanation.elapsed_ns or 0.0
    return time_ns - max(int((verdict.lasted_s or 0.0) * 1e9 - newest_ns), 0)


def _layer_by(events: Iterable[DeviceEvent], suspect: Suspect) -> str:
    """Return where the cause of a verdict lies by the reports from before it showed, where nothing else says so."""
    # Of ranks on several hosts the first one's is advised on: what another host reported says nothing of that one.
    is_host = suspect.traits.is_whole_host
    own = (one for one in events if one.rank == suspect.rank or one.host == suspect.host or is_host)
    kinds = {one.kind for one in own if _weight(one) > 1}
    if kinds - {"out_of_memory"}:
        return "hardware"  # the device itself says so
    return "host" if kinds else "unknown"


Report = tuple[int, str, str, str]  # rank, kind, device, and the class of an XID


def reports_about(events: Iterable[DeviceEvent], ranks: Collection[int], topology: Topology) -> set[Report]:
    """Return the reports of devices that carry these ranks, or of their hosts; how often does not matter."""
    hosts = [host for rank in ranks if (host := topology.host(rank)) is not None]
    beside = frozenset(ranks).union(*(host.ranks for host in hosts))
    return {
        (one.rank, one.kind, one.device, (class_of_xid(one.code) if one.kind == "xid" else None) or "")
        for one in events
        if one.kind not in _NOT_THE_DEVICE and one.rank in (ranks if one.device else beside)
    }


def _is_of(event: DeviceEvent, suspect: Suspect) -> bool:
    """Whether an event is of a suspect's device, or of its host or bus."""
    kind = suspect.traits
    # Of a device that is on no host, no host reports anything.
    if "host" not in kind.named_by or event.kind in LOOKS:
        return False
    is_worker = kind.is_worker
    # Links are no evidence on workers, nor are GPUs and processes on the network.
    if event.kind in _OF_NETWORK if is_worker else event.kind in _OF_WORKERS:
        return False
    # An event of a host as a whole is of all ranks there.
    if not event.device or kind.is_whole_host:
        return event.rank in suspect.ranks or event.host == suspect.host != ""
    # A rank's GPU and its NIC both report errors of their bus, and its host has others of both.
    gpu = _GPU.fullmatch(event.device)
    if not is_worker:
        is_another = gpu is not None or (not kind.is_way and suspect.nic not in (None, event.device))
    elif gpu is not None:
        is_another = len(suspect.ranks) == 1 and suspect.gpu not in (None, int(gpu[1]))
    else:
        is_another = event.device == suspect.nic
    return event.rank in suspect.ranks and not is_another


def _weight(event: DeviceEvent) -> float:
    """Return how many times likelier a device that reported this is to blame."""
    if event.kind in _NOT_THE_DEVICE or (event.kind == "xid" and class_of_xid(event.code) == "application"):
        return 1.0
    return LIKELIHOODS.reported_degraded if event.kind in DEGRADED else LIKELIHOODS.reported_error


def _weighed(suspects: Sequence[Suspect], weights: Sequence[float]) -> tuple[Suspect, ...]:
    """Return suspects by their new probabilities; those of another sort than the first stay behind it.

    >>> one, other = (Suspect("gpu", rank, (rank,), 0.4) for rank in (0, 1))
    >>> [(s.rank, round(s.probability, 2)) for s in _weighed((one, other), (1.0, 10.0))]
    [(1, 0.87), (0, 0.09)]
    """
    nobody = max(1 - math.fsum(one.probability for one in suspects), 0.0)
    odds = [one.probability * weight for one, weight in zip(suspects, weights, strict=True)]
    total = math.fsum(odds) + nobody
    found = [
        replace(one, probability=round(min(own / total, SUREST), 4)) for one, own in zip(suspects, odds, strict=True)
    ]
    return tuple(sorted(found, key=lambda one: (one.device != suspects[0].device, -one.probability)))


@dataclass(frozen=True, slots=True)
class _Told:
    event: DeviceEvent
    followers: tuple[int, ...] = ()  # numbers of XIDs that followed from it
    times: int = 1


def _without_followers(events: Sequence[DeviceEvent]) -> list[_Told]:
    """Return events, the weightiest first: repeated ones once, XIDs that follow from another with that one."""
    found: list[_Told] = []
    for one in sorted(events):
        for at, known in enumerate(found):
            before = known.event
            if (before.kind, before.rank, before.device) != (one.kind, one.rank, one.device):
                continue
            if before.code == one.code or one.kind != "xid":
                found[at] = replace(known, times=known.times + 1)
                break
            if one.time_ns - before.time_ns <= BLAME.events_after_s * 1e9:
                # Told is the one that says most: the log may have another first, which follows from it.
                first, last = (one, before) if _telling(one) > _telling(before) else (before, one)
                followers = dict.fromkeys((*known.followers, last.code or 0))
                found[at] = _Told(first, tuple(followers), known.times if first is before else 1)
                break
        else:
            found.append(_Told(one))
    return sorted(found, key=lambda one: (-_weight(one.event), one.event))


def _telling(xid: DeviceEvent) -> tuple[bool, float]:
    """Return how much an XID tells of its GPU: less if it is sympathetic, or of an application's errors."""
    return xid.code not in SYMPATHETIC, _weight(xid)


_WORDS: Final = {
    "ecc": "memory errors that were not corrected", "throttle": "clocks held down", "link_down": "link down",
    "link_up": "link up again", "link_errors": "new link errors", "pcie": "errors on the PCIe bus",
    "out_of_memory": "out of memory", "process_exit": "a process that ended",
    "node_state": "another state of the node",
}  # fmt: skip


def _text(told: _Told, onset_ns: float) -> str:
    one = told.event
    what = _WORDS.get(one.kind, "")
    if one.kind == "xid":
        known = class_of_xid(one.code)
        what = f"XID {one.code}" + (f" ({known})" if known else "")
    elif one.detail:
        what += f" ({one.detail})"
    what += f" {told.times} times" if told.times > 1 else ""
    what += f", followed by {', '.join(map(str, told.followers))}" if told.followers else ""
    where = f"{one.device} of rank {one.rank}" if one.device else f"the host of rank {one.rank}"
    away_s = (one.time_ns - onset_ns) / 1e9
    when = f"{duration(abs(away_s) * 1e9)} {'after' if away_s > 0 else 'before'} it began"
    return f"{where} reported {what}, {when}"
