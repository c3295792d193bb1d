"""Measures a simulated run as imperfect tools do, and writes the trace directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.independent.closed_form.arrays import Flags, Ints
from tests.benchmarks.independent.closed_form.bandwidth import Samples, sample
from tests.benchmarks.independent.closed_form.engine import Rows
from tests.benchmarks.independent.closed_form.measurement import EPOCH_NS, Measurement, rounded
from tests.benchmarks.independent.closed_form.operations import OPERATORS
from tests.benchmarks.independent.closed_form.program import Key, Program
from tests.benchmarks.independent.closed_form.running import Run
from tests.benchmarks.independent.closed_form.topology import Communicators, Fabric, communicators

Columns = dict[str, Ints]
PHASES = ("train", "eval", "checkpoint")


class _Log:
    """The operators of a job as a tool notes them down."""

    def __init__(self, fabric: Fabric, measurement: Measurement, rng: np.random.Generator) -> None:
        self.fabric, self.measurement, self.rng = fabric, measurement, rng
        self.lost = np.zeros(fabric.layout.size, np.int64)  # rows by rank
        self._counters: dict[Key, int] = {}  # next sequence number
        self._parts: list[Columns] = []

    def add(self, rows: Rows) -> None:
        """Note down an iteration."""
        measurement, program = self.measurement, rows.program
        static = program.static
        at = self._kept(rows)
        rank = static["rank"][at]
        iteration = -1 if rows.iteration is None else rows.iteration + measurement.first_iteration
        start = measurement.to_local(rows.start[at], self.fabric.host[rank])
        self._parts.append(
            {
                "rank": rank.astype(np.int32),
                "comm": static["comm"][at].astype(np.int32),
                "operator": static["operator"][at].astype(np.int8),
                "sequence": self._first_numbers(program)[static["key"][at]] + static["seq"][at],
                "peer": static["peer"][at].astype(np.int32),
                "start": rounded(start, measurement.round_start),
                "elapsed": self._elapsed(rows, at),
                "size": static["size"][at],
                "iteration": np.full(len(at), iteration, np.int32),
            }
        )

    def _kept(self, rows: Rows) -> Ints:
        rank = rows.program.static["rank"]
        keep: Flags = np.isfinite(rows.start) & self.measurement.logged[rank]
        if self.measurement.dropped:
            gone = keep & (self.rng.random(rows.program.rows) < self.measurement.dropped)
            self.lost += np.bincount(rank[gone], minlength=len(self.lost))
            keep &= ~gone
        return np.flatnonzero(keep)

    def _first_numbers(self, program: Program) -> Ints:
        """Sequence number of the first operator of every key; moves on to the next iteration."""
        first = [self._counters.get(key, self.measurement.first_sequence) for key in program.keys]
        for key, number in zip(program.keys, first, strict=True):
            # Receives are as many as sends.
            counted = key if key[0] != "p" else (*key, True)
            self._counters[key] = number + program.per_iteration.get(counted, 0)
        return np.array(first, np.int64)

    def _elapsed(self, rows: Rows, at: Ints) -> Ints:
        """Nanoseconds, -1 for what never ended."""
        ppm = self.measurement.elapsed_ppm[rows.program.static["rank"][at]]
        with np.errstate(invalid="ignore"):
            elapsed = (rows.end[at] - rows.start[at]) * (1 + ppm * 1e-6)
        never = ~np.isfinite(elapsed)
        whole: Ints = np.round(np.where(never, 0, elapsed) * 1e9).astype(np.int64)
        assert (whole >= 0).all()
        whole = rounded(whole, self.measurement.round_elapsed)
        whole[never] = -1
        return whole

    def columns(self) -> Columns:
        """All that was noted down, in the order of the table."""
        columns = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        n = len(columns["rank"])
        order = np.arange(n)
        if self.measurement.duplicated:
            twice = self.rng.choice(n, int(n * self.measurement.duplicated), replace=False)
            order = np.concatenate([order, twice])
        if self.measurement.order == "rank":
            order = order[np.lexsort((columns["start"][order], columns["rank"][order]))]
        elif self.measurement.order == "shuffled":
            order = self.rng.permutation(order)
        return {name: values[order] for name, values in columns.items()}


def _text(codes: Ints, names: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names)).cast(pa.string())


def write(
    folder: Path,
    run: Run,
    fabric: Fabric,
    measurement: Measurement,
    label: Mapping[str, object],
    rng: np.random.Generator,
) -> int:
    """Write a case into a folder named like it, and count the rows of its operators."""
    folder.mkdir(parents=True, exist_ok=True)
    log = _Log(fabric, measurement, rng)
    for rows in run.history:
        log.add(rows)
    comms = communicators(fabric.layout)
    table = _operators_table(log.columns(), measurement, comms, rng)
    pq.write_table(table, folder / "commops.parquet", compression="zstd")
    used = np.unique(np.concatenate([np.unique(r.program.static["comm"]) for r in run.history]))
    job = _job(folder.name, fabric, measurement, comms, used, log.lost)
    (folder / "job.json").write_text(json.dumps(job) + "\n")
    if measurement.iterations_table:
        table_of_iterations = _iterations_table(run, fabric, measurement)
        pq.write_table(table_of_iterations, folder / "iterations.parquet", compression="zstd")
    if measurement.bandwidth_interval:
        samples = sample(run.history, fabric, run.fault, measurement.bandwidth_interval, rng)
        table_of_samples = _bandwidth_table(samples, fabric, measurement)
        pq.write_table(table_of_samples, folder / "bandwidth.parquet", compression="zstd")
    (folder / "label.json").write_text(json.dumps(label, indent=1) + "\n")
    return len(table)


def _operators_table(
    columns: Columns, measurement: Measurement, comms: Communicators, rng: np.random.Generator
) -> pa.Table:
    without_iteration = columns["iteration"] < 0  # before the first
    if measurement.iteration_values == "none":
        without_iteration[:] = True
    elif measurement.iteration_values == "some":
        without_iteration |= rng.random(len(without_iteration)) < 0.03
    without_size = np.full(len(columns["size"]), measurement.sizes == "none")
    return pa.table(
        {
            "rank": columns["rank"],
            "communicator": _text(columns["comm"], comms.names),
            "operator": _text(columns["operator"], OPERATORS),
            "sequence": columns["sequence"],
            "peer": pa.array(columns["peer"], mask=columns["peer"] < 0),
            "start_ns": columns["start"],
            "elapsed_ns": pa.array(columns["elapsed"], mask=columns["elapsed"] < 0),
            "size_bytes": pa.array(columns["size"], mask=without_size),
            "iteration": pa.array(columns["iteration"], mask=without_iteration),
        }
    )


def _job(
    name: str, fabric: Fabric, measurement: Measurement, comms: Communicators, used: Ints, lost: Ints
) -> dict[str, object]:
    """What job.json says."""
    job: dict[str, object] = {
        "job": name,
        "world_size": fabric.layout.size,
        "clock": measurement.clock,
        "communicators": {
            comms.names[c]: {"kind": comms.kinds[c], "ranks": comms.members[c].tolist()} for c in used.tolist()
        },
    }
    logged = np.flatnonzero(measurement.logged).tolist()
    values: dict[str, list[str] | list[int]] = {
        "host": [f"node-{h}" for h in fabric.host],
        "gpu": fabric.gpu.tolist(),
        "nic": [f"mlx5_{i}" for i in fabric.nic_index],
        "switch": [f"leaf-{s}" for s in fabric.switch],
    }
    if measurement.device_keys:
        further = {"lost_rows": lost.tolist()} if measurement.lost_rows else {}
        told = {key: values[key] for key in measurement.device_keys} | further
        job["ranks"] = {str(rank): {key: column[rank] for key, column in told.items()} for rank in logged}
    if measurement.logged_key:
        job["logged_ranks"] = logged
    if measurement.recorded_until is not None:
        job["recorded_until_ns"] = EPOCH_NS + int(measurement.recorded_until * 1e9)
    return job


def _iterations_table(run: Run, fabric: Fabric, measurement: Measurement) -> pa.Table:
    logged = np.flatnonzero(measurement.logged)
    parts = []
    for iteration, (begin, took, phase) in enumerate(run.iterations):
        b, d = begin.ravel()[logged], took.ravel()[logged]
        ended = np.isfinite(d)
        rank = logged[ended]
        start = measurement.to_local(b[ended], fabric.host[rank])
        elapsed = np.round(d[ended] * 1e9).astype(np.int64)
        number = np.full(len(rank), iteration + measurement.first_iteration)
        parts.append((rank, number, start, elapsed, np.full(len(rank), PHASES.index(phase))))
    r, i, s, e, p = (np.concatenate(x) for x in zip(*parts, strict=True))
    data = {
        "rank": r.astype(np.int32),
        "iteration": i.astype(np.int32),
        "start_ns": rounded(s, measurement.round_start),
        "elapsed_ns": rounded(e, measurement.round_elapsed),
    }
    if measurement.phase_column:
        data["phase"] = _text(p, PHASES)
    return pa.table(data)


def _bandwidth_table(samples: Samples, fabric: Fabric, measurement: Measurement) -> pa.Table:
    """Samples of the NICs that a logged rank uses, in the name of the first such rank."""
    user_of = np.full(fabric.nics, -1)
    for rank in reversed(np.flatnonzero(measurement.logged).tolist()):
        user_of[fabric.nic[rank]] = rank
    known = user_of[samples.nic] >= 0
    nic, at = samples.nic[known], samples.at[known]
    user = user_of[nic]
    names = [f"mlx5_{i}" for i in range(fabric.nics_per_host)]
    return pa.table(
        {
            "rank": user.astype(np.int32),
            "time_ns": measurement.to_local(at, fabric.host[user]),
            "path": pa.array(["nic"] * len(nic)),
            "device": _text(fabric.nic_index[user], names),
            "tx_bytes_per_s": samples.tx[known],
            "rx_bytes_per_s": samples.rx[known],
        }
    )
