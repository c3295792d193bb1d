"""Anchors: the communicators whose reductions mark, for all their ranks alike, where an iteration ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from irregulars.producers.iteration_inference.borders import HOLE, REPEATS, AnchorLane, find_cuts
from irregulars.producers.iteration_inference.operators import REDUCTIONS, TRAINING, Operators, number_rows

Array = np.ndarray

_SAMPLED: Final = 4
_SCALAR_BYTES: Final = 4096
_SCALAR_SHARE: Final = 1 / 64
_SPREAD: Final = 0.3
_FINER: Final = 2.0
_KIND_ORDER: Final = {"world": 0, "dp": 1, "unknown": 2}
_OTHER_KIND: Final = 3


@dataclass(frozen=True, slots=True)
class Anchor:
    """A communicator that marks where iterations end."""

    communicator: int  # its code
    ranks: Array  # those that are numbered by it
    last_sequence: Array  # of each iteration, ascending: its last reduction on the communicator
    first_sequence: int  # the first reduction of the first iteration


def find_anchors(operators: Operators, kinds: Sequence[str]) -> list[Anchor]:
    """Choose an anchor for each rank; a rank that nothing periodic connects to others gets none.

    First comes the communicator of all ranks (kind ``world``), then those of data parallel ranks, then those of
    unknown kind, then the others; of equals the one that is used least.
    If all ranks share only single numbers, rarer than the gradients of the others (an evaluation's loss), the
    gradients mark where an iteration ends.

    `kinds`: kind of each communicator, by code.
    """
    uncovered = set(np.unique(operators.rank).tolist())
    found: list[Anchor] = []
    candidates = _candidates(operators, kinds)
    for place, candidate in enumerate(candidates):
        if candidate.used < REPEATS or not uncovered.intersection(candidate.ranks.tolist()):
            continue
        anchor = _learn(operators, candidate)
        if anchor is None:
            continue
        if candidate.is_scalar and _has_finer(operators, candidate, candidates[place + 1 :], anchor):
            continue
        own = np.array(sorted(uncovered.intersection(candidate.ranks.tolist())), dtype=np.int64)
        found.append(replace(anchor, ranks=own))
        uncovered.difference_update(own.tolist())
        if not uncovered:
            break
    return found


def is_settled(operators: Operators, kinds: Sequence[str], anchors: Sequence[Anchor]) -> bool:
    """Return whether more operators would hardly change the anchors: no better communicator was used even once."""
    best: dict[int, int] = {}
    for candidate in _candidates(operators, kinds):
        for rank in candidate.ranks.tolist():
            best.setdefault(rank, candidate.communicator)
    return all(best[rank] == anchor.communicator for anchor in anchors for rank in anchor.ranks.tolist())


@dataclass(frozen=True, slots=True)
class _Candidate:
    communicator: int
    ranks: Array
    used: int
    is_scalar: bool
    is_data_parallel: bool


def _candidates(operators: Operators, kinds: Sequence[str]) -> list[_Candidate]:
    is_reduction = np.isin(operators.operator, REDUCTIONS)
    communicator, rank = operators.communicator[is_reduction], operators.rank[is_reduction]
    sequence, size_bytes = operators.sequence[is_reduction], operators.size_bytes[is_reduction]
    largest = np.fmax.reduce(operators.size_bytes, initial=0.0)
    ranked = []
    by_communicator = np.argsort(communicator, kind="stable")
    codes, firsts = np.unique(communicator[by_communicator], return_index=True)
    for code, rows in zip(codes.tolist(), np.split(by_communicator, firsts[1:]), strict=False):
        used = len(np.unique(sequence[rows]))
        ranks = np.unique(rank[rows])
        own = np.fmax.reduce(size_bytes[rows], initial=0.0)
        order = _KIND_ORDER.get(kinds[code], _OTHER_KIND)
        candidate = _Candidate(code, ranks, used, _is_scalar(own, largest), order <= _KIND_ORDER["dp"])
        ranked.append(((order, used, -len(ranks), code), candidate))
    return [candidate for _, candidate in sorted(ranked, key=lambda one: one[0])]


def _learn(operators: Operators, candidate: _Candidate) -> Anchor | None:
    lane = anchor_lane(operators, candidate.communicator, candidate.ranks)
    cuts = find_cuts(lane)
    if len(cuts) < REPEATS + 1:
        return None
    last_sequence = lane.sequence[cuts[1:] - 1]
    first_sequence = int(lane.sequence[cuts[0]])
    # The iterations must hold a good part of a rank's operators: set-up repeats itself too.
    rows = rows_of_rank(operators, int(candidate.ranks[0]))
    own = np.flatnonzero((rows.communicator == candidate.communicator) & rows.is_collective)
    inside = own[(rows.sequence[own] >= first_sequence) & (rows.sequence[own] <= last_sequence[-1])]
    if not len(inside) or inside.max() - inside.min() + 1 < _SPREAD * len(rows):
        return None
    return Anchor(candidate.communicator, candidate.ranks, last_sequence, first_sequence)


def _has_finer(operators: Operators, candidate: _Candidate, others: Sequence[_Candidate], anchor: Anchor) -> bool:
    for other in others:
        if other.is_scalar or not other.is_data_parallel or len(np.intersect1d(other.ranks, candidate.ranks)) < 2:
            continue
        lane = anchor_lane(operators, other.communicator, other.ranks)
        if not lane.sides and len(np.unique(lane.classes)) < 2:
            return False  # one operator over and over: nothing tells buckets from iterations
        return len(find_cuts(lane)) >= _FINER * len(anchor.last_sequence)
    return False


def rows_of_rank(operators: Operators, rank: int) -> Operators:
    """Take the rows of one rank, in order of start."""
    first, past = np.searchsorted(operators.rank, [rank, rank + 1])
    return operators.only(slice(first, past))  # type: ignore[arg-type]


def anchor_lane(operators: Operators, communicator: int, ranks: Array) -> AnchorLane:
    """Join the reductions of a communicator as its members logged them."""
    own = operators.only((operators.communicator == communicator) & operators.is_collective)
    reductions = own.only(np.isin(own.operator, REDUCTIONS))
    # The reductions, and the missing ones between them: rows were lost, unless numbers count otherwise.
    sequence = np.unique(reductions.sequence)
    if len(sequence) and sequence[-1] - sequence[0] < 2 * len(np.unique(own.sequence)):
        span = np.arange(sequence[0], sequence[-1] + 1)
        sequence = span[np.isin(span, sequence) | ~np.isin(span, own.sequence)]
    place = np.searchsorted(sequence, reductions.sequence)
    size_bytes = np.full(len(sequence), np.nan)
    np.fmax.at(size_bytes, place, reductions.size_bytes)
    coarse = np.full(len(sequence), HOLE)
    coarse[place] = reductions.operator
    is_known = coarse != HOLE
    classes = np.full(len(sequence), HOLE)
    sizes = np.where(np.isnan(size_bytes), -1, size_bytes).astype(np.int64)
    classes[is_known] = number_rows(coarse[is_known], sizes[is_known])
    sampled = ranks[np.unique(np.linspace(0, len(ranks) - 1, _SAMPLED).astype(np.int64))]
    sides = [side for rank in sampled.tolist() for side in _sides(operators, rank, communicator, sequence)]
    largest = float(np.fmax.reduce(operators.size_bytes, initial=0.0))
    is_scalar = (size_bytes > 0) & (size_bytes <= min(_SCALAR_BYTES, _SCALAR_SHARE * largest))
    starts = np.full(len(sequence), np.inf)
    is_timed = reductions.start_ns > 0
    np.minimum.at(starts, place[is_timed], reductions.start_ns[is_timed].astype(np.float64))
    timed, every = np.flatnonzero(np.isfinite(starts)), np.arange(len(sequence), dtype=np.float64)
    starts = np.interp(every, timed, starts[timed]) if len(timed) else every
    return AnchorLane(sequence, classes, coarse, size_bytes, is_scalar, starts, sides)


def _sides(operators: Operators, rank: int, communicator: int, sequence: Array) -> list[Array]:
    """How many operators of each training kind a rank ran before each operator of the lane."""
    rows = rows_of_rank(operators, rank)
    rows = rows.only(rows.start_ns > 0)
    is_anchor = (rows.communicator == communicator) & np.isin(rows.operator, REDUCTIONS)
    position = np.full(len(sequence), np.nan)
    position[np.searchsorted(sequence, rows.sequence[is_anchor])] = np.flatnonzero(is_anchor)
    ends = np.where(np.isnan(position), 0, position).astype(np.int64)
    is_known = ~np.isnan(position) & ~np.isnan(np.roll(position, 1))
    is_known[:1] = False
    sides = []
    for chosen in _training_kinds(rows, is_anchor):
        before = np.cumsum(chosen)
        count = np.diff(before[ends], prepend=0).astype(np.float64)
        sides.append(np.where(is_known & (count >= 0), count, np.nan))
    return sides


def _training_kinds(rows: Operators, is_anchor: Array) -> Iterator[Array]:
    """Masks of the kinds of training communication beside the anchor; single numbers are metrics, and no sign."""
    is_training = np.isin(rows.operator, TRAINING) & ~is_anchor
    largest = np.fmax.reduce(rows.size_bytes, initial=0.0)
    kind = number_rows(rows.communicator, rows.operator)
    for code in np.unique(kind[is_training]).tolist():
        chosen = is_training & (kind == code)
        own = np.fmax.reduce(rows.size_bytes[chosen], initial=0.0)
        if chosen.sum() >= REPEATS and not _is_scalar(own, largest):
            yield chosen


def _is_scalar(size_bytes: float, largest_bytes: float) -> bool:
    """Return whether a communicator reduces single numbers, such as a loss, and not gradients."""
    return 0 < size_bytes <= min(_SCALAR_BYTES, _SCALAR_SHARE * largest_bytes)
