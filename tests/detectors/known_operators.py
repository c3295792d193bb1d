"""Graphs of simulated iterations, with the truth of each row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from irregulars.detectors.path.operator_graph import OperatorGraph, build_graph
from irregulars.messages.records import OPERATOR_CODES, UNKNOWN
from irregulars.producers.simulator.settings import RECORDED_START_NS, SimulatorSettings
from irregulars.producers.simulator.source import Simulation

_KEY = ("rank", "iteration", "communicator", "operator", "peer", "sequence")


ABNORMAL_RATIO = 1.1
"""An operator is truly abnormal if it takes more than so many times what it takes without the fault."""


def graph_of_iterations(
    job: SimulatorSettings, iterations: Collection[int], *, rank_by: int = 0, later_ns: int = 0
) -> tuple[OperatorGraph, np.ndarray]:
    """Return the graph of some iterations, and which of its rows are truly abnormal.

    `rank_by`, `later_ns`: added to the names of all ranks, and to all times.
    """
    (rows, entry_ns), (twin, _) = (rows_of(one, iterations) for one in (job, replace(job, faults=())))
    assert all(np.array_equal(rows[name], twin[name]) for name in _KEY)
    is_abnormal = rows["elapsed_ns"] > ABNORMAL_RATIO * twin["elapsed_ns"]
    rows["rank"], rows["start_ns"] = rows["rank"] + rank_by, rows["start_ns"] + later_ns
    rows["peer"] = np.where(rows["peer"] == UNKNOWN, UNKNOWN, rows["peer"] + rank_by)
    entries = {(rank + rank_by, number): ns + later_ns for (rank, number), ns in entry_ns.items()}
    graph = build_graph(rows, entries)
    truth = np.zeros(len(graph), dtype=np.bool_)
    order = np.lexsort([rows[name].astype(np.int64) for name in _KEY])
    truth[np.lexsort([getattr(graph, name) for name in _KEY])] = is_abnormal[order]
    return graph, truth


def rows_of(
    job: SimulatorSettings, iterations: Collection[int]
) -> tuple[dict[str, np.ndarray], dict[tuple[int, int], int]]:
    """Return the operators of some iterations, and when each rank began each iteration."""
    parts, entry_ns, codes = list[dict[str, np.ndarray]](), dict[tuple[int, int], int](), dict[str, int]()
    (whole,) = Simulation(job, RECORDED_START_NS).parts(max_span_s=1e9, max_rows=1 << 40)
    for batch in whole.batches:
        columns, rank = batch.columns, batch.header.rank
        if batch.header.schema == "commops":
            own = np.array([codes.setdefault(name, len(codes)) for name in batch.header.names])
            more = {"communicator": own[columns["communicator"]], "rank": np.full(len(batch), rank)}
            parts.append({**columns, **more})
        elif batch.header.schema == "iterations":
            starts = zip(columns["iteration"].tolist(), columns["start_ns"].tolist(), strict=True)
            entry_ns |= {(rank, number): start_ns for number, start_ns in starts}
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {name: column[np.isin(rows["iteration"], list(iterations))] for name, column in rows.items()}, entry_ns


RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"


def read_operators(recording: str) -> dict[str, np.ndarray]:
    """Operators of all ranks that ended in an iteration, in the order of their starts.

    Integers are int64, with `UNKNOWN` for a peer where there is none; ``elapsed_ns, size_bytes`` are float64.
    """
    table = pq.read_table(RECORDINGS / recording / "commops.parquet").to_pandas()
    table = table[table["iteration"].notna() & table["elapsed_ns"].notna()].sort_values("start_ns", kind="stable")
    return {
        **{name: table[name].to_numpy(dtype=np.int64) for name in ("rank", "iteration", "sequence", "start_ns")},
        **{name: table[name].to_numpy(dtype=np.float64) for name in ("elapsed_ns", "size_bytes")},
        "communicator": np.unique(table["communicator"], return_inverse=True)[1].astype(np.int64),
        "operator": table["operator"].map(OPERATOR_CODES).to_numpy(dtype=np.int64),
        "peer": np.where(table["peer"].isna(), UNKNOWN, table["peer"].fillna(0).astype(np.int64)),
    }
