"""NIC counters every 10 ms, read at the switch: what a rank's NIC sends is what its port receives.

One read of ``/proc/self/net/dev`` holds the kernel's counters of all ports, so one small process samples all NICs,
and a rank whose CPU is slow is sampled as often as the others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tests.benchmarks.recordings.layout import Layout
from tests.benchmarks.recordings.network import port

EVERY_S: Final = 0.01
_FILE: Final = Path("/proc/self/net/dev")


def sample(layout: Layout, until: Event, target: Path) -> None:
    """Sample until told to end; write times and counters (received, sent) of all ports."""
    names = [port(rank) for rank in range(layout.world_size)]
    times_ns: list[int] = []
    counters: list[list[int]] = []
    next_s = time.monotonic()
    while not until.is_set():
        try:
            counters.append(read_counters(_FILE.read_text(), names))
        except KeyError:  # a rank has ended, and its port with it
            break
        times_ns.append(time.time_ns())
        next_s = max(next_s + EVERY_S, time.monotonic())
        time.sleep(max(next_s - time.monotonic(), 0.0))
    np.savez(target, times_ns=np.array(times_ns), counters=np.array(counters))


def read_counters(text: str, names: Sequence[str]) -> list[int]:
    r"""Read received and sent bytes of some devices.

    >>> read_counters("Inter-| ...\n port0: 17 1 0 0 0 0 0 0 23 2 0 0 0 0 0 0\n", ["port0"])
    [17, 23]
    """
    lines = (line.partition(":") for line in text.splitlines())
    fields = {name.strip(): rest.split() for name, _, rest in lines if rest}
    return [int(fields[name][place]) for name in names for place in (0, 8)]


def bandwidth_table(layout: Layout, times_ns: np.ndarray, counters: np.ndarray) -> pa.Table:
    """Give the contract's rows: mean rates since the sample before, of the NIC's side.

    Parameters
    ----------
    times_ns
        One per sample, ns since the epoch.
    counters
        Samples by ports: received and sent bytes of each in turn. From where one of them falls nothing is taken: its
        rank has ended, and the port is about to.
    """
    falls = np.flatnonzero((np.diff(counters, axis=0) < 0).any(axis=1))
    if falls.size:
        times_ns, counters = times_ns[: falls[0] + 1], counters[: falls[0] + 1]
    span_s = np.diff(times_ns)[:, None] / 1e9
    rates = np.round(np.diff(counters, axis=0) / span_s)
    count = len(rates)
    columns = [
        pa.table({
            "rank": pa.array(np.full(count, rank)),
            "time_ns": pa.array(times_ns[1:]),
            "path": pa.array(["nic"] * count),
            "device": pa.array([layout.nic(rank)] * count),
            "tx_bytes_per_s": pa.array(rates[:, 2 * rank]),
            "rx_bytes_per_s": pa.array(rates[:, 2 * rank + 1]),
        })
        for rank in range(layout.world_size)
    ]  # fmt: skip
    return pa.concat_tables(columns)
