"""Five metrics of each rank over a window, and the ranks in which one of them is unlike that of their peers.

Throughput, floating point operations a second of each kind of matrix multiplication, bandwidth of each collective,
issue latency (from the launch of a kernel on the CPU to its start on the GPU), and void: the share of a step in which
the GPU runs none of the kernels that hold most of its time (XPUTimer, arXiv 2502.05413). A healthy CPU runs far
ahead, so that issue latency is long. One of some µs says that the GPU waits for its CPU, and void says how much time
that costs. Kernels that wait for other ranks make both long at once.

A metric of some steps is kept as its distribution. Those of several windows add up, and those of two ranks are
compared as a whole: a median hides a rank of which a third of all launches is late. They travel as events.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import median
from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.arrays.runs import run_ends, run_starts
from irregulars.detectors.path.thresholds import PATH
from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.messages.bounds import LATEST_NS
from irregulars.messages.device_events import DeviceEvent
from irregulars.messages.records import OPERATOR_CODES, RECV, SEND, UNKNOWN
from irregulars.words import duration, ordinal

THROUGHPUT: Final = "steps_per_s"
TOKENS: Final = "tokens_per_s"
ISSUE_LATENCY: Final = "issue_latency_ns"
FLOPS: Final = "flops_per_s"  # followed by a dot and the kind of multiplication
KERNELS: Final = "kernel_ns"  # followed by a dot and the class of kernels: how long one of them takes
VOID_BETWEEN: Final = "void_between_steps_ratio"
VOID_MINORITY: Final = "void_minority_kernels_ratio"
_PER_STEP: Final = (THROUGHPUT, TOKENS, VOID_BETWEEN, VOID_MINORITY)

_GRID: Final = np.arange(5, 96, 9) / 100  # quantiles that are kept, by which distributions are compared
_SHORTEST_NS: Final = 1_000.0  # lower latencies are equal: many profilers count whole µs
_STALLED_NS: Final = 1e5  # a launch takes some µs: a GPU that starts later has a queue
_MEDIAN: Final = 5  # place of the median among the quantiles
_FEWEST: Final = 3  # ranks: of two that differ nothing tells which is the odd one
_MOST_WINDOWS: Final = 8  # of a profile: with more steps, a window holds several
_HEADS: Final = {
    THROUGHPUT: "steps/s", TOKENS: "tokens/s", ISSUE_LATENCY: "issue latency",
    VOID_BETWEEN: "void between steps", VOID_MINORITY: "void within steps",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """All executions on a rank's GPU in some steps.

    Attributes
    ----------
    kernels
        A row for each: ``start_ns``, ``end_ns``, ``name`` (a code), ``step`` (of its launch; `UNKNOWN`: none),
        ``latency_ns`` (float64; NaN: not known), ``is_communication``, ``sort`` (place in `sorts`), and of those that
        a matrix multiplication launched: ``call`` (its number, from 0; else `UNKNOWN`), ``flops`` (of the whole call;
        NaN: not known) and ``kind`` (place in `kinds`).
    kinds, sorts
        Kinds of multiplications, and classes of kernels.
    steps, step_s
        The marks of the CPU: their numbers, and how long each took.
    loads_ns
        Start and end of each wait for data.
    """

    kernels: Mapping[str, Column]
    kinds: Sequence[str]
    sorts: Sequence[str]
    steps: Ints
    step_s: Floats
    loads_ns: Ints


class Sample(NamedTuple):
    """Values of a metric, each as an amount and its divisor (seconds, ns of a step, or 1), and the step it is of."""

    amount: Floats
    per: Floats
    step: Ints

    def of(self, steps: Ints) -> Sample:
        """Return those of some steps."""
        own = np.isin(self.step, steps)
        return Sample(self.amount[own], self.per[own], self.step[own])


@dataclass(frozen=True, slots=True)
class Summary:
    """A metric of a rank over a window."""

    value: float  # all amounts over all they are held against; of issue latencies their median
    quantiles: Floats  # of its distribution: eleven, from 0.05 to 0.95
    count: int
    weight: float  # what all amounts are held against


class Difference(NamedTuple):
    """A metric in which a rank is unlike its peers."""

    rank: int
    metric: str
    value: float
    usual: float  # median of its peers
    quantile: float  # of the issue latency that both values are; 0.5 for other metrics
    distance: float  # between the distributions: a share of the step for void, else powers of ten


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Bandwidth of each kind of collective on each communicator, waiting left out; one value each."""

    communicator: Ints
    operator: Ints
    count: Ints  # of collectives whose size and time are known
    shares: Ints  # ranks whose rows are known in each of them, at least; with fewer than `members` waiting is in it
    members: Ints
    algbw: Floats  # bytes per s
    busbw: Floats


def sample_kernels(profile: Profile) -> dict[str, Sample]:
    """Return the samples of a profile, by the names of its metrics; those of which nothing is known are absent."""
    kernels = profile.kernels
    is_known = np.isfinite(kernels["latency_ns"])
    found = {
        THROUGHPUT: Sample(np.ones(len(profile.step_s)), profile.step_s, profile.steps),
        ISSUE_LATENCY: _each(kernels["latency_ns"][is_known], kernels["step"][is_known]),
    }
    if len(is_known):
        start_ns, end_ns = _spans(kernels, kernels["start_ns"].min())
        found |= _sample_calls(profile, start_ns, end_ns)
        found |= _sample_void(kernels["name"], kernels["step"], start_ns, end_ns)
    return {name: sample for name, sample in found.items() if len(sample.amount)}


def sample_iterations(elapsed_ns: Floats, tokens: Floats) -> dict[str, Sample]:
    """Return the samples of a rank without kernels; `tokens` of each iteration are NaN where nobody counts them."""
    is_counted = np.isfinite(tokens) & (elapsed_ns > 0)
    step_s, steps = elapsed_ns[elapsed_ns > 0] / 1e9, np.arange(len(elapsed_ns))
    found = {
        THROUGHPUT: Sample(np.ones(len(step_s)), step_s, steps[elapsed_ns > 0]),
        TOKENS: Sample(tokens[is_counted], elapsed_ns[is_counted] / 1e9, steps[is_counted]),
    }
    return {name: sample for name, sample in found.items() if len(sample.amount)}


def summarize(samples: Mapping[str, Sample]) -> dict[str, Summary]:
    """Return the value and the distribution of each metric."""
    found = {}
    for name, (amount, per, _) in samples.items():
        value = median(amount) if name == ISSUE_LATENCY else float(amount.sum() / per.sum())
        found[name] = Summary(value, np.quantile(amount / per, _GRID), len(amount), float(per.sum()))
    return found


def join_windows(windows: Iterable[Mapping[str, Summary]]) -> dict[str, Summary]:
    """Return the metrics of several windows of a rank as those of one; of distributions the mean quantiles."""
    parts: dict[str, list[Summary]] = {}
    for window in windows:
        for name, one in window.items():
            parts.setdefault(name, []).append(one)
    found = {}
    for name, own in parts.items():
        counts, weights = [one.count for one in own], [one.weight for one in own]
        value = float(np.average([one.value for one in own], weights=weights))
        quantiles = np.average([one.quantiles for one in own], axis=0, weights=counts)
        found[name] = Summary(value, quantiles, sum(counts), sum(weights))
    return found


def measure_windows(rank: int, profile: Profile, iterations: Ints, start_ns: Ints) -> Iterator[DeviceEvent]:
    """Yield the metrics of each window of a profile, as events at its begin.

    `iterations`, `start_ns`: those of the rank, ascending; a window belongs to the one in which it begins.
    """
    samples, step = sample_kernels(profile), profile.kernels["step"]
    steps = np.unique(step[step != UNKNOWN])
    for window in np.array_split(steps, min(len(steps), _MOST_WINDOWS)) if len(steps) else [np.array([UNKNOWN])]:
        kernels_ns = profile.kernels["start_ns"][np.isin(step, window)]
        own = {name: one.of(window) for name, one in samples.items()}
        if len(kernels_ns):
            at = max(int(np.searchsorted(start_ns, kernels_ns.min(), side="right")) - 1, 0)
            time_ns = int(max(kernels_ns.min(), start_ns[at]))
            for name, one in summarize({name: own[name] for name in own if len(own[name].amount)}).items():
                numbers = " ".join(f"{number:.4g}" for number in (one.count, one.weight, one.value, *one.quantiles))
                yield DeviceEvent(time_ns, rank, "metric", device=name, code=int(iterations[at]), detail=numbers)


def windows_of(events: Iterable[DeviceEvent]) -> dict[int, dict[int, dict[str, Summary]]]:
    """Return the metrics that events tell of each rank, by when their windows begin.

    >>> told = DeviceEvent(5, 3, "metric", device="issue_latency_ns", code=7, detail="90 90 1.3e+04" + " 2e+04" * 11)
    >>> windows_of([told])[3][5]["issue_latency_ns"].value
    13000.0
    """
    found: dict[int, dict[int, dict[str, Summary]]] = {}
    for one in events:
        # They come from outside: a producer may be newer.
        with suppress(ValueError):
            count, weight, value, *quantiles = map(float, one.detail.split(" ") if one.kind == "metric" else ())
            if len(quantiles) == len(_GRID) and 1 <= count < 1 << 53 and 0 < weight < math.inf:
                own = found.setdefault(one.rank, {}).setdefault(one.time_ns, {})
                own[one.device] = Summary(value, np.nan_to_num(quantiles), int(count), weight)
    return found


def gpu_times(kernels: Mapping[str, Column], begin_ns: Ints, past_ns: Ints) -> tuple[Floats, Floats]:
    """Return of some spans how long the GPU computed and did not communicate, and how long it ran nothing at all."""
    origin_ns = min(kernels["start_ns"].min(), begin_ns.min())
    start_ns, end_ns = _spans(kernels, origin_ns)
    spans = (begin_ns - origin_ns).astype(np.float64), (past_ns - origin_ns).astype(np.float64)
    busy_ns = _Busy.of(start_ns, end_ns, np.ones(len(start_ns), bool)).within(*spans)
    communicates_ns = _Busy.of(start_ns, end_ns, kernels["is_communication"]).within(*spans)
    return busy_ns - communicates_ns, spans[1] - spans[0] - busy_ns


def find_differences(ranks: Mapping[int, Mapping[str, Summary]], stages: Mapping[int, int]) -> list[Difference]:
    """Return the metrics in which a rank is unlike the ranks of its stage, the largest distances first.

    The distance is that of Wasserstein to the stage's typical distribution, the median at each quantile. A rank is
    unlike its peers if it lies above the median of all distances by more than five times their median deviation
    (EROICA's rule for patterns), and by enough to matter; a higher rate, or less void, is left out.

    `ranks`: metrics of each rank. `stages`: pipeline stage of each rank; those of one do the same work.
    """
    owners: dict[tuple[int, str], list[int]] = {}
    for rank, metrics in ranks.items():
        for name, one in metrics.items():
            if one.count >= (1 if name in _PER_STEP else PATH.metric_least_count):
                owners.setdefault((stages[rank], name), []).append(rank)
    found = []
    for (_, name), peers in owners.items():
        if len(peers) < _FEWEST:
            continue
        own = [ranks[rank][name] for rank in peers]
        values, quantiles = np.array([one.value for one in own]), np.stack([one.quantiles for one in own])
        typical = np.median(_comparable(name, quantiles), axis=0)
        apart = _comparable(name, quantiles) - typical
        distance, least = np.abs(apart).mean(axis=1), _least(name)
        middle = median(distance)
        limit = middle + PATH.metric_deviations * median(np.abs(distance - middle))
        for at in np.flatnonzero((distance > limit) & (distance >= least)).tolist():
            value, usual, quantile = values[at], np.median(values), 0.5
            if name == ISSUE_LATENCY:
                # The median, unless distributions are more than twice as far apart elsewhere
                far = np.abs(apart[at])
                where = _MEDIAN if 2 * far[_MEDIAN] >= far.max() else int(np.argmax(far))
                value, usual, quantile = quantiles[at, where], np.median(quantiles[:, where]), _GRID[where]
            else:
                more = np.diff(_comparable(name, np.array([usual, value])))[0]
                if (more if name.startswith(("void", KERNELS)) else -more) < least:
                    continue
            found.append(
                Difference(peers[at], name, float(value), float(usual), float(quantile), float(distance[at]))
            )
    return sorted(found, key=lambda one: (-one.distance / _least(one.metric), one.rank, one.metric))


def text_of_value(metric: str, value: float) -> str:
    """Write a value of a metric.

    >>> text_of_value("issue_latency_ns", 12_786.0), text_of_value("flops_per_s.mm", 3.49e13)
    ('12.8 µs', '34.9 TFLOP/s')
    >>> text_of_value("void_between_steps_ratio", 0.028), text_of_value("steps_per_s", 4.4972)
    ('2.8%', '4.5')
    """
    if metric == ISSUE_LATENCY or metric.startswith(KERNELS):
        return duration(value)
    if metric.startswith(FLOPS):
        return f"{value / 1e12:.3g} TFLOP/s"
    return f"{value:.1%}" if metric.endswith("_ratio") else f"{value:.3g}"


def name_metric(metric: str) -> str:
    """Name a metric as people do."""
    kind = metric.rpartition(".")[2]
    return _HEADS.get(metric) or (f"time of {kind} kernels" if metric.startswith(KERNELS) else f"rate of {kind}")


def text_of_difference(one: Difference, others: str = "that of its peers") -> str:
    """Put into words in which a rank is unlike its peers.

    >>> text_of_difference(Difference(3, "issue_latency_ns", 12_800.0, 76.5e6, 0.5, 3.7))
    'issue latency of rank 3 is 12.8 µs, that of its peers 76.5 ms: its CPU does not run ahead of its GPU'
    >>> text_of_difference(Difference(3, "kernel_ns.gemm", 141e3, 100e3, 0.5, 0.15))
    'gemm kernels of rank 3 are 41% longer: time of each 141 µs, that of its peers 100 µs'
    """
    value, usual = (text_of_value(one.metric, number) for number in (one.value, one.usual))
    where = "" if one.quantile == 0.5 else f" at the {ordinal(round(100 * one.quantile))} percentile"
    rank = f"rank {one.rank}"
    if one.metric.startswith(KERNELS):
        longer = f"{one.metric.rpartition('.')[2]} kernels of {rank} are {one.value / one.usual - 1:.0%} longer"
        return f"{longer}: time of each {value}, {others} {usual}"
    text = f"{name_metric(one.metric)} of {rank} is {value}{where}, {others} {usual}"
    is_stalled = one.metric == ISSUE_LATENCY and one.value < _STALLED_NS < one.usual
    return f"{text}: its CPU does not run ahead of its GPU" if is_stalled else text


def measure_bandwidth(columns: Mapping[str, Column], members: Ints, *, is_shared_clock: bool) -> Bandwidths:
    """Return the bandwidth of each operator on each communicator: bytes of all its collectives over their time.

    A collective takes from the start of the last rank to the end of the last one; where clocks differ or starts are
    not known, as long as in the rank that spent least time inside. Bytes and factors are those of nccl-tests: an
    all_gather counts all that a rank has in the end, of which its payload is the part that it gives.

    `columns`: as for `find_arrivals`, and ``size_bytes``. `members`: ranks in each communicator, by its code.
    """
    is_taken = np.isfinite(columns["elapsed_ns"]) & ~np.isin(columns["operator"], (SEND, RECV))
    rows = {name: column[is_taken] for name, column in columns.items()}
    group, first = group_rows([rows["communicator"], rows["sequence"]])
    took_ns, size_bytes = (
        _of_groups(np.minimum, group, rows["elapsed_ns"]),
        _of_groups(np.fmax, group, rows["size_bytes"]),
    )
    if is_shared_clock and (rows["start_ns"] != UNKNOWN).all():
        start_ns = (rows["start_ns"] - rows["start_ns"].min(initial=LATEST_NS)).astype(np.float64)
        took_ns = _of_groups(np.maximum, group, start_ns + rows["elapsed_ns"]) - _of_groups(
            np.maximum, group, start_ns
        )
    kept = np.flatnonzero((took_ns > 0) & (size_bytes > 0))
    communicator, operator = (rows[name][first[kept]] for name in ("communicator", "operator"))
    kind, one = group_rows([communicator, operator])
    communicator, operator = communicator[one], operator[one]
    ranks = members[communicator]
    payload, took = (np.bincount(kind, weights=column[kept], minlength=len(one)) for column in (size_bytes, took_ns))
    algbw = 1e9 * payload / took * np.where(operator == OPERATOR_CODES["all_gather"], ranks, 1)
    return Bandwidths(
        communicator, operator, np.bincount(kind, minlength=len(one)),
        _of_groups(np.minimum, kind, np.bincount(group)[kept].astype(np.float64)).astype(np.int64), ranks,
        algbw, algbw * _bus_factors(operator, ranks),
    )  # fmt: skip


def _of_groups(reduced: np.ufunc, group: Ints, values: Floats) -> Floats:
    """Return the smallest or largest value of each group, numbered from 0."""
    found = np.full(int(group.max(initial=-1)) + 1, np.nan)
    found[group] = values  # any of them to begin with
    reduced.at(found, group, values)
    return found


def _bus_factors(operator: Ints, ranks: Ints) -> Floats:
    """Return the bus bandwidth over the algorithm's bandwidth, by nccl-tests."""
    others = (ranks - 1) / np.maximum(ranks, 1)
    is_moved = np.isin(operator, [OPERATOR_CODES[name] for name in ("all_gather", "reduce_scatter", "all_to_all")])
    return np.select([operator == OPERATOR_CODES["all_reduce"], is_moved], [2 * others, others], 1.0)


def _each(amount: Floats, step: Ints) -> Sample:
    return Sample(amount, np.ones(len(amount)), step)


def _spans(kernels: Mapping[str, Column], origin_ns: int) -> tuple[Floats, Floats]:
    """Return starts and ends of kernels since a moment: float64 holds ns since the epoch only in steps of 256."""
    return tuple((kernels[name] - origin_ns).astype(np.float64) for name in ("start_ns", "end_ns"))  # type: ignore[return-value]


def _comparable(name: str, quantiles: Floats) -> Floats:
    """Return quantiles on the scale on which distances are measured: rates and latencies differ by factors."""
    if name.startswith("void"):
        return quantiles
    return np.log10(np.maximum(quantiles, _SHORTEST_NS if name == ISSUE_LATENCY else np.finfo(np.float64).tiny))


def _least(name: str) -> float:
    """Return the smallest distance that matters."""
    if name.startswith("void"):
        return PATH.metric_least_ratio
    return math.log10(PATH.metric_least_latency if name == ISSUE_LATENCY else 1 + PATH.metric_least_ratio)


def _sample_calls(profile: Profile, start_ns: Floats, end_ns: Floats) -> dict[str, Sample]:
    """Return rates of multiplications, and times of kernels by class, without those beside communication."""
    kernels, took_ns = profile.kernels, end_ns - start_ns
    shared_ns = _Busy.of(start_ns, end_ns, kernels["is_communication"]).within(start_ns, end_ns)
    own = np.flatnonzero(kernels["call"] != UNKNOWN)
    call, first, at = np.unique(kernels["call"][own], return_index=True, return_inverse=True)
    took_s = np.bincount(at, weights=took_ns[own], minlength=len(call)) / 1e9
    is_shared = np.bincount(at, weights=shared_ns[own], minlength=len(call)) > 0
    flops, kind, step = (kernels[name][own][first] for name in ("flops", "kind", "step"))
    is_taken = (took_s > 0) & ~is_shared & np.isfinite(flops)
    rows = {f"{FLOPS}.{name}": np.flatnonzero(is_taken & (kind == code)) for code, name in enumerate(profile.kinds)}
    found = {name: Sample(flops[those], took_s[those], step[those]) for name, those in rows.items()}
    is_apart = (shared_ns == 0) & (took_ns > 0)
    rows = {f"{KERNELS}.{name}": is_apart & (kernels["sort"] == code) for code, name in enumerate(profile.sorts)}
    return found | {name: _each(took_ns[those], kernels["step"][those]) for name, those in rows.items()}


def _sample_void(name: Ints, step: Ints, start_ns: Floats, end_ns: Floats) -> dict[str, Sample]:
    """Return both voids of each step on the GPU, which lasts from the end of the step before to its own end.

    Of a step without the one before nothing is known between them. Where nothing is marked all counts as one step.
    """
    order = np.argsort(step, kind="stable")
    order = order[step[order] != UNKNOWN] if (step != UNKNOWN).any() else order
    begins = run_starts(step[order])
    first_ns, last_ns = np.minimum.reduceat(start_ns[order], begins), np.maximum.reduceat(end_ns[order], begins)
    follows = np.append(False, np.diff(step[order][begins]) == 1)
    begin_ns = np.where(follows, np.roll(last_ns, 1), first_ns)
    inner_ns = np.maximum(first_ns, begin_ns)  # kernels may run before the last one of the step before has ended
    whole_ns = last_ns - begin_ns
    busy = _Busy.of(start_ns, end_ns, np.isin(name, major_names(name, end_ns - start_ns)))
    kept, of_step = whole_ns > 0, step[order][begins]
    void_ns = last_ns - inner_ns - busy.within(inner_ns, last_ns)
    both = kept & follows
    return {
        VOID_BETWEEN: Sample((inner_ns - begin_ns)[both], whole_ns[both], of_step[both]),
        VOID_MINORITY: Sample(void_ns[kept], whole_ns[kept], of_step[kept]),
    }


def major_names(name: Ints, took_ns: Floats) -> Ints:
    """Return the fewest names of kernels that hold most of the time of all (`metric_major_ratio`)."""
    names, at = np.unique(name, return_inverse=True)
    held_ns = np.bincount(at, weights=took_ns)
    order = np.argsort(-held_ns, kind="stable")
    past = np.searchsorted(np.cumsum(held_ns[order]), PATH.metric_major_ratio * held_ns.sum())
    return np.asarray(names[order[: past + 1]])


class _Busy(NamedTuple):
    """Time in which any of some executions ran, up to each moment where one begins or the last one ends."""

    moment_ns: Floats
    until_ns: Floats

    @classmethod
    def of(cls, start_ns: Floats, end_ns: Floats, is_taken: Flags) -> _Busy:
        order = np.flatnonzero(is_taken)[np.argsort(start_ns[is_taken], kind="stable")]
        start, end = start_ns[order], np.maximum.accumulate(end_ns[order])
        # Executions that overlap, or follow at once, are one stretch.
        stretch = np.cumsum(np.append(False, start[1:] > end[:-1])) if len(order) else np.empty(0, np.int64)
        begin, past = start[run_starts(stretch)], end[run_ends(stretch)]
        until = np.cumsum(past - begin)
        edges = np.stack([begin, past], axis=1).ravel()
        return cls(edges, np.stack([until - (past - begin), until], axis=1).ravel())

    def within(self, begin_ns: Floats, past_ns: Floats) -> Floats:
        """Return how much of each span some of the executions covered, ns."""
        if not len(self.moment_ns):
            return np.zeros(len(begin_ns))
        begun, past = (np.interp(moment, self.moment_ns, self.until_ns) for moment in (begin_ns, past_ns))
        return np.asarray(past - begun)
