"""Iterations of a job that marks none: from the operators of all its ranks to the iteration of each.

Also when iterations began and ended on each rank, by the operators in them, and unmarked phases: evaluations and
checkpoints, known by how regularly they recur.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from irregulars.messages.records import OPERATORS, PHASES, UNKNOWN
from irregulars.producers.iteration_inference.anchors import Anchor, find_anchors
from irregulars.producers.iteration_inference.assignment import assign_iterations
from irregulars.producers.iteration_inference.operators import TRAINING, Operators, arrange_operators

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class IterationSpans:
    """Times of iterations on ranks."""

    ranks: Array  # ascending
    # start_ns, past_ns: ``(ranks, iterations)``, int64; from the first operator's start to the last one's end, as
    # where nothing else is known of an iteration; `UNKNOWN` where a rank has no timed operator of one
    start_ns: Array
    past_ns: Array
    gaps_ns: Array  # time without an operator before the first one, float64; NaN where unknown

    @property
    def job_elapsed_ns(self) -> Array:
        """Return the largest time of each iteration's ranks, float64; 0 where no rank knows it."""
        elapsed_ns = np.where(self.start_ns == UNKNOWN, 0, self.past_ns - self.start_ns)
        return elapsed_ns.max(axis=0, initial=0).astype(np.float64)

    def of_rank(self, rank: int) -> tuple[Array, Array, Array]:
        """Return numbers, starts and lengths (float64, ns) of the iterations of one rank."""
        at = int(np.searchsorted(self.ranks, rank))
        if at == len(self.ranks) or self.ranks[at] != rank:
            empty = np.empty(0, dtype=np.int64)
            return empty, empty, empty.astype(np.float64)
        number = np.flatnonzero(self.start_ns[at] != UNKNOWN)
        start_ns = self.start_ns[at][number]
        return number, start_ns, (self.past_ns[at][number] - start_ns).astype(np.float64)


def measure_iterations(operators: Operators, iteration: Array, elapsed_ns: Array) -> IterationSpans:
    """Measure the iterations of all ranks."""
    ranks, place = np.unique(operators.rank, return_inverse=True)
    count = int(iteration.max(initial=-1)) + 1
    is_timed = (iteration != UNKNOWN) & (operators.start_ns != UNKNOWN)
    cell = (place[is_timed], iteration[is_timed])
    start_ns = operators.start_ns[is_timed]
    took_ns = np.where(np.isnan(elapsed_ns[is_timed]), 0, elapsed_ns[is_timed]).astype(np.int64)
    first_ns = np.full((len(ranks), count), np.iinfo(np.int64).max)
    past_ns = np.full((len(ranks), count), UNKNOWN)
    np.minimum.at(first_ns, cell, start_ns)
    np.maximum.at(past_ns, cell, start_ns + took_ns)
    is_known = past_ns != UNKNOWN
    before_ns = np.full_like(past_ns, UNKNOWN)
    before_ns[:, 1:] = past_ns[:, :-1]
    has_before = is_known & (before_ns != UNKNOWN)
    gaps_ns = np.where(has_before, np.maximum(first_ns - np.where(has_before, before_ns, first_ns), 0), np.nan)
    return IterationSpans(ranks, np.where(is_known, first_ns, UNKNOWN), past_ns, gaps_ns)


_TRAIN: Final = PHASES.index("train")
_EVAL: Final = PHASES.index("eval")
_CHECKPOINT: Final = PHASES.index("checkpoint")

_LESS: Final = 0.8
_FEWEST_MORE: Final = 2
_TIMES: Final = 3
_KEPT: Final = 0.8
_LONG_GAP: Final = 0.3
_USUAL_GAPS: Final = 3.0


def find_phases(operators: Operators, iteration: Array, rank_gaps_ns: Array, job_elapsed_ns: Array) -> Array:
    """Find evaluations and checkpoints.

    An evaluation has less of a training operator than usual (no backward pass) or more of one; a checkpoint has more
    operators that gather and wait, or keeps every rank from its first operator for long. Either must recur at even
    distances, `_TIMES` at least: an event that comes once is no phase, and one rank that is late is never one.

    `rank_gaps_ns`: for each rank and iteration, ``(ranks, iterations)``: how long the rank ran no operator before the
    first one; NaN where unknown. Returns of each iteration the index into `PHASES`, uint8.
    """
    count = len(job_elapsed_ns)
    phases = np.full(count, _TRAIN, dtype=np.uint8)
    if count < 2 * _TIMES:
        return phases
    # For each iteration and operator whether there were fewer, or more, than usual in the whole job.
    known = np.flatnonzero(iteration != UNKNOWN)
    order = known[np.lexsort((operators.sequence[known], operators.lane[known], iteration[known]))]
    lane, sequence = operators.lane[order], operators.sequence[order]
    is_new = (np.diff(lane, prepend=-1) != 0) | (np.diff(sequence, prepend=-1) != 0)
    key = iteration[order][is_new] * len(OPERATORS) + operators.operator[order][is_new]
    counts = np.bincount(key, minlength=count * len(OPERATORS)).reshape(count, len(OPERATORS)).astype(np.float64)
    usual = np.median(counts, axis=0)
    less, more = counts < _LESS * usual, counts > np.maximum(usual / _LESS, usual + _FEWEST_MORE - 1)
    is_training = np.isin(np.arange(len(OPERATORS)), TRAINING)
    is_evaluation = np.asarray((less | more)[:, is_training].any(axis=1))
    is_checkpoint: Array = ~is_evaluation & more.any(axis=1)
    # Iterations before which all ranks ran nothing for long
    shortest = np.where(np.isnan(rank_gaps_ns), np.inf, rank_gaps_ns).min(axis=0, initial=np.inf)
    shortest = np.where(np.isfinite(shortest), shortest, 0.0)
    floor = max(_LONG_GAP * float(np.median(job_elapsed_ns)), _USUAL_GAPS * float(np.median(shortest)))
    pauses = shortest > floor
    for found, phase in ((pauses, _CHECKPOINT), (is_checkpoint, _CHECKPOINT), (is_evaluation, _EVAL)):
        phases[_recurring(found)] = phase
    return phases


def _recurring(found: Array) -> Array:
    """Keep the iterations that recur at even distances; neighbours count as one."""
    at = np.flatnonzero(found)
    firsts = at[np.diff(at, prepend=-2) > 1]
    if len(firsts) < _TIMES:
        return at[:0]
    steps, counts = np.unique(np.diff(firsts), return_counts=True)
    step = int(steps[counts.argmax()])
    if step < 2:
        return at[:0]
    phase = np.bincount(firsts % step).argmax()
    lattice = np.arange(phase, len(found), step)
    lattice = lattice[(lattice >= firsts[0]) & (lattice <= firsts[-1])]
    kept = np.intersect1d(lattice, firsts)
    if len(kept) < max(_TIMES, _KEPT * len(lattice), _KEPT * len(firsts)):
        return at[:0]
    run = np.searchsorted(firsts, at, side="right") - 1
    return at[np.isin(firsts[run], kept)]


COLUMNS: Final = ("rank", "communicator", "operator", "sequence", "peer", "start_ns", "elapsed_ns", "size_bytes")
"""Columns that are read: communicators as codes of the whole job, the rest as in `messages.records`."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """The inferred iterations."""

    iteration: Array  # of each row given, int64; `UNKNOWN` outside of iterations
    anchors: tuple[Anchor, ...] = ()  # the communicators that mark the ends of iterations, and their ranks
    spans: IterationSpans | None = None  # when each iteration began and ended on each rank; None where there are none
    # Index into `messages.records.PHASES` of each iteration, uint8
    phases: Array = field(default_factory=lambda: np.empty(0, dtype=np.uint8))

    @property
    def count(self) -> int:
        """Number of iterations."""
        return int(self.iteration.max(initial=-1)) + 1

    def rows_of(self, rank: int) -> dict[str, Array]:
        """Return the columns of the record ``iterations`` of one rank, in order."""
        assert self.spans is not None, "only what was inferred has rows"
        number, start_ns, elapsed_ns = self.spans.of_rank(rank)
        columns = {"iteration": number, "start_ns": start_ns, "elapsed_ns": elapsed_ns, "phase": self.phases[number]}
        return columns | dict.fromkeys(("loss", "grad_norm", "tokens"), np.full(len(number), np.nan))


def infer_iterations(columns: Mapping[str, Array], kinds: Sequence[str]) -> Inferred:
    """Number the iterations of a job from its operators alone.

    `columns`: `COLUMNS` of all ranks, in any order; unknown values as in `messages.records`. `kinds`: kind of each
    communicator, by code.
    """
    if not len(columns["rank"]):
        return Inferred(np.empty(0, dtype=np.int64))
    operators, place = arrange_operators(columns)
    iteration, anchors = infer_arranged(operators, kinds)
    if not anchors:
        return Inferred(iteration[place])
    spans = measure_iterations(operators, iteration, columns["elapsed_ns"][operators.row])
    phases = find_phases(operators, iteration, spans.gaps_ns, spans.job_elapsed_ns)
    return Inferred(iteration[place], tuple(anchors), spans, phases)


def infer_arranged(operators: Operators, kinds: Sequence[str]) -> tuple[Array, list[Anchor]]:
    """Return the iteration of each operator, and the anchors by which it was found."""
    anchors = find_anchors(operators, kinds)
    if not anchors:
        return np.full(len(operators), UNKNOWN), []
    return assign_iterations(operators, anchors), anchors
