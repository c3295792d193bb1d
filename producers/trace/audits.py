"""Audits of a trace: replayed micro-batches, which travel as rows of the iteration in which they were computed."""

from __future__ import annotations

import numpy as np

from irregulars.messages.bounds import Bound
from irregulars.messages.records import UNKNOWN, no_numerics
from irregulars.producers.trace.columns import TableFile
from irregulars.producers.trace.job_file import JobFile
from irregulars.producers.trace.order import Rows
from irregulars.producers.trace.rows import ANY_INTEGER, Check, Rejected, iterations_keys


def check_audits(table: TableFile, job: JobFile) -> tuple[Rows, Rejected]:
    """Check rows of ``audits`` against the job; they come as rows of ``iterations`` whose times are unknown."""
    check = Check(table)
    ranks = Bound(0, job.world_size - 1)
    rank, of_rank = check.integers("rank", ranks), check.integers("of_rank", ranks)
    columns = no_numerics(len(rank)) | {
        "iteration": check.integers("iteration", ANY_INTEGER),
        "start_ns": np.full(len(rank), UNKNOWN),
        "elapsed_ns": np.full(len(rank), np.nan),
        "phase": np.zeros(len(rank), np.uint8),
        "audit_of_rank": of_rank,
        "audit_checksum": check.integers("checksum", ANY_INTEGER),
    }
    return check.rows(rank, columns, iterations_keys, names=lambda _: ())


def with_audits(iterations: Rows | None, audits: Rows) -> tuple[Rows | None, Rejected]:
    """Put audits among the iterations, with the times of the iteration that they are of.

    An audit of an iteration without a row is left out: nothing says when that was.
    """
    if iterations is None:
        return None, _rejected(len(audits.rank))
    numbers = np.concatenate([iterations.columns["iteration"], audits.columns["iteration"]])
    ranks = np.concatenate([iterations.rank, audits.rank])
    _, key = np.unique(np.stack([ranks, numbers]), axis=1, return_inverse=True)
    told, asked = np.split(key.reshape(-1), [len(iterations.rank)])
    place = np.full(int(key.max(initial=-1)) + 1, -1)
    place[told] = np.arange(len(told))
    at = place[asked]
    kept = np.flatnonzero(at >= 0)
    own = {name: column[kept] for name, column in audits.columns.items()}
    for name in ("start_ns", "elapsed_ns", "phase"):
        own[name] = iterations.columns[name][at[kept]]
    joined = {name: np.concatenate([column, own[name]]) for name, column in iterations.columns.items()}
    rank = np.concatenate([iterations.rank, audits.rank[kept]])
    return Rows(rank, joined, iterations.keys, iterations.names), _rejected(len(at) - len(kept))


def _rejected(count: int) -> Rejected:
    reason = f"audits: iteration must be one of its rank's in iterations; got {count} rows of others"
    return Rejected(count, (reason,) if count else ())
