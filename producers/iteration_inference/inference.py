"""Iterations of a job that marks none: from the operators of all its ranks to the iteration of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from irregulars.messages.records import UNKNOWN
from irregulars.producers.iteration_inference.anchors import Anchor, find_anchors
from irregulars.producers.iteration_inference.assignment import assign_iterations
from irregulars.producers.iteration_inference.operators import Operators, arrange_operators
from irregulars.producers.iteration_inference.phases import find_phases
from irregulars.producers.iteration_inference.spans import IterationSpans, measure_iterations

Array = np.ndarray

COLUMNS: Final = ("rank", "communicator", "operator", "sequence", "peer", "start_ns", "elapsed_ns", "size_bytes")
"""What is read of each row: communicators as codes of the whole job, the rest as in `messages.records`."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """What was inferred.

    Parameters
    ----------
    iteration
        Of each row given, int64; `UNKNOWN` outside of iterations.
    anchors
        The communicators by which iterations were told apart, and their ranks.
    spans
        When each iteration began and ended on each rank; None where there are none.
    phases
        Index into `messages.records.PHASES` of each iteration, uint8.
    """

    iteration: Array
    anchors: tuple[Anchor, ...] = ()
    spans: IterationSpans | None = None
    phases: Array = field(default_factory=lambda: np.empty(0, dtype=np.uint8))

    @property
    def count(self) -> int:
        """How many iterations there are."""
        return int(self.iteration.max(initial=-1)) + 1

    def rows_of(self, rank: int) -> dict[str, Array]:
        """Columns of the record ``iterations`` of one rank, in order."""
        assert self.spans is not None, "only what was inferred has rows"
        number, start_ns, elapsed_ns = self.spans.of_rank(rank)
        unknown = np.full(len(number), np.nan)
        return {
            "iteration": number,
            "start_ns": start_ns,
            "elapsed_ns": elapsed_ns,
            "phase": self.phases[number],
            "loss": unknown,
            "grad_norm": unknown,
            "tokens": unknown,
        }


def infer_iterations(columns: Mapping[str, Array], kinds: Sequence[str]) -> Inferred:
    """Number the iterations of a job from its operators alone.

    Parameters
    ----------
    columns
        `COLUMNS` of all ranks, in any order; unknown values as in `messages.records`.
    kinds
        Kind of each communicator, by code.
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
    """Give the iteration of each operator, and the anchors by which it was found."""
    anchors = find_anchors(operators, kinds)
    if not anchors:
        return np.full(len(operators), UNKNOWN), []
    return assign_iterations(operators, anchors), anchors
