"""Cuts one recording of many trials into a trace directory for each, with its truth."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import SEND, Batch
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.writer import write_trace


@dataclass(frozen=True, slots=True)
class Trial:
    """A run: iterations of the recording, one stretch after the other, and what is true of it."""

    name: str
    stretches: Sequence[tuple[int, int]]  # first, past the last; the run counts its iterations from 0
    label: Mapping[str, Any]


def cut_into_trials(recording: Path, trials: Sequence[Trial], out: Path, job: str) -> None:
    trace = read_trace(recording)
    for trial in trials:
        directory, name = out / trial.name, f"{job}-{trial.name}"
        shifts_ns = _shifts_ns(trace, trial.stretches)
        batches = [
            _cut(batch, name, trial.stretches, shifts_ns)
            for of_ranks in (trace.commops, trace.iterations)
            for batch in of_ranks.values()
        ]
        write_trace(directory, _announcements(trace, name, batches), batches)
        (directory / "label.json").write_text(json.dumps(trial.label, indent=1) + "\n", encoding="utf-8")


def _announcements(trace: Trace, job: str, batches: Sequence[Batch]) -> list[Announcement]:
    until_ns = max(int(_ends_ns(one.columns).max()) for one in batches if len(one))
    return [
        replace(one, job=job, start=None, since_ns=None, recorded_until_ns=until_ns, host=f"node-{one.rank}", gpu=0)
        for one in trace.announcements
    ]


def _shifts_ns(trace: Trace, stretches: Sequence[tuple[int, int]]) -> list[int]:
    """Return by how much each stretch is moved in time, so that it begins where the one before it ends."""
    shifts, end_ns = [], None
    for first, past in stretches:
        own = [_within(batch, first, past) for batch in trace.iterations.values()]
        start_ns = min(int(columns["start_ns"].min()) for columns in own)
        shifts.append(0 if end_ns is None else end_ns - start_ns)
        end_ns = max(int(_ends_ns(columns).max()) for columns in own) + shifts[-1]
    return shifts


def _ends_ns(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    ends: np.ndarray = columns["start_ns"] + np.nan_to_num(columns["elapsed_ns"]).astype(np.int64)
    return ends


def _within(batch: Batch, first: int, past: int) -> dict[str, np.ndarray]:
    is_own = (batch.columns["iteration"] >= first) & (batch.columns["iteration"] < past)
    return {name: column[is_own] for name, column in batch.columns.items()}


def _cut(batch: Batch, job: str, stretches: Sequence[tuple[int, int]], shifts_ns: Sequence[int]) -> Batch:
    parts, count, given = [], 0, {}
    for (first, past), shift_ns in zip(stretches, shifts_ns, strict=True):
        columns = _within(batch, first, past)
        columns["iteration"] = columns["iteration"] - first + count
        columns["start_ns"] = columns["start_ns"] + shift_ns
        if "sequence" in columns:
            columns["sequence"] = _renumbered(columns, given)
        parts.append(columns)
        count += past - first
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Batch(replace(batch.header, job=job, start=None, since_ns=None, rows_before=0), joined)


def _renumbered(columns: Mapping[str, np.ndarray], given: dict[tuple[int, ...], int]) -> np.ndarray:
    """Return sequences that go on from those given so far, by communicator, and by both ends of sends."""
    is_p2p = columns["operator"] >= SEND
    key = np.stack([columns["communicator"], np.where(is_p2p, columns["operator"], 0), columns["peer"]])
    kinds, of_row = np.unique(key, axis=1, return_inverse=True)
    sequences = columns["sequence"].copy()
    for number, kind in enumerate(map(tuple, kinds.T.tolist())):
        own = of_row.reshape(-1) == number
        before = given.get(kind, 0)
        sequences[own] += before + 1 - sequences[own].min()
        given[kind] = int(sequences[own].max())
    return sequences
