"""Iterations that are complete, and their reduction to evidence.

Those of many ranks are reduced at once, since what numpy costs is per call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from irregulars.detectors.path.ranks_to_read import WIDE
from irregulars.streams.messages.evidence import COLUMNS, Evidence, Membership, no_patterns
from irregulars.streams.messages.records import RECV, UNKNOWN
from irregulars.streams.rank_hop.nic_patterns import place_samples, reduce_patterns
from irregulars.streams.rank_hop.nic_samples import Samples
from irregulars.streams.rank_hop.operator_reduction import OPERATOR_COLUMNS, Reduction, reduce_blocks

if TYPE_CHECKING:
    from irregulars.detectors.plugins.protocol import Detector

Array = np.ndarray

_MOST_ROWS: Final = 12_000
"""Rows reduced at once: more would fall out of the caches."""


@dataclass(frozen=True, slots=True)
class Closing:
    """Complete iterations of one rank, and all that is known of them.

    Parameters
    ----------
    names, sizes
        Communicator ids by the code in ``rows``; how many ranks those that were announced have.
    numbers
        The iterations, ascending.
    rows
        Their operators, `streams.rank_hop.operator_reduction.OPERATOR_COLUMNS`.
    free_ns
        For each iteration when the rank was free to begin it, as `reduce_blocks` says.
    entry_ns
        End of the rank's last operator before the first of them, if it was of the iteration before; else `UNKNOWN`.
    start_ns, elapsed_ns, phase, tokens
        Of each iteration, as its own row says; `UNKNOWN`, `PHASE_UNKNOWN` and NaN where there is none.
    late_rows, lost_rows
        Rows that came too late since the closing before, and rows lost so far.
    samples
        Of the rank's NIC; None if there are none.
    """

    attempt: int
    rank: int
    partition: int
    names: tuple[str, ...]
    sizes: Mapping[str, int]
    numbers: Array
    rows: Mapping[str, Array]
    free_ns: Array
    entry_ns: int
    start_ns: Array
    elapsed_ns: Array
    phase: Array
    tokens: Array
    late_rows: int
    lost_rows: int
    detectors: Sequence[Detector] = ()
    samples: Samples | None = None


def reduce_closings(job: str, closed: Sequence[Closing | Membership]) -> list[Evidence | Membership]:
    """Reduce what RankMonitors of one job closed; what came and went keeps its place between the evidence."""
    reduced: list[Evidence | Membership] = []
    for run in _runs(closed):
        if isinstance(run, Membership):
            reduced.append(run)
        else:
            reduced.append(_reduce(job, run))
    return reduced


def reduce_all(job: str, closed: Sequence[Closing | Membership]) -> list[Evidence | Membership]:
    """Reduce what many RankMonitors closed, each rank at most once: arrivals first, departures last.

    Nothing depends on the order of different ranks, so that few large reductions take the place of many small ones.
    """
    came = [one for one in closed if isinstance(one, Membership) and one.reason is None]
    went = [one for one in closed if isinstance(one, Membership) and one.reason is not None]
    return reduce_closings(job, [*came, *(one for one in closed if isinstance(one, Closing)), *went])


def _runs(closed: Sequence[Closing | Membership]) -> Iterator[Membership | list[Closing]]:
    run: list[Closing] = []
    rows = 0
    for one in closed:
        if run and (isinstance(one, Membership) or rows >= _MOST_ROWS):
            yield run
            run, rows = [], 0
        if isinstance(one, Membership):
            yield one
        else:
            run.append(one)
            rows += len(one.rows["offset"])
    if run:
        yield run


def _reduce(job: str, closings: Sequence[Closing]) -> Evidence:
    sizes = np.array([len(one.numbers) for one in closings])
    numbers = _joined([one.numbers for one in closings])
    first = np.cumsum(sizes) - sizes  # block of each closing's first iteration
    follows = np.diff(numbers, prepend=numbers[:1]) == 1
    follows[first] = False
    names = {name: code for code, name in enumerate(dict.fromkeys(n for one in closings for n in one.names))}
    rows = _rows(closings, first, names)
    reduction = reduce_blocks(
        rows, follows, _joined([one.free_ns for one in closings]), _is_classed(rows, _wide_codes(closings, names))
    )
    columns = _columns(closings, sizes, numbers, follows, reduction)
    patterns, pattern_counts = _patterns(closings, first, columns, reduction)
    return Evidence(
        job=job,
        names=tuple(names),
        columns=columns,
        offsets=reduction.offsets,
        offset_counts=reduction.offset_counts,
        classes=reduction.classes,
        class_counts=reduction.class_counts,
        patterns=patterns,
        pattern_counts=pattern_counts,
    )


def _joined(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _rows(closings: Sequence[Closing], first: Array, names: Mapping[str, int]) -> dict[str, Array]:
    """Rows of all closings, with their block, and with communicators as codes into `names`."""
    rows = {name: _joined([one.rows[name] for one in closings]) for name in OPERATOR_COLUMNS}
    blocks = [
        begin + np.searchsorted(one.numbers, one.rows["iteration"])
        for one, begin in zip(closings, first.tolist(), strict=True)
    ]
    rows["block"] = _joined(blocks)
    if len(closings) == 1:
        return rows
    if any(one.detectors for one in closings):
        rows["own_communicator"] = rows["communicator"]  # detectors are promised codes that are stable within a rank
    counts = [len(one.names) for one in closings]
    table = np.array([names[name] for one in closings for name in one.names] or [0], dtype=np.int64)
    lengths = [len(one.rows["offset"]) for one in closings]
    rows["communicator"] = table[rows["communicator"] + np.repeat(np.cumsum(counts) - counts, lengths)]
    return rows


def _wide_codes(closings: Sequence[Closing], names: Mapping[str, int]) -> Array:
    is_wide = np.zeros(max(len(names), 1), dtype=bool)
    for one in closings:
        for name in one.names:
            is_wide[names[name]] = one.sizes.get(name, 0) > WIDE
    return is_wide


def _is_classed(rows: Mapping[str, Array], is_wide: Array) -> Array:
    return (rows["operator"] == RECV) | (is_wide[rows["communicator"]] & (rows["peer"] == UNKNOWN))


def _columns(
    closings: Sequence[Closing], sizes: Array, numbers: Array, follows: Array, reduction: Reduction
) -> dict[str, Array]:
    first = np.cumsum(sizes) - sizes

    def spread(values: Sequence[int]) -> Array:
        return np.repeat(np.array(values, dtype=np.int64), sizes)

    entry_ns = np.full(len(numbers), UNKNOWN)
    entry_ns[first] = [one.entry_ns for one in closings]
    after = np.flatnonzero(follows)
    entry_ns[after] = reduction.last_end_ns[after - 1]
    late_rows = np.zeros(len(numbers), dtype=np.int64)
    late_rows[first] = [one.late_rows for one in closings]
    start_ns, elapsed_ns = (_joined([getattr(one, n) for one in closings]) for n in ("start_ns", "elapsed_ns"))
    is_measured = start_ns == UNKNOWN  # no row of the iteration said so
    start_ns = np.where(is_measured, reduction.first_start_ns, start_ns)
    elapsed_ns = np.where(is_measured, reduction.last_end_ns - reduction.first_start_ns, elapsed_ns)
    is_untimed = (reduction.first_start_ns == UNKNOWN) & ~is_measured  # then work is what operators leave of it
    work_ns = np.where(is_untimed, np.maximum(elapsed_ns - reduction.communication_ns, 0.0), reduction.work_ns)
    tx_peak, rx_peak = _peaks(closings, first, start_ns, start_ns + elapsed_ns)
    columns: dict[str, Array] = {
        "attempt": spread([one.attempt for one in closings]),
        "rank": spread([one.rank for one in closings]),
        "iteration": numbers,
        "start_ns": start_ns,
        "elapsed_ns": elapsed_ns,
        "entry_ns": entry_ns,
        "last_end_ns": reduction.last_end_ns,
        "work_ns": work_ns,
        "communication_ns": reduction.communication_ns,
        "operators": reduction.operators.astype(np.int64),
        "unended": reduction.unended.astype(np.int64),
        "late_rows": late_rows,
        "lost_rows": spread([one.lost_rows for one in closings]),
        "phase": _joined([one.phase for one in closings]),
        "tokens": _joined([one.tokens for one in closings]),
        "score": _scores(closings, first, sizes, reduction),
        "nic_tx_peak": tx_peak,
        "nic_rx_peak": rx_peak,
        "partition": spread([one.partition for one in closings]),
    }
    assert columns.keys() == COLUMNS.keys()
    return columns


def _peaks(closings: Sequence[Closing], first: Array, start_ns: Array, end_ns: Array) -> tuple[Array, Array]:
    """Peak rates of the ranks' NICs in each iteration."""
    found = np.full((2, len(start_ns)), np.nan)
    for one, begin in zip(closings, first.tolist(), strict=True):
        if one.samples is not None and len(one.samples.tx):
            own = slice(begin, begin + len(one.numbers))
            found[:, own] = one.samples.peaks(start_ns[own], end_ns[own])
    return found[0], found[1]


def _patterns(
    closings: Sequence[Closing], first: Array, columns: Mapping[str, Array], reduction: Reduction
) -> tuple[dict[str, Array], Array]:
    """Behaviour patterns of the iterations of those ranks whose NICs were sampled."""
    parts = [
        (begin, one.samples, len(one.numbers))
        for one, begin in zip(closings, first.tolist(), strict=True)
        if one.samples is not None and len(one.samples.tx)
    ]
    start_ns, elapsed_ns = columns["start_ns"], columns["elapsed_ns"]
    if not parts:
        return no_patterns(len(start_ns))
    sampled = place_samples(
        [(begin, samples) for begin, samples, _ in parts],
        np.array([size for *_, size in parts]),
        start_ns,
        elapsed_ns,
    )
    return reduce_patterns(reduction.rows, elapsed_ns, start_ns, sampled)


def _scores(closings: Sequence[Closing], first: Array, sizes: Array, reduction: Reduction) -> Array:
    """Largest score of an operator of each iteration: score, then learn, iteration by iteration.

    So what is learned, and with it every score, does not depend on which iterations happened to be closed together.
    """
    largest = np.full(int(sizes.sum()), np.nan)
    if not any(one.detectors for one in closings):
        return largest
    begins = np.searchsorted(reduction.rows["block"], np.arange(len(largest) + 1)).tolist()
    frame = {name: reduction.rows[name] for name in OPERATOR_COLUMNS} | {"gap_ns": reduction.gap_ns}
    frame["communicator"] = reduction.rows.get("own_communicator", frame["communicator"])
    for one, begin, size in zip(closings, first.tolist(), sizes.tolist(), strict=True):
        for block in range(begin, begin + size):
            part = {name: column[begins[block] : begins[block + 1]] for name, column in frame.items()}
            if one.detectors and len(part["gap_ns"]):
                largest[block] = _score(part, one.detectors)
    return largest


def _score(frame: Mapping[str, Array], detectors: Sequence[Detector]) -> float:
    best = np.nan
    for detector in detectors:
        scores = detector.score(frame)
        detector.learn(frame)
        best = np.fmax(best, np.fmax.reduce(scores, initial=np.nan))
    return float(best)
