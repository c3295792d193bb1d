"""Lines of NCCL Inspector, made up after its format: no real log with a usable licence exists."""

from __future__ import annotations

import json
from typing import Any

START_US = 1_700_000_000_000_000


def context(
    process: int, comm: str = "0xab", size: int = 2, version: str = "v4.0", comm_rank: int | None = None
) -> dict[str, Any]:
    """Header and metadata of a process whose pid is 100 + `process`; its rank is that, if no other is given."""
    header = {
        "id": comm, "comm_name": "unknown", "rank": process if comm_rank is None else comm_rank, "n_ranks": size,
        "nnodes": 1,
    }  # fmt: skip
    metadata = {
        "inspector_output_format_version": version, "git_rev": "x", "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": START_US + 10**9, "hostname": "host-0", "pid": 100 + process,
    }  # fmt: skip
    return {"header": header, "metadata": metadata}


def collective(number: int, elapsed_us: int, start_us: int | None = None, name: str = "AllReduce") -> dict[str, Any]:
    """One collective; verbose if it has a start."""
    told = {
        "coll": name, "coll_sn": number, "coll_msg_size_bytes": 4096, "coll_exec_time_us": elapsed_us,
        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 1.0,
    }  # fmt: skip
    if start_us is not None:
        begin = START_US + start_us
        channels = [(0, begin + 2, begin + elapsed_us), (1, begin, begin + elapsed_us - 1)]
        told["event_trace_ts"] = {
            "coll_start_ts": begin - 50, "coll_stop_ts": begin - 40,
            "kernel_events": [
                {"channel_id": c, "kernel_start_ts": a, "kernel_stop_ts": b, "kernel_record_ts": b}
                for c, a, b in channels
            ],
        }  # fmt: skip
    return {"coll_perf": told}


def pair(name: str, peer: int, number: int = 1, elapsed_us: int = 7) -> dict[str, Any]:
    return {"p2p_perf": {"p2p": name, "p2p_sn": number, "p2p_peer": peer, "p2p_msg_size_bytes": 64,
                         "p2p_exec_time_us": elapsed_us, "p2p_timing_source": "kernel_gpu"}}  # fmt: skip


def marker(
    process: int, coll: int, p2p: int = 0, dropped: int = 0, comm: str = "0xab", size: int = 2, proxy: int = 0
) -> dict[str, Any]:
    """The line before the bare records of format 4.3."""
    records = {"coll_records": coll, "p2p_records": p2p, "proxy_records": proxy}
    stats = {**records, "coll_dropped_since_last_dump": dropped}
    return {**context(process, comm, size, "v4.3"), "dump_stats": stats}


def proxy_step(peer: int, gpu_us: int, peer_us: int, wire_us: int) -> dict[str, Any]:
    """One step of a send by a proxy, which waited so long for its GPU, its receiver and the network."""
    names = ("proxy_step_start", "send_gpu_wait", "send_peer_wait", "send_wait", "proxy_step_stop")
    waits = (0, 1, 1 + gpu_us, 1 + gpu_us + peer_us, 1 + gpu_us + peer_us + wire_us)
    moments = {f"{name}_ts": START_US + us for name, us in zip(names, waits, strict=True)}
    return {"proxy_trace": {"record_type": "proxy_step", "parent_type": "coll", "parent_sn": 1, "channel_id": 0,
                            "peer": peer, "direction": "send", "step": 0, "event_trace_ts": moments}}  # fmt: skip


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)
