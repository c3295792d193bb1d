"""Phases that nobody marked: evaluations and checkpoints, told by how regularly they come back."""

from __future__ import annotations

from typing import Final

import numpy as np

from irregulars.messages.records import OPERATORS, PHASES, UNKNOWN
from irregulars.producers.iteration_inference.operators import TRAINING, Operators

Array = np.ndarray

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
    """Tell evaluations and checkpoints from training.

    Parameters
    ----------
    iteration
        Of each operator.
    rank_gaps_ns
        For each rank and iteration, ``(ranks, iterations)``: how long the rank ran no operator before the first one;
        NaN where unknown.
    job_elapsed_ns
        Of each iteration.

    Returns
    -------
    Of each iteration the index into `PHASES`, uint8.

    Notes
    -----
    An evaluation has less of a training operator than usual (no backward pass) or more of one; a checkpoint has more
    of what gathers and waits, or keeps every rank from its first operator for long. Either must recur at even
    distances, `_TIMES` at least: what comes once is no phase, and one rank that is late is never one.
    """
    count = len(job_elapsed_ns)
    phases = np.full(count, _TRAIN, dtype=np.uint8)
    if count < 2 * _TIMES:
        return phases
    less, more = _unusual(operators, iteration, count)
    is_training = np.isin(np.arange(len(OPERATORS)), TRAINING)
    is_evaluation = np.asarray((less | more)[:, is_training].any(axis=1))
    is_checkpoint: Array = ~is_evaluation & more.any(axis=1)
    pauses = _pauses(rank_gaps_ns, job_elapsed_ns)
    for found, phase in ((pauses, _CHECKPOINT), (is_checkpoint, _CHECKPOINT), (is_evaluation, _EVAL)):
        phases[_recurring(found)] = phase
    return phases


def _unusual(operators: Operators, iteration: Array, count: int) -> tuple[Array, Array]:
    """For each iteration and operator whether there were fewer, or more, than usual in the whole job."""
    known = np.flatnonzero(iteration != UNKNOWN)
    order = known[np.lexsort((operators.sequence[known], operators.lane[known], iteration[known]))]
    lane, sequence = operators.lane[order], operators.sequence[order]
    is_new = (np.diff(lane, prepend=-1) != 0) | (np.diff(sequence, prepend=-1) != 0)
    key = iteration[order][is_new] * len(OPERATORS) + operators.operator[order][is_new]
    counts = np.bincount(key, minlength=count * len(OPERATORS)).reshape(count, len(OPERATORS)).astype(np.float64)
    usual = np.median(counts, axis=0)
    return counts < _LESS * usual, counts > np.maximum(usual / _LESS, usual + _FEWEST_MORE - 1)


def _pauses(rank_gaps_ns: Array, job_elapsed_ns: Array) -> Array:
    """Iterations before which all ranks ran nothing for long."""
    known = np.where(np.isnan(rank_gaps_ns), np.inf, rank_gaps_ns)
    shortest = known.min(axis=0, initial=np.inf)
    shortest = np.where(np.isfinite(shortest), shortest, 0.0)
    floor = max(_LONG_GAP * float(np.median(job_elapsed_ns)), _USUAL_GAPS * float(np.median(shortest)))
    return shortest > floor


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
