"""Audits and pauses of a trace: each travels as a row of the iteration in which it was, and has a file of its own.

Events of nodes and devices: batches of the ranks that use the devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from irregulars.messages.bounds import BOUNDS, Bound
from irregulars.messages.device_events import MOST_TEXT, DeviceEvent, batch_of
from irregulars.messages.records import (
    AUDIT,
    EVENT_KINDS,
    PAUSE,
    PAUSES,
    PHASE_UNKNOWN,
    UNKNOWN,
    Batch,
    Header,
    iteration_columns,
)
from irregulars.producers.trace.files import TableFile
from irregulars.producers.trace.job_file import JobFile
from irregulars.producers.trace.order import Rows
from irregulars.producers.trace.rows import ANY_INTEGER, Check, Rejected, iterations_keys

FILE_COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "audits": dict(zip(AUDIT, ("of_rank", "checksum"), strict=True)),
    "pauses": dict(zip(PAUSE, ("cause", "start_ns", "elapsed_ns"), strict=True)),
}
"""Names of the files, and of their columns by those of the rows of ``iterations``."""


def check_events(table: TableFile, job: JobFile) -> tuple[Rows, Rejected]:
    """Check rows of ``audits`` or ``pauses`` against the job; they come as rows of ``iterations``, times unknown.

    A pause need not name its iteration.
    """
    check, bounds = Check(table), BOUNDS["iterations"]
    iteration = check.integers("iteration", ANY_INTEGER)
    if table.schema == "audits":
        own = {
            "audit_of_rank": check.integers("of_rank", Bound(0, job.world_size - 1)),
            "audit_checksum": check.integers("checksum", ANY_INTEGER),
        }
    else:
        own = {
            "pause_cause": check.codes("cause", PAUSES),
            "pause_start_ns": check.integers("start_ns", bounds["pause_start_ns"]),
            "pause_elapsed_ns": check.integers("elapsed_ns", bounds["pause_elapsed_ns"]),
        }
    rank = check.ranks(job)
    unknown_ns = np.full(len(rank), UNKNOWN), np.full(len(rank), np.nan)
    columns = iteration_columns(iteration, *unknown_ns, np.zeros(len(rank), np.uint8))
    return check.rows(rank, columns | own, iterations_keys, names=lambda _: ())


def with_events(iterations: Rows | None, events: Rows, schema: str) -> tuple[Rows | None, Rejected]:
    """Put audits or pauses among the iterations, with the times of their iteration.

    A pause that names none belongs to the newest iteration that its rank had begun. One of an iteration without a row
    is left out: its time is not known.
    """
    if iterations is None:
        return None, _rejected(len(events.rank), schema)
    at = _named_places(iterations, events)
    if schema == "pauses":
        at = np.where(events.columns["iteration"] == UNKNOWN, _timed_places(iterations, events), at)
    kept = np.flatnonzero(at >= 0)
    own = {name: column[kept] for name, column in events.columns.items()}
    for name in ("iteration", "start_ns", "elapsed_ns", "phase"):
        own[name] = iterations.columns[name][at[kept]]
    joined = {name: np.concatenate([column, own[name]]) for name, column in iterations.columns.items()}
    rank = np.concatenate([iterations.rank, events.rank[kept]])
    return Rows(rank, joined, iterations.keys, iterations.names), _rejected(len(at) - len(kept), schema)


def told_by_operators(operators: Rows) -> Rows | None:
    """Return the iterations that operators name: from the first one's start to the last one's end on each rank.

    One with an operator that never ended has not ended either, and is left out. None: no operator tells of any.
    """
    own = operators.columns
    is_known = (own["iteration"] != UNKNOWN) & (own["start_ns"] != UNKNOWN)
    if not is_known.any():
        return None
    start_ns, elapsed_ns = own["start_ns"][is_known], own["elapsed_ns"][is_known]
    named = np.stack([operators.rank[is_known].astype(np.int64), own["iteration"][is_known]])
    found, group = np.unique(named, axis=1, return_inverse=True)
    group, count = group.reshape(-1), found.shape[1]
    begin_ns, end_ns = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(begin_ns, group, start_ns)
    np.maximum.at(end_ns, group, start_ns + np.nan_to_num(elapsed_ns).astype(np.int64))
    is_over = np.bincount(group, np.isnan(elapsed_ns), count) == 0
    phase = np.full(count, PHASE_UNKNOWN, np.uint8)
    columns = iteration_columns(found[1], begin_ns, (end_ns - begin_ns).astype(np.float64), phase)
    kept = {name: column[is_over] for name, column in columns.items()}
    return Rows(found[0][is_over].astype(np.int32), kept, iterations_keys, lambda _: ())


def _named_places(iterations: Rows, events: Rows) -> np.ndarray:
    """Return the row of the iteration that each event names; -1: there is none."""
    numbers = np.concatenate([iterations.columns["iteration"], events.columns["iteration"]])
    ranks = np.concatenate([iterations.rank, events.rank])
    _, key = np.unique(np.stack([ranks, numbers]), axis=1, return_inverse=True)
    told, asked = np.split(key.reshape(-1), [len(iterations.rank)])
    place = np.full(int(key.max(initial=-1)) + 1, -1)
    place[told] = np.arange(len(told))
    return place[asked]


def _timed_places(iterations: Rows, pauses: Rows) -> np.ndarray:
    """Return the row of the newest iteration that the rank of each pause had begun by then; -1: there is none."""
    told = len(iterations.rank)
    starts_ns = np.concatenate([iterations.columns["start_ns"], pauses.columns["pause_start_ns"]])
    ranks = np.concatenate([iterations.rank, pauses.rank])
    # An iteration comes before a pause that begins with it.
    order = np.lexsort((np.arange(len(ranks)) >= told, starts_ns, ranks))
    newest = np.maximum.accumulate(np.where(order < told, np.arange(len(order)), -1))
    row = np.where(newest >= 0, order[newest], -1)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.where((row >= 0) & (ranks[row] == ranks[order]), row, -1)
    return place[told:]


def _rejected(count: int, schema: str) -> Rejected:
    reason = f"{schema}: iteration must be one of its rank's in iterations; got {count} rows of others"
    return Rejected(count, (reason,) if count else ())


def read_events(job: JobFile, tables: Iterable[TableFile]) -> tuple[dict[int, Batch], Rejected]:
    """Return the events of each rank, in order of time, each once.

    One without a rank belongs to the rank that uses its device, or to the lowest one on its host. Where all ranks
    there name their devices, one of another device is none of the job's, and left out as an agent does.
    """
    found: defaultdict[int, set[DeviceEvent]] = defaultdict(set)
    rejected = Rejected()
    users: dict[tuple[str, str], int] = {}  # the lowest rank of each host and device; an empty one is the host itself
    unnamed = {one.host for one in job.places.values() if None in (one.gpu, one.nic)}  # hosts
    # In the order of ranks, so that the lowest one of a host or device stays.
    for rank, place in sorted(job.places.items()):
        for device in ("", place.nic, None if place.gpu is None else f"gpu{place.gpu}"):
            if place.host is not None and device is not None:
                users.setdefault((place.host, device), rank)
    for table in tables:
        check = Check(table)
        times, kinds = check.integers("time_ns"), check.codes("kind", EVENT_KINDS)
        ranks, codes = check.ranks(job), check.integers("code")
        hosts, devices, details = (check.words(name) for name in ("host", "device", "detail"))
        of_others: set[int] = set()
        for row in (ranks == UNKNOWN).nonzero()[0].tolist():
            where = hosts[row], devices[row]
            ranks[row] = users.get(where, users.get((hosts[row], ""), UNKNOWN))
            if where not in users and hosts[row] not in unnamed:
                of_others.add(row)
        check.reject(ranks == UNKNOWN, "host", "one of job.json's ranks, where no rank is given")
        rejected += check.rejected()
        for row in set(check.is_good.nonzero()[0].tolist()) - of_others:
            code = None if codes[row] == UNKNOWN else int(codes[row])
            kind, detail = EVENT_KINDS[kinds[row]], details[row][:MOST_TEXT]
            rank = int(ranks[row])
            found[rank].add(DeviceEvent(int(times[row]), rank, kind, hosts[row], devices[row], code, detail))
    return {
        rank: batch_of(sorted(own), Header("events", job.job, job.attempt, rank))
        for rank, own in sorted(found.items())
    }, rejected
