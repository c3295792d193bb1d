"""A change of what the job did: it evaluates in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from irregulars.messages.records import PHASES, UNKNOWN
from tests.benchmarks.metamorphic.recording import Changed, Columns, Naming, Recording

Array = np.ndarray

EVALUATIONS: Final = 5
_LENGTH_RATIO: Final = 0.4  # length of an evaluation, relative to the median iteration: forward passes alone
_BUSY_RATIO: Final = 0.9
_MIDDLE: Final = (0.25, 0.75)
_UNTOLD: Final = ("loss", "grad_norm", "tokens")


def insert_evaluation(recording: Recording, random: np.random.Generator) -> Changed | None:
    """Five marked evaluations come in the middle of the job, without operators; what follows them is later.

    NICs are idle meanwhile. Needs the rows of all logged ranks in ``iterations``.
    """
    # Draw the iteration that the evaluations come before, of those that each logged rank has once.
    table = recording.tables["iterations"]
    numbers, counts = np.unique(table["iteration"], return_counts=True)
    numbers = numbers[counts == len(recording.logged)]
    first, past = (int(part * len(numbers)) for part in _MIDDLE)
    number = int(random.choice(numbers[first:past])) if past > first else None
    if number is None:
        return None
    lengths_ns = recording.tables["iterations"]["elapsed_ns"]
    each_ns = max(round(_LENGTH_RATIO * float(np.median(lengths_ns))), 1)
    begin_ns = _begins_ns(recording, number)
    pause_ns = EVALUATIONS * each_ns
    changed = _with_pause(recording, number, begin_ns, pause_ns)
    changed = changed.with_more_rows("iterations", _evaluations(changed, number, begin_ns, each_ns))
    changed = changed.with_more_rows("bandwidth", _idle_samples(changed, begin_ns, pause_ns))
    until_ns = recording.job.recorded_until_ns
    job = replace(recording.job, recorded_until_ns=None if until_ns is None else until_ns + pause_ns)
    return Changed(replace(changed, job=job), Naming(inserted=(number, number + EVALUATIONS)))


def _begins_ns(recording: Recording, number: int) -> Array:
    """When an iteration began on each rank, by its own clock; of unlogged ones the latest time that there is."""
    table = recording.tables["iterations"]
    begin_ns = np.full(recording.job.world_size, np.iinfo(np.int64).max)
    is_first = table["iteration"] == number
    begin_ns[table["rank"][is_first]] = table["start_ns"][is_first]
    return begin_ns


def _with_pause(recording: Recording, number: int, begin_ns: Array, pause_ns: int) -> Recording:
    """Let everything from an iteration on be later, and renumber it."""
    for schema in ("commops", "iterations"):
        table = recording.tables[schema]
        is_known, is_numbered = table["start_ns"] != UNKNOWN, table["iteration"] != UNKNOWN
        is_after = np.where(is_numbered, table["iteration"] >= number, table["start_ns"] >= begin_ns[table["rank"]])
        recording = recording.with_columns(
            schema,
            start_ns=table["start_ns"] + np.where(is_after & is_known, pause_ns, 0),
            iteration=table["iteration"] + np.where(is_after & is_numbered, EVALUATIONS, 0),
        )
    table = recording.tables["bandwidth"]
    is_after = table["time_ns"] >= begin_ns[table["rank"]]
    return recording.with_columns("bandwidth", time_ns=table["time_ns"] + np.where(is_after, pause_ns, 0))


def _evaluations(recording: Recording, number: int, begin_ns: Array, each_ns: int) -> Columns:
    """Rows of the evaluations: those of one iteration on all ranks, again and again."""
    table = recording.tables["iterations"]
    rows = np.tile(np.flatnonzero(table["iteration"] == number + EVALUATIONS), EVALUATIONS)
    turn = np.repeat(np.arange(EVALUATIONS), len(rows) // EVALUATIONS)
    more = {name: column[rows] for name, column in table.items()}
    more |= {name: np.full(len(rows), np.nan) for name in _UNTOLD}
    more["iteration"] = number + turn
    more["start_ns"] = begin_ns[more["rank"]] + turn * each_ns
    more["elapsed_ns"] = np.full(len(rows), max(round(_BUSY_RATIO * each_ns), 1), dtype=np.float64)
    more["phase"] = np.full(len(rows), PHASES.index("eval"), dtype=np.uint8)
    return more


def _idle_samples(recording: Recording, begin_ns: Array, pause_ns: int) -> Columns:
    """Samples of idle devices during the pause: each device goes on in its own step from its last one before."""
    table = recording.tables["bandwidth"]
    rows = np.lexsort((table["time_ns"], table["device"], table["path"], table["rank"]))
    keys = [table[name][rows] for name in ("rank", "path", "device")]
    is_same = np.logical_and.reduce([key[1:] == key[:-1] for key in keys]) if len(rows) else np.empty(0, np.bool_)
    time_ns = table["time_ns"][rows]
    is_last = np.append(is_same & (time_ns[1:] >= begin_ns[keys[0][1:]]), False)[: len(rows)]
    is_last &= time_ns < begin_ns[keys[0]]
    steps_ns = np.diff(time_ns)[is_same]
    period_ns = max(int(np.median(steps_ns)), 1) if len(steps_ns) else pause_ns + 1
    count = pause_ns // period_ns
    more = {name: np.tile(column[rows[is_last]], count) for name, column in table.items()}
    more["time_ns"] = more["time_ns"] + np.repeat(np.arange(1, count + 1), int(is_last.sum())) * period_ns
    return more | {name: np.zeros(len(more["rank"])) for name in ("tx_bytes_per_s", "rx_bytes_per_s")}
