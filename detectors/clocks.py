"""Offsets of hosts' clocks, from the ends that the members of a collective share.

In collectives in which everybody waits for everybody the members leave together, up to a small spread. So the end
that each host's clock shows for one collective, less what the others show, is that clock's offset. Hosts which no
chain of collectives connects keep the offset 0 among themselves: nothing can be said of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from streams.records import RECV, ROOTED, SEND, UNKNOWN

Array = np.ndarray

_MAX_ROUNDS: Final = 200
_SETTLED_NS: Final = 500.0


def estimate_offsets(columns: Mapping[str, Array], host_of: Mapping[int, str]) -> dict[str, int]:
    """Estimate by how much each host's clock is ahead of the mean of all, ns.

    Parameters
    ----------
    columns
        Rows as `detectors.operator_graph.build_graph` takes them.
    host_of
        Host of each rank.

    Returns
    -------
    One offset per host in `host_of`; subtract it from the host's times.

    Notes
    -----
    Alternates between the time of each collective (mean over its members, corrected) and the offset of each host
    (median over its ends, less those times), which solves the least-absolute-deviations problem one block at a time.
    """
    hosts = sorted(set(host_of.values()))
    rows = _shared_ends(columns)
    code = {host: at for at, host in enumerate(hosts)}
    host = np.array([code[host_of[rank]] for rank in columns["rank"][rows].tolist()], dtype=np.int64)
    group = _group_of(columns, rows)
    end_ns = columns["start_ns"][rows] + columns["elapsed_ns"][rows].astype(np.int64)
    origin_ns = int(end_ns.min()) if len(end_ns) else 0
    offsets_ns = _alternate((end_ns - origin_ns).astype(np.float64), host, group, len(hosts))
    return {name: round(ns) for name, ns in zip(hosts, offsets_ns.tolist(), strict=True)}


def _shared_ends(columns: Mapping[str, Array]) -> Array:
    """Rows of collectives in which all wait for all, with a known end."""
    is_shared = ~np.isin(columns["operator"], [SEND, RECV, *ROOTED])
    return np.flatnonzero(is_shared & np.isfinite(columns["elapsed_ns"]) & (columns["start_ns"] != UNKNOWN))


def _group_of(columns: Mapping[str, Array], rows: Array) -> Array:
    keys = np.stack([columns["communicator"][rows], columns["sequence"][rows]], axis=1).reshape(-1, 2)
    return np.unique(keys, axis=0, return_inverse=True)[1].ravel()


def _alternate(end_ns: Array, host: Array, group: Array, hosts: int) -> Array:
    offsets_ns = np.zeros(hosts)
    if len(end_ns) == 0:
        return offsets_ns
    order = np.argsort(host, kind="stable")
    present, firsts = np.unique(host[order], return_index=True)
    sizes = np.bincount(group)
    for _ in range(_MAX_ROUNDS):
        times_ns = np.bincount(group, weights=end_ns - offsets_ns[host]) / sizes
        left_ns = np.split((end_ns - times_ns[group])[order], firsts[1:])
        renewed_ns = offsets_ns.copy()
        renewed_ns[present] = [float(np.median(part)) for part in left_ns]
        renewed_ns[present] -= renewed_ns[present].mean()
        step_ns = float(np.max(np.abs(renewed_ns - offsets_ns)))
        offsets_ns = renewed_ns
        if step_ns < _SETTLED_NS:
            break
    return offsets_ns
