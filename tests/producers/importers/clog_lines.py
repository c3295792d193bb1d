"""Logs of clog, made up after its published format (meta-pytorch/torchcomms, AI_TOOL_INSTRUCTIONS_V1.md).

No real log with a usable licence exists. Nothing here is shared with the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from irregulars.messages.announcements import Communicator
from irregulars.messages.records import OPERATORS, UNKNOWN
from irregulars.producers.trace.directory import Trace

BASE = "1714234567.890"
BASE_MS = 1_714_234_567_890


def header(version: int = 1, base: str = BASE) -> str:
    """First line."""
    return f"V|{version}|base_timestamp={base}"


def new_comm(rank: int, size: int, name: str = "world") -> str:
    """A communicator that is registered."""
    return f"new_comm|comm={name}|rank={rank}|world_size={size}"


def split(child: str, ranks: Sequence[int], parent: str = "world") -> str:
    """A part of a communicator."""
    return f"split|parent={parent}|child={child}|ranks={','.join(map(str, ranks))}"


def signature(number: int, operator: str = "all_reduce", comm: str = "world", *, is_async: bool = False,
              count: int = 1024, peer: int | None = None, dtype: str = "f32") -> str:  # fmt: skip
    """Define an operator."""
    flag = "t" if is_async else "f"
    if operator == "barrier":
        return f"C{number}|sig|barrier|async_op={flag}|comm={comm}"
    told = f"in_count={0 if operator == 'recv' else count}|out_count={0 if operator == 'send' else count}"
    more = f"|peer={peer}" if peer is not None else "|red_op=sum" if "reduce" in operator else ""
    return f"C{number}|sig|{operator}|{told}|dtype={dtype}{more}|async_op={flag}|comm={comm}"


def stamp(ms: int) -> str:
    """Time since the header, as the log has it."""
    return f"+{ms / 1000:.3f}"


def event(number: int, kind: str, ms: int, work: int | None = None) -> str:
    told = f"|work_id={work}" if work is not None else ""
    return f"C{number}|{kind}{told}|{stamp(ms)}"


def log(*lines: str) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def steady(rank: int, size: int = 2, calls: int = 60, late_ms: int = 0, *, has_starts: bool = True) -> list[str]:
    """Collectives of 3 ms every 10 ms, called `late_ms` late, as gloo logs them: start and end when they return."""
    lines = [header(), new_comm(rank, size), signature(1)]
    for n in range(calls):
        lines.append(event(1, "Q", 10 * n + late_ms, n + 1))
        lines += [event(1, kind, 10 * n + 3) for kind in (("S", "E") if has_starts else ("E",))]
    return lines


def write_logs(trace: Trace, folder: Path, backend: str = "gloo") -> None:
    """Write what each rank of a recorded or simulated job would have logged: milliseconds, cut, not rounded.

    `backend`: how starts and ends become lines. ``gpu``: when they happen, as a reader of the published page would
    think. ``gloo``: a call that blocks returns at the end, and start and end are logged then; those of one that
    doesn't are logged by its thread. ``nccl``, ``ncclx``: looked at by a watchdog every 1000 or 100 ms, and at each
    further call.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first_ns = min(int(batch.columns["start_ns"].min()) for batch in trace.commops.values())
    base_ms = first_ns // 1_000_000 - 1000
    for announcement in trace.announcements:
        if announcement.rank not in trace.commops:
            continue
        rank, size = announcement.rank, announcement.world_size
        lines = [header(base=f"{base_ms // 1000}.{base_ms % 1000:03d}"), new_comm(rank, size)]
        names = {}
        for one in announcement.communicators:
            if tuple(one.ranks) == tuple(range(size)):
                names[one.id] = "world"
            else:
                child = _child_of(one, announcement.communicators)
                lines.append(split(child, one.ranks))
                names[one.id] = f"{child}_{min(one.ranks)}"
        members = {one.id: list(one.ranks) for one in announcement.communicators}
        lines += _lines_of(trace, rank, names, members, base_ms, backend)
        (folder / f"clog_rank{rank}.log").write_bytes(log(*lines))


def _child_of(one: Communicator, others: Sequence[Communicator]) -> str:
    """Name a part as a device mesh does, by its dimension; a rank's second one of a dimension by its place too."""
    alike = [other.id for other in others if other.kind == one.kind]
    return one.kind if one.kind != "unknown" and alike[0] == one.id else f"{one.kind}{alike.index(one.id)}"


def _lines_of(trace: Trace, rank: int, names: dict[str, str], members: dict[str, list[int]], base_ms: int,
              backend: str) -> Iterable[str]:  # fmt: skip
    batch = trace.commops[rank]
    columns = {name: column.tolist() for name, column in batch.columns.items()}
    order = np.lexsort((batch.columns["sequence"], batch.columns["start_ns"]))
    starts = [*batch.columns["start_ns"][order].tolist(), np.inf]
    ends = batch.columns["start_ns"] + np.nan_to_num(batch.columns["elapsed_ns"])
    keys = []
    for at in order.tolist():
        comm = batch.header.names[columns["communicator"][at]]
        size = columns["size_bytes"][at]
        elements = 0 if np.isnan(size) else int(size) // 4
        keys.append((comm, OPERATORS[columns["operator"][at]], columns["peer"][at], elements))
    apart = {key for place, (key, at) in enumerate(zip(keys, order.tolist(), strict=True))
             if ends[at] > starts[place + 1]}  # fmt: skip
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys), 1)}
    for (comm, operator, peer, elements), number in numbers.items():
        inside = None if peer == UNKNOWN else members[comm].index(peer)
        is_async = (comm, operator, peer, elements) in apart
        yield signature(number, operator, names[comm], count=elements, peer=inside, is_async=is_async)
    rows = []
    for key, at in zip(keys, order.tolist(), strict=True):
        is_open = np.isnan(columns["elapsed_ns"][at])
        rows.append((numbers[key], columns["start_ns"][at], None if is_open else int(ends[at]), key in apart))
    work = 0
    for ns, number, kind in _as_logged(rows, backend):
        work += kind == "Q"
        yield event(number, kind, ns // 1_000_000 - base_ms, work if kind == "Q" else None)


def _as_logged(rows: list[tuple[int, int, int | None, bool]], backend: str) -> list[tuple[int, int, str]]:
    """Events in the order of the log: (time, number, kind)."""
    made: list[tuple[int, int, int, str]] = []
    period_ns = {"nccl": 1_000_000_000, "ncclx": 100_000_000}.get(backend)
    calls = np.array([start for _, start, _, _ in rows])
    for place, (number, start, end, is_apart) in enumerate(rows):
        made.append((start, 0, number, "Q"))
        if period_ns is None:
            begun = end if backend == "gloo" and not is_apart else start
            made += [(at, 1, number, kind) for at, kind in ((begun, "S"), (end, "E")) if at is not None]
            continue
        for at, kind in ((start, "S"), (end, "E")):
            if at is not None:
                tick = -(-at // period_ns) * period_ns
                later = np.searchsorted(calls, at, side="left")
                later = max(int(later), place + 1)
                call = int(calls[later]) if later < len(calls) else tick
                made.append((min(tick, max(call, at)), 1, number, kind))
    return [(ns, number, kind) for ns, _, number, kind in sorted(made, key=lambda one: (one[0], one[1]))]
