"""A trace directory: the recorded input of one training job (``infra/docs/trace-directory.md``).

`read_trace` reads and checks one (`assemble_trace`: tables in memory), `trace_batches` gives its rows as the training
job would have published them, `write_trace` writes one.
"""

from __future__ import annotations

import heapq
import shlex
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement, above
from irregulars.messages.records import SCHEMAS, TRACE_SCHEMAS, UNKNOWN, Batch, Header
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order
from irregulars.producers.trace.files import TableFile, find_file, read_file, read_parts
from irregulars.producers.trace.foreign_files import how_to_import
from irregulars.producers.trace.iteration_events import (
    FILE_COLUMNS,
    check_events,
    read_events,
    told_by_operators,
    with_events,
)
from irregulars.producers.trace.job_file import JobFile, RankLocation, read_job
from irregulars.producers.trace.order import Rows, RowsGatherer, arrange, newest_passes
from irregulars.producers.trace.rows import Rejected, check_bandwidth, check_commops, check_iterations
from irregulars.producers.trace.writer import write_trace

__all__ = ["Rejected", "Trace", "assemble_trace", "read_trace", "trace_batches", "write_trace"]
_Check = Callable[[TableFile, JobFile], tuple[Rows, Rejected]]
_CHECKS: Final[Mapping[str, _Check]] = {
    "commops": check_commops, "bandwidth": check_bandwidth, "iterations": check_iterations,
    "audits": check_events, "pauses": check_events,
}  # fmt: skip
_NEVER_NS: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Trace:
    """A read trace directory."""

    # job, attempt, world_size, clock, recorded_until_ns: As in ``job.json``; `recorded_until_ns` is `None` where it
    # is not known
    job: str
    attempt: int
    world_size: int
    clock: str
    recorded_until_ns: int | None
    # One per logged rank, and one with ``is_logged=False`` per other rank that ``job.json`` places; ordered by rank.
    # Communicators are ordered by id.
    announcements: tuple[Announcement, ...]
    # commops, bandwidth, iterations: Per rank all rows as one batch, in order of event time (see
    # `producers.trace.order.arrange`). Ranks without rows are absent. ``header.names`` of `commops` are the ids of
    # the rank's communicators.
    commops: Mapping[int, Batch]
    bandwidth: Mapping[int, Batch] = field(default_factory=dict)
    iterations: Mapping[int, Batch] = field(default_factory=dict)
    events: Mapping[int, Batch] = field(default_factory=dict)
    rejected: Rejected = field(default_factory=Rejected)  # rows that break the contract and were left out
    copies: int = 0  # rows that were there more than once, counted without the first

    def batches(self, schema: str) -> Mapping[int, Batch]:
        """Return the batches of one of `TRACE_SCHEMAS` per rank."""
        found: Mapping[int, Batch] = getattr(self, schema)
        return found


def read_trace(directory: Path | str, without: Collection[str] = ()) -> Trace:
    """Read a trace directory. The order of its rows, and rows that come twice, change nothing.

    `without`: schemas to leave aside: their files need not be there, and are not read. Raises InputError if a file is
    unusable; one line that names the file, the row or key, the rule and the value found. Single bad rows are left out
    and counted instead.
    """
    directory = Path(directory)
    try:
        found = "a file" if not stat.S_ISDIR(directory.stat().st_mode) else None
    except FileNotFoundError:
        found = "nothing"
    except OSError as error:
        found = str(error.strerror)
    if found is not None:
        raise InputError(f"{directory}: must be a trace directory; got {found}{how_to_import(directory)}")
    if (directory / "parts").is_dir() and not (directory / "job.json").exists():
        raise InputError(
            f"{directory}: must hold job.json; got parts/, of a training job that runs still or was killed. "
            f"If it has ended, run: python -m "
            f"irregulars.producers.torch_hook.trace_parts {shlex.quote(str(directory))}"
        )

    def read_tables(schema: str) -> Iterable[TableFile]:
        path = None if schema in without else find_file(directory, schema)
        if path is not None:
            # Names of devices are numbered over the whole file.
            return (read_file(path, schema),) if schema == "bandwidth" else read_parts(path, schema)
        if schema == "commops" and schema not in without:
            rule = "must hold commops.parquet, commops.jsonl or commops.csv"
            raise InputError(f"{directory}: {rule}; got none of them")
        return ()

    return assemble_trace(read_job(directory), read_tables)


def assemble_trace(job: JobFile, tables_of: Callable[[str], Iterable[TableFile]]) -> Trace:
    """Make a trace of a job and its unchecked tables, whose rows may be in any order, with copies.

    `tables_of`: returns the table of a schema, in parts; none where there is none (of ``bandwidth`` at most one).
    Called once for each, and one part is in memory at a time.
    """
    rejected: dict[str, Rejected] = {}
    beside: dict[str, Rows] = {}
    batches: dict[str, dict[int, Batch]] = {}
    copies = 0
    # Audits and pauses first: they become rows among the iterations.
    for schema in FILE_COLUMNS:
        rows, rejected[schema] = _gathered(schema, job, tables_of(schema))
        if rows is not None:
            beside[schema] = rows
    events, rejected["events"] = read_events(job, tables_of("events"))
    by_operators: Rows | None = None
    for schema in SCHEMAS:
        rows, rejected[schema] = _gathered(schema, job, tables_of(schema))
        if schema == "commops" and rows is not None and beside:
            by_operators = told_by_operators(rows)
        elif schema == "iterations" and rows is None and beside:
            rows = by_operators  # pauses need the times of their iterations, and nothing else tells them
        for name, own in beside.items() if schema == "iterations" else ():
            rows, left_out = with_events(rows, own, name)
            rejected[schema] += left_out
        batches[schema] = {}
        if rows is not None:
            order, count = arrange(rows), len(rows.rank)
            copies += count - len(order)
            if schema == "iterations":
                newest = newest_passes(rows, order)
                if gone := len(order) - len(newest):
                    rule = "numbers of a rank must not go back in one attempt"
                    got = f"iterations: {rule}; got {gone} rows of iterations that were begun again later"
                    order, rejected[schema] = newest, rejected[schema] + Rejected(gone, (got,))
            # Rows that are in order already need not move.
            is_in_order = len(order) == count and (order == np.arange(count)).all()
            batches[schema] = _part_by_rank(rows, None if is_in_order else order, schema, job)
            del rows, order  # before the next file is read
    return Trace(
        job=job.job, attempt=job.attempt, world_size=job.world_size, clock=job.clock,
        recorded_until_ns=job.recorded_until_ns, announcements=tuple(_announcements(job, batches)),
        rejected=sum((rejected[schema] for schema in ("events", *FILE_COLUMNS, *SCHEMAS)), Rejected()),
        copies=copies, events=events, **batches,
    )  # fmt: skip


def _gathered(schema: str, job: JobFile, tables: Iterable[TableFile]) -> tuple[Rows | None, Rejected]:
    gatherer, rejected = RowsGatherer(), Rejected()
    for table in tables:
        rows, left_out = _CHECKS[schema](table, job)
        gatherer.add(rows, table.rows_in_file)
        rejected += left_out
        del table, rows  # before the next part is read
    return gatherer.take(), rejected


def _part_by_rank(rows: Rows, order: np.ndarray | None, schema: str, job: JobFile) -> dict[int, Batch]:
    rank = rows.rank if order is None else rows.rank.take(order)
    columns = {}
    for name in list(rows.columns):  # one after the other, so that hardly more than one is in memory twice
        column = rows.columns.pop(name)
        columns[name] = column if order is None else column.take(order)  # faster than indexing by the same
    is_first = np.ones(len(rank), dtype=bool)
    np.not_equal(rank[1:], rank[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first).tolist()
    batches = {}
    for first, past in pairwise([*firsts, len(rank)]):
        own = {name: column[first:past] for name, column in columns.items()}
        newest = int(rows.keys(own).event_ns.max())
        header = Header(
            schema=schema, job=job.job, attempt=job.attempt, rank=int(rank[first]),
            watermark_ns=None if newest == UNKNOWN else newest, names=rows.names(int(rank[first])),
        )  # fmt: skip
        batches[header.rank] = Batch(header, own)
    return batches


def _announcements(job: JobFile, batches: Mapping[str, Mapping[int, Batch]]) -> Iterator[Announcement]:
    # A declared rank without rows logs all the same: it ran nothing, which differs from a rank that is not seen.
    declared = set(job.logged_ranks or ())
    logged = declared.union(*batches.values())
    for rank in sorted(logged | set(job.places)):
        sources = tuple(
            schema for schema in SCHEMAS if rank in batches[schema] or (schema == "commops" and rank in declared)
        )
        place = job.places.get(rank, RankLocation())
        yield Announcement(
            job=job.job, attempt=job.attempt, rank=rank, world_size=job.world_size, logged_ranks=len(logged),
            communicators=tuple(job.communicators[i] for i in job.membership.of_rank(rank)), sources=sources,
            is_logged=rank in logged, clock=job.clock, host=place.host, gpu=place.gpu, nic=place.nic,
            switch=place.switch, lost_rows=place.lost_rows, recorded_until_ns=job.recorded_until_ns,
            replicas=job.replicas.get(rank), fabric=above(place.switch, job.fabric),
        )  # fmt: skip


def trace_batches(trace: Trace, max_rows: int = BATCH_ROWS, max_span_s: float = BATCH_SPAN_S) -> Iterator[Batch]:
    """Yield the rows of a trace as its training job would have published them.

    Returns batches with true ``rows_before`` and ``watermark_ns``, ordered over all ranks and schemas by watermark;
    rows that never ended come last.
    """
    parts = (
        cut_in_order(batch, max_rows, max_span_s)
        for schema in TRACE_SCHEMAS
        for batch in trace.batches(schema).values()
    )
    return heapq.merge(*parts, key=published_ns)


def published_ns(batch: Batch) -> int:
    """Return when a batch of `trace_batches` would have been published, ns since the epoch; huge if nothing ended."""
    watermark_ns = batch.header.watermark_ns
    return _NEVER_NS if watermark_ns is None else watermark_ns
