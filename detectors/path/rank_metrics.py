"""Five metrics of each rank over a window, and the ranks in which one of them is unlike that of their peers.

Throughput, floating point operations a second of each kind of matrix multiplication, bandwidth of each collective,
issue latency (from the launch of a kernel on the CPU to its start on the GPU), and void: the share of a step in which
the GPU runs none of the kernels that hold most of its time (XPUTimer, arXiv 2502.05413). A healthy CPU runs far
ahead, so that issue latency is long. One of some µs says that the GPU waits for its CPU, and void says how much time
that costs. Kernels that wait for other ranks make both long at once.

A metric is kept as samples. Those of several windows add up, and the distributions of two ranks are compared as a
whole: a median hides a rank of which a third of all launches is late.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import median
from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.arrays.runs import run_ends, run_starts
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.nics.thresholds import NICS
from irregulars.detectors.path.thresholds import PATH
from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.messages.bounds import LATEST_NS
from irregulars.messages.records import OPERATOR_CODES, RECV, SEND, UNKNOWN

THROUGHPUT: Final = "steps_per_s"
TOKENS: Final = "tokens_per_s"
ISSUE_LATENCY: Final = "issue_latency_ns"
FLOPS: Final = "flops_per_s"  # followed by a dot and the kind of multiplication
VOID_BETWEEN: Final = "void_between_steps_ratio"
VOID_MINORITY: Final = "void_minority_kernels_ratio"
_PER_STEP: Final = (THROUGHPUT, TOKENS, VOID_BETWEEN, VOID_MINORITY)

_GRID: Final = np.arange(101) / 100  # quantiles that are kept; without both ends distributions are compared by them
_SHORTEST_NS: Final = 1_000.0  # lower latencies are equal: many profilers count whole µs
_MEDIAN: Final = 49  # place of the median among the quantiles that are compared
_FEWEST: Final = 3  # ranks: of two that differ nothing tells which is the odd one


class Sample(NamedTuple):
    """Values of a metric, each as an amount and its divisor: seconds, ns of a step, or 1."""

    amount: Floats
    per: Floats


@dataclass(frozen=True, slots=True)
class Summary:
    """A metric of a rank over a window."""

    value: float  # all amounts over all they are held against; of issue latencies their median
    quantiles: Floats  # of its distribution, from 0 to 1 in hundredths
    count: int


class Difference(NamedTuple):
    """A metric in which a rank is unlike its peers, or one of its windows unlike the others."""

    rank: int
    metric: str
    value: float
    usual: float  # median of its peers
    quantile: float  # of the issue latency that both values are; 0.5 for other metrics
    distance: float  # between the distributions: a share of the step for void, else powers of ten
    window: int | None = None  # number of the window, from 0; None: all of them, against peers


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


def sample_kernels(kernels: Mapping[str, Column], kinds: Sequence[str], step_s: Floats) -> dict[str, Sample]:
    """Return the samples of a rank's window, by the names of its metrics; those of which nothing is known are absent.

    Parameters
    ----------
    kernels
        A row for each execution on the GPU: ``start_ns``, ``end_ns``, ``name`` (a code), ``step`` (of its launch;
        `UNKNOWN`: none), ``latency_ns`` (float64; NaN: not known), ``is_communication``, and of those that a matrix
        multiplication launched: ``call`` (its number, from 0; else `UNKNOWN`), ``flops`` (of the whole call; NaN: not
        known) and ``kind`` (place in `kinds`).
    step_s
        How long each step took, by the marks of the CPU.
    """
    found = {THROUGHPUT: _each(step_s, 1.0)}
    latency_ns = kernels["latency_ns"]
    found[ISSUE_LATENCY] = Sample(latency_ns[np.isfinite(latency_ns)], np.ones(np.isfinite(latency_ns).sum()))
    if len(latency_ns):
        # Relative to the first: float64 holds ns since the epoch only in steps of 256.
        origin_ns = kernels["start_ns"].min()
        start_ns, end_ns = ((kernels[name] - origin_ns).astype(np.float64) for name in ("start_ns", "end_ns"))
        found |= _sample_calls(kernels, kinds, start_ns, end_ns)
        found |= _sample_void(kernels["name"], kernels["step"], start_ns, end_ns)
    return {name: sample for name, sample in found.items() if len(sample.amount)}


def sample_iterations(elapsed_ns: Floats, tokens: Floats) -> dict[str, Sample]:
    """Return the samples of a rank without kernels; `tokens` of each iteration are NaN where nobody counts them."""
    is_counted = np.isfinite(tokens) & (elapsed_ns > 0)
    found = {
        THROUGHPUT: _each(elapsed_ns[elapsed_ns > 0] / 1e9, 1.0),
        TOKENS: Sample(tokens[is_counted], elapsed_ns[is_counted] / 1e9),
    }
    return {name: sample for name, sample in found.items() if len(sample.amount)}


def join_samples(windows: Iterable[Mapping[str, Sample]]) -> dict[str, Sample]:
    """Return the samples of several windows of a rank as those of one."""
    parts: dict[str, list[Sample]] = {}
    for window in windows:
        for name, sample in window.items():
            parts.setdefault(name, []).append(sample)
    return {name: Sample(*map(np.concatenate, zip(*own, strict=True))) for name, own in parts.items()}


def summarize(samples: Mapping[str, Sample]) -> dict[str, Summary]:
    """Return the value and the distribution of each metric."""
    found = {}
    for name, (amount, per) in samples.items():
        value = median(amount) if name == ISSUE_LATENCY else float(amount.sum() / per.sum())
        found[name] = Summary(value, np.quantile(amount / per, _GRID), len(amount))
    return found


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
        values, quantiles = np.array([one.value for one in own]), np.stack([one.quantiles for one in own])[:, 1:-1]
        typical = np.median(_comparable(name, quantiles), axis=0)
        apart = _comparable(name, quantiles) - typical
        distance, least = np.abs(apart).mean(axis=1), _least(name)
        middle = median(distance)
        limit = middle + NICS.deviations * median(np.abs(distance - middle))
        for at in np.flatnonzero((distance > limit) & (distance >= least)).tolist():
            value, usual, quantile = values[at], np.median(values), 0.5
            if name == ISSUE_LATENCY:
                # The median, unless distributions are more than twice as far apart elsewhere
                far = np.abs(apart[at])
                where = _MEDIAN if 2 * far[_MEDIAN] >= far.max() else int(np.argmax(far))
                value, usual, quantile = quantiles[at, where], np.median(quantiles[:, where]), _GRID[1:-1][where]
            else:
                more = np.diff(_comparable(name, np.array([usual, value])))[0]
                if (more if name.startswith("void") else -more) < least:
                    continue
            found.append(
                Difference(peers[at], name, float(value), float(usual), float(quantile), float(distance[at]))
            )
    return sorted(found, key=lambda one: (-one.distance / _least(one.metric), one.rank, one.metric))


def find_changes(rank: int, windows: Sequence[Mapping[str, Summary]]) -> list[Difference]:
    """Return the metrics in which a window of a rank is unlike its other windows."""
    own = dict(enumerate(windows))
    return [one._replace(rank=rank, window=one.rank) for one in find_differences(own, dict.fromkeys(own, 0))]


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


def _each(per: Floats, amount: float) -> Sample:
    return Sample(np.full(len(per), amount), per)


def _comparable(name: str, quantiles: Floats) -> Floats:
    """Return quantiles on the scale on which distances are measured: rates and latencies differ by factors."""
    if name.startswith("void"):
        return quantiles
    return np.log10(np.maximum(quantiles, _SHORTEST_NS if name == ISSUE_LATENCY else np.finfo(np.float64).tiny))


def _least(name: str) -> float:
    """Return the smallest distance that matters."""
    if name.startswith("void"):
        return JOB.alike
    return math.log10(JOB.twice if name == ISSUE_LATENCY else 1 + JOB.alike)


def _sample_calls(
    kernels: Mapping[str, Column], kinds: Sequence[str], start_ns: Floats, end_ns: Floats
) -> dict[str, Sample]:
    """Return the rates of multiplications; those that share the GPU with communication are left out."""
    busy = _Busy.of(start_ns, end_ns, kernels["is_communication"])
    own = np.flatnonzero(kernels["call"] != UNKNOWN)
    call, first, at = np.unique(kernels["call"][own], return_index=True, return_inverse=True)
    took_s = np.bincount(at, weights=(end_ns - start_ns)[own], minlength=len(call)) / 1e9
    shared_ns = np.bincount(at, weights=busy.within(start_ns[own], end_ns[own]), minlength=len(call))
    flops, kind = kernels["flops"][own][first], kernels["kind"][own][first]
    is_taken = (took_s > 0) & (shared_ns == 0) & np.isfinite(flops)
    rows = {f"{FLOPS}.{name}": np.flatnonzero(is_taken & (kind == code)) for code, name in enumerate(kinds)}
    return {name: Sample(flops[those], took_s[those]) for name, those in rows.items()}


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
    kept = whole_ns > 0
    return {
        VOID_BETWEEN: Sample((inner_ns - begin_ns)[kept & follows], whole_ns[kept & follows]),
        VOID_MINORITY: Sample((last_ns - inner_ns - busy.within(inner_ns, last_ns))[kept], whole_ns[kept]),
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
