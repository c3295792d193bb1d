"""NIC counters, sampled from the transfers that were simulated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.independent.closed_form.engine import Fault, Rows, Run
from tests.benchmarks.independent.closed_form.faults import EPOCH_NS, Measurement, rounded
from tests.benchmarks.independent.closed_form.program import OPERATORS, Key, Program
from tests.benchmarks.independent.closed_form.topology import (
    Communicators,
    Fabric,
    Flags,
    Floats,
    Ints,
    communicators,
    ring_traffic,
)


class Samples(NamedTuple):
    """What the counters of NICs say, one entry a sample."""

    nic: Ints
    at: Floats  # seconds
    tx: Floats  # bytes a second
    rx: Floats


@dataclass
class _Transfers:
    nic: Ints
    begin: Floats
    end: Floats
    tx: Floats  # bytes
    rx: Floats

    def of(self, chosen: Ints) -> _Transfers:
        floats = (x[chosen] for x in (self.begin, self.end, self.tx, self.rx))
        return _Transfers(self.nic[chosen], *floats)

    def means(self, moved: Floats, times: Floats) -> Floats:
        """Mean rate between times, each transfer being even from its begin to its end."""
        if not len(self.nic):
            return np.zeros(len(times) - 1)
        rate = moved / (self.end - self.begin)
        at = np.concatenate([self.begin, self.end])
        by_time = np.argsort(at, kind="stable")
        at, rate = at[by_time], np.cumsum(np.concatenate([rate, -rate])[by_time])
        total = np.concatenate([[0.0], np.cumsum(np.diff(at) * rate[:-1])])
        rates: Floats = np.diff(np.interp(times, at, total)) / np.diff(times)
        return rates


def _row_bytes(program: Program, fabric: Fabric) -> tuple[Floats, Floats]:
    """(tx, rx) bytes each row of an iteration moves over its rank's NIC; nothing for what stays in a host."""
    layout = fabric.layout
    tx, rx = np.zeros(program.rows), np.zeros(program.rows)
    for rows, kind, _, operator in program.kind_rows:
        if kind == "world":
            continue  # a few bytes
        plan = fabric.plan[kind]
        if plan.crosses:
            n = layout.groups[kind].shape[1]
            moved = program.static["size"][rows] * ring_traffic(operator, n) / plan.members_a_host
            tx[rows] = rx[rows] = moved
    for message in program.messages.values():
        a = np.arange(layout.lanes) + message.source * layout.lanes
        b = np.arange(layout.lanes) + message.target * layout.lanes
        outside = fabric.host[a] != fabric.host[b]
        tx[message.send_rows] = np.where(outside, message.size, 0)
        rx[message.recv_rows] = np.where(outside, message.size, 0)
    return tx, rx


def _transfers(history: Sequence[Rows], fabric: Fabric) -> _Transfers:
    per_program: dict[int, tuple[Floats, Floats]] = {}
    parts: list[tuple[Ints, Floats, Floats, Floats, Floats]] = []
    for rows in history:
        key = id(rows.program)
        if key not in per_program:
            per_program[key] = _row_bytes(rows.program, fabric)
        tx, rx = per_program[key]
        use = np.flatnonzero(((tx > 0) | (rx > 0)) & np.isfinite(rows.end) & (rows.transfer > 0))
        nic, end = fabric.nic[rows.program.static["rank"][use]], rows.end[use]
        parts.append((nic, end - rows.transfer[use], end, tx[use], rx[use]))
    return _Transfers(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def _windows(history: Sequence[Rows], fault: Fault | None) -> list[tuple[float, float]]:
    """From when until when a fault of the network acts."""
    if fault is None or not fault.network:
        return []
    on = [r for r in history if r.iteration is not None and fault.on(r.iteration)]
    ends = [np.where(np.isfinite(r.end), r.end, np.nan) for r in on]
    return [(float(np.nanmin(r.start)), float(np.nanmax(end))) for r, end in zip(on, ends, strict=True)]


def sample(
    history: Sequence[Rows], fabric: Fabric, fault: Fault | None, interval: float, rng: np.random.Generator
) -> Samples:
    """Samples of every NIC; one that a fault limits is steady at its limit, the others send in bursts.

    Over a short interval the rate of a burst goes above the mean of the transfer.
    """
    transfers = _transfers(history, fabric)
    first = float(min(np.nanmin(r.start) for r in history))
    last = float(max(np.max(r.end[np.isfinite(r.end)], initial=-np.inf) for r in history))
    order = np.argsort(transfers.nic, kind="stable")
    edges = np.searchsorted(transfers.nic[order], np.arange(fabric.nics + 1))
    windows = _windows(history, fault)
    faulty = set() if fault is None or fault.nics is None else {int(n) for n in fault.nics}
    out = []
    for n in range(fabric.nics):
        mine = transfers.of(order[edges[n] : edges[n + 1]])
        times = first + rng.uniform(0, interval) + interval * np.arange(int((last - first) / interval))
        times = times + rng.normal(0, 0.01 * interval, len(times))
        slow = np.zeros(max(len(times) - 1, 0), bool)
        for begin, end in windows if n in faulty else ():
            slow |= (times[1:] > begin) & (times[:-1] < end)
        limits = _limits(n, fabric, fault if n in faulty else None)
        tx, rx = (
            _rates(mine.means(moved, times), slow, limit, rng)
            for moved, limit in zip((mine.tx, mine.rx), limits, strict=True)
        )
        out.append((np.full(len(times) - 1, n), times[1:], tx, rx))
    return Samples(*(np.concatenate(x) for x in zip(*out, strict=True)))


class _Limit(NamedTuple):
    """Bytes a second that a NIC carries one way, and what a fault leaves of it, if it takes some."""

    usual: float
    faulty: float | None


def _limits(nic: int, fabric: Fabric, fault: Fault | None) -> list[_Limit]:
    usual = fabric.health
    left = usual if fault is None or fault.health is None else fault.health
    limits = []
    for before, after in ((usual.tx[nic], left.tx[nic]), (usual.rx[nic], left.rx[nic])):
        # Both ways are held against what tx was: the two differ by a few per cent at most.
        is_slow = fault is not None and after < 0.99 * usual.tx[nic]
        limits.append(_Limit(fabric.nic_rate * before, fabric.nic_rate * after if is_slow else None))
    return limits


def _rates(mean: Floats, slow: Flags, limit: _Limit, rng: np.random.Generator) -> Floats:
    """What a counter says where these are the means of the transfers."""
    burst = np.exp(rng.normal(-0.06, 0.35, len(mean)))
    line = np.full(len(mean), limit.usual)
    if limit.faulty is not None:
        line[slow] = limit.faulty
        burst[slow] = np.exp(rng.normal(0, 0.01, int(slow.sum())))
    background = rng.gamma(2.0, 1e6, len(mean))
    return np.minimum(mean * burst, line * 1.005) + background


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
    folder: Path, name: str, run: Run, fabric: Fabric, measurement: Measurement, label: Mapping[str, object],
    rng: np.random.Generator,
) -> None:  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    log = _Log(fabric, measurement, rng)
    for rows in run.history:
        log.add(rows)
    comms = communicators(fabric.layout)
    table = _operators_table(log.columns(), measurement, comms, rng)
    pq.write_table(table, folder / "commops.parquet", compression="zstd")
    used = np.unique(np.concatenate([np.unique(r.program.static["comm"]) for r in run.history]))
    job = _job(name, fabric, measurement, comms, used, log.lost)
    (folder / "job.json").write_text(json.dumps(job) + "\n")
    if measurement.iterations_table:
        table_of_iterations = _iterations_table(run, fabric, measurement)
        pq.write_table(table_of_iterations, folder / "iterations.parquet", compression="zstd")
    if measurement.bandwidth_interval:
        samples = sample(run.history, fabric, run.fault, measurement.bandwidth_interval, rng)
        table_of_samples = _bandwidth_table(samples, fabric, measurement)
        pq.write_table(table_of_samples, folder / "bandwidth.parquet", compression="zstd")
    (folder / "label.json").write_text(json.dumps(label, indent=1) + "\n")


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
