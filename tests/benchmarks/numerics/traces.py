"""Trace directories of trials, from what each rank noted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.records import NUMERICS, OPERATOR_CODES, PHASES, UNKNOWN, Batch, Header, no_numerics
from irregulars.producers.trace.writer import write_trace

Row = dict[str, Any]


def write_trial(directory: Path, job: str, ranks: Sequence[Sequence[Row]], label: Mapping[str, Any]) -> None:
    """Write one trial; `ranks`: each rank's rows, by iteration."""
    world = len(ranks)
    group = Communicator("world", "world", tuple(range(world)))
    until_ns = max(row["start_ns"] + row["elapsed_ns"] for rows in ranks for row in rows)
    announcements = [
        Announcement(
            job=job, attempt=0, rank=rank, world_size=world, logged_ranks=world, communicators=(group,),
            sources=("commops", "iterations"), clock="shared", host=f"node-{rank}", gpu=0, lost_rows=0,
            recorded_until_ns=until_ns, replicas=tuple(range(world)),
        )
        for rank in range(world)
    ]  # fmt: skip
    write_trace(directory, announcements, _batches(job, ranks))
    (directory / "label.json").write_text(json.dumps(label, indent=1) + "\n", encoding="utf-8")


def _batches(job: str, ranks: Sequence[Sequence[Row]]) -> Iterator[Batch]:
    for rank, rows in enumerate(ranks):
        count = len(rows)
        yield Batch(
            Header("commops", job, 0, rank, names=("world",)),
            {
                "communicator": np.zeros(count, np.uint16),
                "operator": np.full(count, OPERATOR_CODES["all_reduce"], np.uint8),
                "sequence": np.arange(1, count + 1), "peer": np.full(count, UNKNOWN),
                "start_ns": np.array([row["reduced_ns"][0] for row in rows]),
                "elapsed_ns": np.array([row["reduced_ns"][1] for row in rows], dtype=float),
                "size_bytes": np.array([row["size_bytes"] for row in rows], dtype=float),
                "iteration": np.array([row["iteration"] for row in rows]),
            },
        )  # fmt: skip
        yield Batch(Header("iterations", job, 0, rank), _iterations(rows))
        audits = [row for row in rows if row["audit"] is not None]
        columns = no_numerics(len(audits)) | _times(audits)
        columns["audit_of_rank"] = np.array([row["audit"][0] for row in audits], dtype=np.int64)
        columns["audit_checksum"] = np.array([row["audit"][1] for row in audits], dtype=np.int64)
        if audits:
            yield Batch(Header("iterations", job, 0, rank, rows_before=count), columns)


def _iterations(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    columns = no_numerics(len(rows)) | _times(rows)
    for name in NUMERICS:
        own = [row[name] for row in rows]
        # A computed value that is no number is kept as infinity: NaN means that it is not known.
        columns[name] = (
            np.array(own, dtype=np.int64)
            if name == "parameters_checksum"
            else np.nan_to_num(np.array(own, dtype=float), nan=np.inf, posinf=np.inf, neginf=np.inf)
        )
    return columns


def _times(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    return {
        "iteration": np.array([row["iteration"] for row in rows], dtype=np.int64),
        "start_ns": np.array([row["start_ns"] for row in rows], dtype=np.int64),
        "elapsed_ns": np.array([row["elapsed_ns"] for row in rows], dtype=float),
        "phase": np.array([PHASES.index(row["phase"]) for row in rows], dtype=np.uint8),
    }
