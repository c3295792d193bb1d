"""From batches of ``commops`` that were read back to the rows of whole iterations, of many ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from detectors.codes import group_rows
from detectors.operator_graph import pack_class
from streams.iteration_rows import IterationSpan
from streams.records import UNKNOWN, Batch
from streams.row_checks import usable_operators

Array = np.ndarray

_COLUMNS: Final = ("operator", "sequence", "peer", "start_ns", "elapsed_ns", "size_bytes", "iteration")
_FLOATS: Final = ("elapsed_ns", "size_bytes")

NO_OPERATORS: Final[Mapping[str, Array]] = {
    name: np.empty(0, dtype=np.float64 if name in _FLOATS else np.int64)
    for name in ("rank", "communicator", *_COLUMNS)
}

Spans = Mapping[tuple[int, int], IterationSpan]
"""For pairs of rank and iteration: the times of the iteration on that rank."""


def gather_rows(batches: Iterable[Batch], codes: Mapping[str, int], spans: Spans) -> dict[str, Array]:
    """Join batches into columns, keeping the rows of the iterations in `spans`; rows that come twice count once.

    Rows without an iteration belong to the one in which they start; rows that end after the last operator that the
    evidence of their iteration knows came too late for it.

    Parameters
    ----------
    codes
        The job's code of each communicator id.

    Returns
    -------
    Columns ``rank, communicator, operator, sequence, peer, start_ns, iteration`` (int64), ``elapsed_ns, size_bytes``
    (float64).
    """
    by_rank: dict[int, dict[int, IterationSpan]] = {}
    for (rank, iteration), span in spans.items():
        by_rank.setdefault(rank, {})[iteration] = span
    parts = [_part(batch, codes, by_rank.get(batch.header.rank, {})) for batch in batches]
    if not parts:
        return dict(NO_OPERATORS)
    rows = {name: np.concatenate([part[name] for part in parts]) for name in NO_OPERATORS}
    if np.isnan(rows["elapsed_ns"]).any():  # what was told before it ended, and again when it had, counts as ended
        order = np.argsort(np.isnan(rows["elapsed_ns"]), kind="stable")
        rows = {name: column[order] for name, column in rows.items()}
    _, kept = group_rows([rows["rank"], pack_class(rows), rows["sequence"]])
    if len(kept) == len(rows["rank"]):
        return rows
    kept.sort()
    return {name: column[kept] for name, column in rows.items()}


def _part(batch: Batch, codes: Mapping[str, int], own: Mapping[int, IterationSpan]) -> dict[str, Array]:
    rank = batch.header.rank
    iteration = _placed(batch.columns["iteration"], batch.columns["start_ns"], own)
    is_kept = _in_time(batch, iteration, own)
    is_usable = usable_operators(batch.columns)  # what the RankMonitor left out
    is_kept = is_kept if is_usable is None else is_kept & is_usable
    table = np.array([codes[name] for name in batch.header.names] or [0], dtype=np.int64)
    part = {name: batch.columns[name][is_kept] for name in _COLUMNS}
    part |= {name: part[name].astype(np.int64) for name in _COLUMNS if name not in _FLOATS}
    part["iteration"] = iteration[is_kept]
    part["communicator"] = table[batch.columns["communicator"][is_kept]]
    part["rank"] = np.full(int(is_kept.sum()), rank)
    return part


def _in_time(batch: Batch, iteration: Array, own: Mapping[int, IterationSpan]) -> Array:
    """Whether each row is of one of the iterations, and of its evidence."""
    if not own:
        return np.zeros(len(batch), dtype=bool)
    numbers = np.array(sorted(own), dtype=np.int64)
    last_ends_ns = np.array([own[number].last_end_ns for number in numbers.tolist()], dtype=np.int64)
    position = np.minimum(np.searchsorted(numbers, iteration), len(numbers) - 1)
    start_ns, elapsed_ns = batch.columns["start_ns"], batch.columns["elapsed_ns"]
    end_ns = start_ns + np.where(np.isfinite(elapsed_ns), elapsed_ns, 0).astype(np.int64)
    return (numbers[position] == iteration) & ((end_ns <= last_ends_ns[position]) | (start_ns == UNKNOWN))


def _placed(iteration: Array, start_ns: Array, own: Mapping[int, IterationSpan]) -> Array:
    """Iteration of each row, unknown ones by the span in which they start."""
    is_unknown = iteration == UNKNOWN
    if not is_unknown.any():
        return iteration
    placed = iteration.copy()
    for number, span in own.items():
        placed[is_unknown & (start_ns >= span.start_ns) & (start_ns < span.past_ns)] = number
    return placed


def joined(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Join columns, empty ones left out."""
    parts = [part for part in parts if part]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
