"""Writes a run as a trace directory: clocks of hosts, rounding, rows that are dropped or doubled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tests.benchmarks.independent.event_level.cluster import Cluster
from tests.benchmarks.independent.event_level.engine import Engine
from tests.benchmarks.independent.event_level.labels import Label
from tests.benchmarks.independent.event_level.noise import SALTS, Noise, Style
from tests.benchmarks.independent.event_level.programs import Job

EPOCH: Final = 1_790_000_000_000_000_000

RANK, COMMUNICATOR, OPERATOR, SEQUENCE, PEER, START, END, SIZE, ITERATION = range(9)
"""Columns of the rows as an array."""

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Clocks:
    """Local time of each rank's host in ns, and how a log rounds it."""

    def __init__(self, rng: np.random.Generator, cluster: Cluster, style: Style) -> None:
        offset = rng.normal(0, 2e4 if style.is_clock_shared else 3e6, cluster.hosts)
        drift = rng.normal(0, 1e-9 if style.is_clock_shared else 1e-5, cluster.hosts)
        host = np.array([cluster.host(rank) for rank in range(cluster.world)])
        self._offset, self._drift = offset[host], drift[host]
        self._start_unit, self._elapsed_unit = style.start_unit, style.elapsed_unit
        self.epoch = EPOCH + int(rng.integers(0, 10**15))

    def start(self, rank: Integers, seconds: Floats) -> Integers:
        local = seconds * 1e9 * (1 + self._drift[rank]) + self._offset[rank]
        rounded: Integers = np.round(local / self._start_unit).astype(np.int64) * self._start_unit
        return self.epoch + rounded

    def elapsed(self, rank: Integers, seconds: Floats) -> Integers:
        local = np.maximum(0.0, seconds * 1e9 * (1 + self._drift[rank]))
        rounded: Integers = np.round(local / self._elapsed_unit).astype(np.int64) * self._elapsed_unit
        return rounded


def write(
    folder: Path, rng: np.random.Generator, job: Job, engine: Engine, noise: Noise, style: Style, label: Label
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cluster = engine.cluster
    clocks = Clocks(rng, cluster, style)
    names = sorted({row.operator for row in engine.rows})
    rows, lost = _logged_rows(rng, engine, style, names)
    pq.write_table(_operators(rng, rows, clocks, job, names, style), folder / "commops.parquet")
    if style.has_iterations:
        pq.write_table(_iterations(engine, noise, clocks, style), folder / "iterations.parquet")
    if style.bandwidth:
        pq.write_table(_bandwidth(rng, engine, clocks, style.bandwidth), folder / "bandwidth.parquet")
    description = _description(folder.name, cluster, job, style, lost)
    is_hang = label["kind"] == "hang"
    if is_hang or style.is_end_known:
        waited = 60.0 + 540.0 * rng.random() if is_hang else 0.01
        description["recorded_until_ns"] = int(clocks.epoch + (engine.now + waited) * 1e9)
    (folder / "job.json").write_text(json.dumps(description), encoding="utf-8")
    (folder / "label.json").write_text(json.dumps(label, indent=1), encoding="utf-8")


def _logged_rows(rng: np.random.Generator, engine: Engine, style: Style, names: list[str]) -> tuple[Floats, Integers]:
    """Return the rows that the log has, as an array, and how many each rank has lost."""
    world = engine.cluster.world
    code = {name: k for k, name in enumerate(names)}
    rows = np.array(
        [
            (*row[:2], code[row.operator], *row[3:6], np.nan if row.end is None else row.end, *row[7:])
            for row in engine.rows
        ]
    )
    does_stay = np.isin(rows[:, RANK].astype(int), style.logged or list(range(world)))
    lost = np.zeros(world, dtype=np.int64)
    if style.drop:
        is_gone = rng.random(len(rows)) < style.drop
        lost = np.bincount(rows[is_gone, RANK].astype(int), minlength=world)
        does_stay &= ~is_gone
    rows = rows[does_stay]
    if style.twice:
        rows = np.concatenate([rows, rows[rng.random(len(rows)) < style.twice]])
    return rows, lost


def _operators(
    rng: np.random.Generator, rows: Floats, clocks: Clocks, job: Job, names: list[str], style: Style
) -> pa.Table:
    whole = {k: rows[:, k].astype(np.int64) for k in (RANK, COMMUNICATOR, OPERATOR, SEQUENCE, PEER, SIZE, ITERATION)}
    rank, has_ended = whole[RANK], ~np.isnan(rows[:, END])
    # By how much later each row ends: the same for a row that is there twice, so a function of the row.
    weights = {SEQUENCE: 7919, RANK: 104729, COMMUNICATOR: 31, OPERATOR: 17, PEER: 3}
    salt = sum(rows[:, column] * weight for column, weight in weights.items())
    exit_skew = np.abs(rng.normal(0, style.exit_skew, SALTS))[np.asarray(salt).astype(np.int64) % SALTS]
    start = clocks.start(rank, rows[:, START])
    elapsed = clocks.elapsed(rank, np.where(has_ended, rows[:, END] - rows[:, START], 0.0) + exit_skew)
    order = _order(rng, rows, start, style.order)

    def column(values: NDArray[Any], kind: pa.DataType, mask: NDArray[np.bool_] | None = None) -> pa.Array:
        return pa.array(values[order], kind, mask=None if mask is None else mask[order])

    communicators, operators = np.array(job.names, dtype=object), np.array(names, dtype=object)
    return pa.table({
        "rank": column(rank, pa.int32()),
        "communicator": column(communicators[whole[COMMUNICATOR]], pa.string()),
        "operator": column(operators[whole[OPERATOR]], pa.string()),
        "sequence": column(whole[SEQUENCE], pa.int64()),
        "peer": column(whole[PEER], pa.int32(), whole[PEER] < 0),
        "start_ns": column(start, pa.int64()),
        "elapsed_ns": column(elapsed, pa.int64(), ~has_ended),
        "size_bytes": pa.nulls(len(rows), pa.int64()) if style.has_no_sizes else column(whole[SIZE], pa.int64()),
        "iteration": column(whole[ITERATION] + style.first_iteration, pa.int64()),
    })  # fmt: skip


def _order(rng: np.random.Generator, rows: Floats, start: Integers, order: str) -> NDArray[np.intp]:
    if order == "shuffled":
        return rng.permutation(len(rows))
    if order == "rank":
        return np.lexsort((start, rows[:, RANK]))
    return np.argsort(rows[:, END], kind="stable")


def _iterations(engine: Engine, noise: Noise, clocks: Clocks, style: Style) -> pa.Table:
    ranks = set(style.logged or range(engine.cluster.world))
    rows = [row for row in engine.iteration_rows if row.rank in ranks]
    rank, iteration = np.array([row.rank for row in rows]), np.array([row.iteration for row in rows])
    start, end = np.array([row.start for row in rows]), np.array([row.end for row in rows])
    table = {
        "rank": pa.array(rank, pa.int32()),
        "iteration": pa.array(iteration + style.first_iteration),
        "start_ns": pa.array(clocks.start(rank, start)),
        "elapsed_ns": pa.array(clocks.elapsed(rank, end - start)),
    }
    if style.has_phases:
        table["phase"] = pa.array([noise.shown[row.iteration] for row in rows])
    return pa.table(table)


def _bandwidth(rng: np.random.Generator, engine: Engine, clocks: Clocks, period: float) -> pa.Table:
    """Return the mean rates of each NIC between samples, integrated from the flows."""
    cluster = engine.cluster
    tables = []
    for nic, tx in cluster.nic_tx.items():
        times = _sample_times(rng, engine.now, period)
        n = len(times) - 1
        rank = np.full(n, cluster.nic_ranks(nic)[0])
        sent, received = (
            np.round(np.diff(np.interp(times, *engine.nic_bytes(resource))) / np.diff(times))
            for resource in (tx, cluster.nic_rx[nic])
        )
        tables.append(pa.table({
            "rank": pa.array(rank, pa.int32()),
            "time_ns": pa.array(clocks.start(rank, times[1:]), pa.int64()),
            "path": pa.array(["nic"] * n, pa.string()),
            "device": pa.array([f"mlx5_{nic[1]}"] * n, pa.string()),
            "tx_bytes_per_s": pa.array(sent, pa.float64()),
            "rx_bytes_per_s": pa.array(received, pa.float64()),
        }))  # fmt: skip
    return pa.concat_tables(tables).combine_chunks()


def _sample_times(rng: np.random.Generator, end: float, period: float) -> Floats:
    count = int(np.ceil(end / period))
    evenly = np.arange(0.0, end, period) + rng.uniform(0, period)
    times = np.sort(evenly + rng.normal(0, period * 0.01, count))
    kept: Floats = times[np.concatenate([[True], np.diff(times) > period * 0.5])]
    return kept


def _description(name: str, cluster: Cluster, job: Job, style: Style, lost: Integers) -> dict[str, object]:
    ranks: dict[str, dict[str, object]] = {}
    for rank in range(cluster.world):
        nic = f"mlx5_{cluster.nic(rank)[1]}"
        ranks[str(rank)] = {"host": f"node-{cluster.host(rank)}", "gpu": rank % cluster.gpus, "nic": nic}
        ranks[str(rank)]["switch"] = f"leaf-{cluster.leaf(rank)}"
        if style.are_losses_known:
            ranks[str(rank)]["lost_rows"] = int(lost[rank])
    communicators = zip(job.names, job.kinds, job.members, strict=True)
    description: dict[str, object] = {
        "job": name,
        "world_size": cluster.world,
        "clock": "shared" if style.is_clock_shared else "per_host",
        "communicators": {name: {"kind": kind, "ranks": members} for name, kind, members in communicators},
        "ranks": ranks,
    }
    if style.logged:
        description["logged_ranks"] = style.logged
    return description
