"""NCCL Inspector's JSON lines, one log a process, as operators (formats v4.0 to v4.4).

Up to v4.2 each line names its communicator; in v4.3 a marker line does, for as many bare lines as it counts. Start
times are there in verbose logs alone: `dump_timestamp_us` is when a line was written, not when the operator ran.
Records of proxies hold the waits of each step of a send, by the clock of a CPU thread.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeGuard

import orjson

from irregulars.errors import InputError
from irregulars.messages.records import P2P, UNKNOWN
from irregulars.producers.importers.groups import MAX_RANKS, name_of, operator_of

VERSIONS: Final = ("v4.0", "v4.1", "v4.2", "v4.3", "v4.4")
MAX_LINE_BYTES: Final = 1 << 20  # more than any line of NCCL Inspector has
# Beyond it floats no longer hold each µs; as a time it is in the year 2255.
_MOST_US: Final = 1 << 53


class Process(NamedTuple):
    """A process that writes a log."""

    host: str
    pid: int


class Membership(NamedTuple):
    """One process in one communicator."""

    communicator: str
    name: str
    comm_rank: int
    size: int


class Operation(NamedTuple):
    """One finished operator."""

    process: Process
    member: Membership
    operator: int
    number: int
    peer: int
    start_ns: int
    elapsed_ns: float
    size_bytes: float


class Connection(NamedTuple):
    """One direction of the way between two ranks of a communicator."""

    process: Process
    member: Membership
    peer: int  # rank in the communicator that is sent to


# Waits of a step of a send, each from its begin to that of the next one: for the chunk that its own GPU makes, for
# room at the receiver, for the network. v4.4 writes their lengths as well.
WAITS: Final = ("send_gpu_wait_ts", "send_peer_wait_ts", "send_wait_ts", "proxy_step_stop_ts")
_LENGTHS: Final = ("gpu_produce_us", "peer_credit_us", "wire_us")


@dataclass(slots=True)
class LogParser:
    """Reads the lines of one log, in their order; of a rotated log the parts one after the other."""

    skipped: Counter[str] = field(default_factory=Counter)
    dropped: Counter[Process] = field(default_factory=Counter)
    # Of each connection the sums of the `WAITS` of its sends, µs
    waited_us: dict[Connection, list[int]] = field(default_factory=dict)
    written_us: int = 0  # when the newest line that says so was written, us since the epoch
    process: Process | None = None  # that the next lines belong to, as far as a marker line names it
    _member: Membership | None = None
    _left: dict[str, int] = field(default_factory=dict)

    def parse(self, line: bytes) -> Operation | None:
        """Read one line; None where it holds no operator that can be used.

        Raises InputError if it is of a version that we don't read.
        """
        if not line.strip():
            return None
        try:
            value = orjson.loads(line)
        except (orjson.JSONDecodeError, RecursionError):
            self.skipped["lines that are no JSON"] += 1
            return None
        if not isinstance(value, dict):
            self.skipped["lines that are no JSON objects"] += 1
            return None
        if "dump_stats" in value:  # a marker line: the communicator of the next lines, and the rows its ring lost
            self.process, self._member = self._read_context(value)
            stats = value["dump_stats"] if isinstance(value["dump_stats"], dict) else {}
            self._left = {kind: _count(stats.get(f"{kind}_records")) for kind in ("coll", "p2p", "proxy")}
            if self.process is not None:
                lost = sum(_count(stats.get(f"{kind}_dropped_since_last_dump")) for kind in ("coll", "p2p"))
                self.dropped[self.process] += lost
            return None
        if "proxy_trace" in value:
            if not self._take_proxy(value):
                self.skipped["records of proxies without communicator or peer"] += 1
            return None
        operation = self._operation(value)
        if operation is None:
            self.skipped["records without communicator, operator or time"] += 1
        return operation

    def _writer(self, value: Mapping[str, Any], kind: str) -> tuple[Process | None, Membership | None]:
        """Return process and communicator of a record: by itself, else by the marker, for as many as that counted."""
        if "header" in value:
            return self._read_context(value)
        # Lines beyond those that the marker counted follow a marker that was lost: their process is not known.
        self._left[kind] = self._left.get(kind, 0) - 1
        return (self.process, self._member) if self._left[kind] >= 0 else (None, None)

    def _take_proxy(self, value: Mapping[str, Any]) -> bool:
        """Add up the waits of a proxy's record, of one step or with all steps of one operator; False: not usable."""
        process, member = self._writer(value, "proxy")
        told = value["proxy_trace"]
        peer = _count(told.get("peer"), -1) if isinstance(told, dict) else -1
        if process is None or member is None or not 0 <= peer < member.size:
            return False
        steps = told["steps"] if isinstance(told.get("steps"), list) else [told]
        if told.get("direction") == "send":
            sums = self.waited_us.setdefault(Connection(process, member, peer), [0] * len(_LENGTHS))
            for step in (one for one in steps if isinstance(one, dict)):
                moments = step.get("event_trace_ts")
                at_us = [_count(moments.get(name)) for name in WAITS] if isinstance(moments, dict) else []
                for at, name in enumerate(_LENGTHS):
                    begin_us, past_us = at_us[at : at + 2] or (0, 0)
                    length_us = past_us - begin_us if 0 < begin_us <= past_us < _MOST_US else 0  # 0: not recorded
                    sums[at] += _count(step.get(name), length_us)
        return True

    def _operation(self, value: Mapping[str, Any]) -> Operation | None:
        kind = "coll" if "coll_perf" in value else "p2p"
        told = value.get(f"{kind}_perf")
        if not isinstance(told, dict):
            return None
        process, member = self._writer(value, kind)
        operator = operator_of(str(told.get(kind, "")))
        elapsed_us = told.get(f"{kind}_exec_time_us")
        number = _count(told.get(f"{kind}_sn"), -1)
        if process is None or member is None or operator is None or not _is_time(elapsed_us) or number < 0:
            return None
        peer = _count(told.get("p2p_peer", -1), -1) if kind == "p2p" else -1
        if (operator in P2P) != (kind == "p2p") or (kind == "p2p" and not 0 <= peer < member.size):
            return None
        size = told.get(f"{kind}_msg_size_bytes")
        size_bytes = float(size) if _is_time(size) else math.nan
        return Operation(process, member, operator, number, peer, *_times(told, elapsed_us), size_bytes)

    def _read_context(self, value: Mapping[str, Any]) -> tuple[Process | None, Membership | None]:
        """Read process and communicator of a line; None twice where one of them is missing or impossible."""
        header, metadata = value.get("header"), value.get("metadata")
        if not isinstance(header, dict) or not isinstance(metadata, dict):
            return None, None
        version = metadata.get("inspector_output_format_version")
        if version not in VERSIONS:
            shown = repr(version)[:40] if isinstance(version, (str, int, float)) else type(version).__name__
            raise InputError(f"inspector_output_format_version must be one of {' '.join(VERSIONS)}; got {shown}")
        host, pid = metadata.get("hostname"), _count(metadata.get("pid"), -1)
        comm_rank, size = _count(header.get("rank"), -1), _count(header.get("n_ranks"), -1)
        identity, name = header.get("id"), header.get("comm_name")
        if not isinstance(host, str) or not isinstance(identity, str) or "" in (host, identity):
            return None, None
        if not 0 <= comm_rank < size <= MAX_RANKS or pid < 0:
            return None, None
        self.written_us = max(self.written_us, _count(metadata.get("dump_timestamp_us")))
        named = name_of(name) if isinstance(name, str) and name != "unknown" else ""
        return Process(host[:200], pid), Membership(name_of(identity), named, comm_rank, size)


def _times(told: Mapping[str, Any], elapsed_us: float) -> tuple[int, float]:
    """Return start and length, ns; in verbose logs from the first channel's kernel to the last one's."""
    trace = told.get("event_trace_ts")
    events = trace.get("kernel_events") if isinstance(trace, dict) else None
    listed = [one for one in events[:1024] if isinstance(one, dict)] if isinstance(events, list) else []
    starts, stops = (
        [t for t in (one.get(f"kernel_{end}_ts") for one in listed) if type(t) is int and 0 < t < _MOST_US]
        for end in ("start", "stop")
    )
    if not starts:
        return UNKNOWN, round(elapsed_us * 1000)
    start_us = min(starts)
    length_us = max(stops) - start_us if stops and max(stops) >= start_us else elapsed_us
    return start_us * 1000, round(length_us * 1000)


def _is_time(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST_US


def _count(value: object, default: int = 0) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else default
