"""Iterations of a trace that marks none, inferred from its operators; lengths of those that operators alone mark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from irregulars.messages.records import PHASES, UNKNOWN, Batch, Header
from irregulars.producers.trace.directory import Trace

if TYPE_CHECKING:
    from irregulars.producers.iteration_inference.inference import Inferred

Array = np.ndarray
_WANTED: Final = ("operator", "sequence", "peer", "start_ns", "elapsed_ns", "size_bytes", "iteration")
_NONE: Final = np.empty(0, dtype=np.int64)  # joined with any integers gives int64


@dataclass(frozen=True, slots=True)
class Numbered:
    """A trace with iterations, and a report of them for people; None where nothing was inferred."""

    trace: Trace
    report: str | None = None


def number_iterations(trace: Trace) -> Numbered:
    """Infer the iterations of a trace in which no row names one.

    Those that operators alone name last from end to end, where ranks run none of them for most of the time. Any other
    trace is returned unchanged.
    """
    if not trace.commops and not trace.iterations and trace.bandwidth:
        return Numbered(trace, f"{trace.job}: there are no operators, and no iterations are known: nothing is judged")
    if not trace.commops or trace.iterations:
        return Numbered(trace)
    if has_marks(trace):
        return _from_end_to_end(trace)
    # Imported here: most traces mark their iterations, and need none of it.
    from irregulars.producers.iteration_inference.inference import infer_iterations
    from irregulars.producers.iteration_inference.operators import are_counted_apart, split, split_kinds, whole

    columns, by_name = job_columns(trace)
    names, kinds = list(by_name), list(by_name.values())
    is_apart = are_counted_apart(columns["operator"], columns["sequence"])
    if is_apart:
        columns, kinds = split(columns), split_kinds(kinds)
    inferred = infer_iterations(columns, kinds)
    if not inferred.count:
        return Numbered(trace, f"{trace.job}: no iterations are marked, and no period was found in the operators")
    anchors = (whole(one.communicator) if is_apart else one.communicator for one in inferred.anchors)
    ids = list(dict.fromkeys(names[anchor] for anchor in anchors))
    shown = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
    counts = {name: int((inferred.phases == code).sum()) for code, name in enumerate(PHASES) if code}
    phases = ", ".join(f"{count} of them {name}" for name, count in counts.items() if count)
    told = f"inferred {inferred.count} from the operators on {shown}" + (f" ({phases})" if phases else "")
    return Numbered(_with_iterations(trace, inferred), f"{trace.job}: no iterations are marked; {told}")


def _from_end_to_end(trace: Trace) -> Numbered:
    from irregulars.producers.iteration_inference.inference import measure_marked

    columns, _ = job_columns(trace)
    marks = columns["iteration"]
    known = np.unique(marks[marks != UNKNOWN])
    first = int(known[0])
    if len(known) <= known[-1] - first:
        return Numbered(trace)  # every tenth is profiled: how long the others took is not known
    found = measure_marked(columns, np.where(marks == UNKNOWN, UNKNOWN, marks - first))
    if not found.are_mostly_gaps:
        return Numbered(trace)
    told = "iterations have no rows of their own: each is taken to begin where the one before ended"
    return Numbered(_with_rows(trace, found, first), f"{trace.job}: {told}")


def has_marks(trace: Trace) -> bool:
    """Return whether any row of a trace names an iteration."""
    return bool(trace.iterations) or any(
        (batch.columns["iteration"] != UNKNOWN).any() for batch in trace.commops.values()
    )


def job_columns(trace: Trace) -> tuple[dict[str, Array], dict[str, str]]:
    """Join the operators of all ranks; second come the kinds of communicators by id, whose places are their codes."""
    from irregulars.producers.iteration_inference.operators import anchor_kinds

    kinds: dict[str, str] = {}
    for announcement in trace.announcements:
        kinds |= anchor_kinds(announcement)
    codes = {name: code for code, name in enumerate(kinds)}
    parts = [
        {
            **{name: batch.columns[name] for name in _WANTED}, "rank": np.full(len(batch), rank),
            "communicator": np.array([codes[n] for n in batch.header.names] or [0])[batch.columns["communicator"]],
        }
        for rank, batch in trace.commops.items()
    ]  # fmt: skip
    wanted = (*_WANTED, "rank", "communicator")
    return {name: np.concatenate([_NONE, *(part[name] for part in parts)]) for name in wanted}, kinds


def _with_iterations(trace: Trace, inferred: Inferred) -> Trace:
    commops: dict[int, Batch] = {}
    first = 0
    for rank, batch in trace.commops.items():
        own = inferred.iteration[first : first + len(batch)]
        first += len(batch)
        commops[rank] = Batch(batch.header, {**batch.columns, "iteration": own})
    trace = replace(trace, commops=commops)
    has_more = inferred.phases.any() or inferred.are_mostly_gaps  # than operators hold
    return _with_rows(trace, inferred) if has_more else trace


def _with_rows(trace: Trace, inferred: Inferred, first: int = 0) -> Trace:
    """Add rows of iterations; `first`: number of the one that is 0 in `inferred`."""
    iterations: dict[int, Batch] = {}
    for rank in trace.commops:
        rows = inferred.rows_of(rank)
        if len(rows["iteration"]):
            ended_ns = int((rows["start_ns"] + rows["elapsed_ns"].astype(np.int64)).max())
            header = Header("iterations", trace.job, trace.attempt, rank, watermark_ns=ended_ns)
            iterations[rank] = Batch(header, {**rows, "iteration": rows["iteration"] + first})
    announcements = tuple(
        replace(one, sources=(*one.sources, "iterations")) if one.rank in iterations else one
        for one in trace.announcements
    )
    return replace(trace, iterations=iterations, announcements=announcements)
