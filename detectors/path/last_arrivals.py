"""Who arrived last in each collective: from durations alone, whatever clocks say and whether starts are known.

The members of a collective leave it together, so the member that spent least time inside arrived last, and the others
waited for it by as much as they spent longer inside. Rooted collectives are left out, since there not everybody
waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import group_rows
from irregulars.detectors.arrays.runs import run_lengths, run_starts
from irregulars.dtypes import Column, Floats, Ints
from irregulars.messages.records import RECV, ROOTED, SEND, UNKNOWN


class Arrivals(NamedTuple):
    """Collectives of which at least two shares are known, in order of communicator and sequence; one value each."""

    # As in the rows; `UNKNOWN` where the iteration is not known
    communicator: Ints
    operator: Ints
    sequence: Ints
    iteration: Ints
    # Which of its operators on its communicator in its iteration it is, from 1; 0: not known, the only one, or there
    # are more or fewer than usual
    place: Ints
    shares: Ints  # how many shares are known
    last_rank: Ints  # the rank that arrived last
    waited_ns: Floats  # how long the first to arrive waited for it
    took_ns: Floats  # how long it took once the last was there
    # By how much the ends differ; NaN where a start is not known. It is only of use where ranks share a clock.
    ends_apart_ns: Floats


def find_arrivals(columns: Mapping[str, Column]) -> Arrivals:
    """Find the rank that arrived last in each collective.

    `columns`: ``rank, communicator, operator, sequence, start_ns, iteration`` (int64) and ``elapsed_ns`` (float64),
    in any order; communicators by codes of the job.
    """
    is_taken = np.isfinite(columns["elapsed_ns"]) & ~np.isin(columns["operator"], (*ROOTED, SEND, RECV))
    rows = {name: column[is_taken] for name, column in columns.items()}
    group, _ = group_rows([rows["communicator"], rows["sequence"]]) if is_taken.any() else (rows["sequence"], None)
    order = np.lexsort((rows["rank"], rows["elapsed_ns"], group))
    begins = run_starts(group[order])
    shares = run_lengths(begins, len(order))
    begins, past = begins[shares > 1], (begins + shares)[shares > 1]
    first = order[begins]
    elapsed_ns = rows["elapsed_ns"]
    return Arrivals(
        communicator=rows["communicator"][first],
        operator=rows["operator"][first],
        sequence=rows["sequence"][first],
        iteration=rows["iteration"][first],
        place=_places({name: rows[name][first] for name in ("communicator", "operator", "iteration", "sequence")}),
        shares=shares[shares > 1],
        last_rank=rows["rank"][first],
        waited_ns=elapsed_ns[order[past - 1]] - elapsed_ns[first],
        took_ns=elapsed_ns[first],
        ends_apart_ns=_apart(rows["start_ns"], elapsed_ns, order, begins, past),
    )


def _places(columns: Mapping[str, Column]) -> Ints:
    """Return which operator of its kind each collective is in its iteration, where there are as many as usual."""
    places = np.zeros(len(columns["sequence"]), dtype=np.int64)
    if not len(places):
        return places
    names = ("communicator", "operator", "iteration", "sequence")
    order = np.lexsort([columns[name] for name in reversed(names)])
    communicator, operator, iteration, _ = (columns[name][order] for name in names)
    begins = run_starts(communicator, operator, iteration)
    counts = run_lengths(begins, len(order))
    kinds = run_starts(communicator[begins], operator[begins])
    own = np.repeat(np.arange(len(kinds)), run_lengths(kinds, len(begins)))
    usual = np.array([np.bincount(part).argmax() for part in np.split(counts, kinds[1:])])
    is_usual = np.repeat((counts == usual[own]) & (counts > 1) & (iteration[begins] != UNKNOWN), counts)
    places[order] = np.where(is_usual, np.arange(len(order)) - np.repeat(begins, counts) + 1, 0)
    return places


def _apart(start_ns: Ints, elapsed_ns: Floats, order: Ints, begins: Ints, past: Ints) -> Floats:
    if not len(begins):
        return np.empty(0)
    # Relative to the first start: float64 holds ns since the epoch only in steps of 256.
    origin_ns = int(start_ns[start_ns != UNKNOWN].min(initial=np.iinfo(np.int64).max))
    is_known = start_ns != UNKNOWN
    end_ns = np.where(is_known, np.where(is_known, start_ns - origin_ns, 0) + elapsed_ns, np.nan)[order]
    spans = np.stack([begins, past], axis=1).ravel()
    # `reduceat` takes no index past the end; every second span lies between two collectives, and is dropped.
    spans = spans[:-1] if spans[-1] == len(end_ns) else spans
    return np.maximum.reduceat(end_ns, spans)[::2] - np.minimum.reduceat(end_ns, spans)[::2]
