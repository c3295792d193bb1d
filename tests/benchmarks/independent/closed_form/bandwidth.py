"""NIC counters, sampled from the transfers that were simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tests.benchmarks.independent.closed_form.arrays import Flags, Floats, Ints
from tests.benchmarks.independent.closed_form.engine import Rows
from tests.benchmarks.independent.closed_form.program import Program
from tests.benchmarks.independent.closed_form.scenario import Fault
from tests.benchmarks.independent.closed_form.topology import Fabric, ring_traffic


class Samples(NamedTuple):
    """What the counters of NICs say, one entry a sample."""

    nic: Ints
    at: Floats  # seconds
    tx: Floats  # bytes a second
    rx: Floats


@dataclass
class _Transfers:
    """All transfers over NICs."""

    nic: Ints
    begin: Floats
    end: Floats
    tx: Floats  # bytes
    rx: Floats

    def of(self, chosen: Ints) -> _Transfers:
        """Those at these places."""
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
    """The limits of a NIC, tx and rx."""
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
