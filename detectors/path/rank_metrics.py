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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import median
from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.nics.thresholds import NICS
from irregulars.dtypes import Column, Floats, Ints
from irregulars.grouping import grouped
from irregulars.messages.bounds import LATEST_NS
from irregulars.messages.device_events import (
    FLOPS,
    ISSUE_LATENCY,
    KERNELS,
    QUANTILES,
    THROUGHPUT,
    TOKENS,
    VOID_BETWEEN,
    VOID_MINORITY,
    DeviceEvent,
    Summary,
    read_metric,
)
from irregulars.messages.records import OPERATOR_CODES, RECV, SEND, UNKNOWN
from irregulars.words import duration, ordinal

_PER_STEP: Final = (THROUGHPUT, TOKENS, VOID_BETWEEN, VOID_MINORITY)

_SHORTEST_NS: Final = 1_000.0  # lower latencies are equal: many profilers count whole µs
_STALLED_NS: Final = 1e5  # a launch takes some µs: a GPU that starts later has a queue
_MEDIAN: Final = 5  # place of the median among the quantiles
_FEWEST: Final = 3  # ranks: of two that differ nothing tells which is the odd one
_HEADS: Final = {
    THROUGHPUT: "steps/s", TOKENS: "tokens/s", ISSUE_LATENCY: "issue latency",
    VOID_BETWEEN: "void between steps", VOID_MINORITY: "void within steps",
}  # fmt: skip


class Difference(NamedTuple):
    """A metric in which a rank is unlike its peers."""

    rank: int
    metric: str
    value: float
    usual: float  # median of its peers
    quantile: float  # of the issue latency that both values are; 0.5 for other metrics
    distance: float  # between the distributions: a share of the step for void, else powers of ten

    @property
    def score(self) -> float:
        """How many times the smallest distance that matters it is; 0: it tells of no GPU that is slow or waits."""
        is_told = self.is_stalled if self.metric == ISSUE_LATENCY else self.metric not in (THROUGHPUT, TOKENS)
        return self.distance / _least(self.metric) if is_told else 0.0

    @property
    def is_stalled(self) -> bool:
        """Whether the GPU waits for its CPU, which ran ahead of it before or elsewhere."""
        return self.metric == ISSUE_LATENCY and self.value < _STALLED_NS < self.usual


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


def join_windows(windows: Iterable[Mapping[str, Summary]]) -> dict[str, Summary]:
    """Return the metrics of several windows of a rank as those of one; of distributions the mean quantiles."""
    parts = grouped(one for window in windows for one in window.items())
    found = {}
    for name, own in parts.items():
        counts, weights = [one.count for one in own], [one.weight for one in own]
        value = float(np.average([one.value for one in own], weights=weights))
        quantiles = np.average([one.quantiles for one in own], axis=0, weights=counts)
        found[name] = Summary(value, quantiles, sum(counts), sum(weights))
    return found


def windows_of(events: Iterable[DeviceEvent]) -> dict[int, dict[int, dict[str, Summary]]]:
    """Return the metrics that events tell of each rank, by when their windows begin."""
    found: dict[int, dict[int, dict[str, Summary]]] = {}
    for one in events:
        summary = read_metric(one)
        if summary is not None:
            found.setdefault(one.rank, {}).setdefault(one.time_ns, {})[one.device] = summary
    return found


def find_differences(ranks: Mapping[int, Mapping[str, Summary]], stages: Mapping[int, int]) -> list[Difference]:
    """Return the metrics in which a rank is unlike the ranks of its stage, the largest distances first.

    The distance is that of Wasserstein to the stage's typical distribution, the median at each quantile. A rank is
    unlike its peers if it lies above the median of all distances by more than five times their median deviation
    (EROICA's rule for patterns), and by enough to matter; a higher rate, or less void, is left out.

    `ranks`: metrics of each rank. `stages`: pipeline stage of each rank; those of one do the same work.
    """
    owners = grouped(
        ((stages[rank], name), rank) for rank, metrics in ranks.items() for name, one in metrics.items()
        if one.count >= (1 if name in _PER_STEP else JOB.metric_least_count)
    )  # fmt: skip
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
        limit = middle + NICS.deviations * median(np.abs(distance - middle))
        for at in np.flatnonzero((distance > limit) & (distance >= least)).tolist():
            value, usual, quantile = values[at], np.median(values), 0.5
            if name == ISSUE_LATENCY:
                # The median, unless distributions are more than twice as far apart elsewhere
                far = np.abs(apart[at])
                where = _MEDIAN if 2 * far[_MEDIAN] >= far.max() else int(np.argmax(far))
                value, usual, quantile = quantiles[at, where], np.median(quantiles[:, where]), QUANTILES[where]
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
    >>> text_of_difference(Difference(3, "kernel_ns.x", 5, 0, 0.5, 1)).partition(":")[0]  # by a strange producer
    'x kernels of rank 3 are 400% longer'
    """
    value, usual = (text_of_value(one.metric, number) for number in (one.value, one.usual))
    where = "" if one.quantile == 0.5 else f" at the {ordinal(round(100 * one.quantile))} percentile"
    rank = f"rank {one.rank}"
    if one.metric.startswith(KERNELS):
        longer, kind = one.value / max(one.usual, 1.0) - 1, one.metric.rpartition(".")[2]
        return f"{kind} kernels of {rank} are {longer:.0%} longer: time of each {value}, {others} {usual}"
    text = f"{name_metric(one.metric)} of {rank} is {value}{where}, {others} {usual}"
    return f"{text}: its CPU does not run ahead of its GPU" if one.is_stalled else text


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
