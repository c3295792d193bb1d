"""Recorded jobs as a worker would have stored them: judged once, in this process, as rows of the tables.

Kinds of verdicts that no recording has come of made jobs, by names that begin with ``made/``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from irregulars.infra.runs.analysis import judge_whole
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import monitor_settings
from irregulars.messages.device_events import DeviceEvent, batch_of
from irregulars.messages.judgements import Judgements
from irregulars.messages.records import OPERATOR_CODES
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.writer import write_trace
from irregulars.sinks.protocol import Rows
from irregulars.sinks.tables import table_of_samples, tables_of
from irregulars.streams.local_pipeline import LocalPipeline
from tests.streams.eight_ranks import EightRanks, late, with_few_tokens
from tests.streams.lockstep_job import MS, LockstepJob

RECORDINGS: Final = Path(__file__).resolve().parents[1] / "recordings"


def trace_of(name: str) -> Trace:
    """Return a recording, or a made job."""
    if name not in MADE:
        return read_trace(RECORDINGS / name)
    made = MADE[name]()
    with tempfile.TemporaryDirectory() as folder:  # as a reader arranges its rows
        write_trace(folder, made.announcements, [*made.commops.values(), *made.iterations.values()])
        return replace(read_trace(folder), recorded_until_ns=made.recorded_until_ns, events=made.events)


def judged(name: str, *detectors: str) -> Judgements:
    """Judge a job, with these detectors beside the judge; its announcements are included."""
    trace, settings = trace_of(name), monitor_settings(Settings(detectors=detectors)) if detectors else None
    own = judge_whole(LocalPipeline(trace.job, settings), trace)
    return replace(own, announcements=list(trace.announcements))


@cache
def rows_of_recording(name: str, *detectors: str) -> Rows:
    """Return what a worker would have stored of a job, its announcements and samples included."""
    return {**tables_of(judged(name, *detectors)), **samples_of(name)}


def samples_of(name: str) -> Rows:
    """Return what a worker would have stored of a job's samples of bandwidth."""
    samples = list(trace_of(name).batches("bandwidth").values())
    return {"bandwidth": table_of_samples(samples)} if samples else {}


# --- other rows ----------------------------------------------------------------------------------------------------


def with_columns(rows: Rows, tables: Sequence[str] = (), **values: Any) -> dict[str, pa.Table]:
    """Put one value into columns of all tables that have them, or of some tables."""
    return {
        name: with_values(table, values) if not tables or name in tables else table for name, table in rows.items()
    }


def with_values(table: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    for name, value in values.items():
        at = table.schema.get_field_index(name)
        if at >= 0:
            kind = table.schema.field(at)
            table = table.set_column(at, kind, pa.array([value] * table.num_rows, kind.type))
    return table


def between(rows: Rows, first: int, past: int) -> dict[str, pa.Table]:
    """Return the rows of some iterations, and those that belong to none if these are the first."""
    kept = {}
    for name, table in rows.items():
        if "iteration" in table.column_names:
            at = table["iteration"]
            kept[name] = table.filter(pc.and_(pc.greater_equal(at, first), pc.less(at, past)))
        elif first == 0:
            kept[name] = table
    return kept


# --- made jobs -----------------------------------------------------------------------------------------------------


def _other_call() -> Trace:
    """Rank 3 calls an all_gather where all others reduce, and nobody returns."""
    made, calls = EightRanks(job="other-call"), 100
    made.job.iterate(range(calls), made.body)
    for rank in made.job.ranks:
        row = {"communicator": "world", "sequence": calls, "iteration": calls, "start_ns": made.job.now_ns[rank]}
        operator = OPERATOR_CODES["all_gather" if rank == 3 else "all_reduce"]
        made.job.rows[rank].append({**row, "operator": operator, "size_bytes": 1e6})
    return replace(made.job.trace(), recorded_until_ns=max(made.job.now_ns.values()) + 60 * 10**9)


def _slow_writer() -> Trace:
    """Each tenth iteration is a checkpoint, which rank 5 writes six times as long from the fourth to the seventh."""

    def checkpoint(job: LockstepJob, number: int) -> None:
        made.body(job, number)
        for rank in job.ranks:
            times = 6 if rank == 5 and 30 <= number < 70 else 1
            job.work(rank, times * 200 * MS + (number + rank * 3) % 7 * 5 * MS)
        job.collective("world", MS)

    made = EightRanks(job="slow-writer")
    for first in range(0, 100, 10):
        made.job.iterate(range(first, first + 9), made.body)
        made.job.iterate([first + 9], checkpoint, "checkpoint")
    return made.job.trace()


def _throttled() -> Trace:
    """Rank 2 works longer, and its node reports that the clocks of its GPU are held down."""
    trace = late(2, during=range(30, 75), job="throttled").trace(120)
    time_ns = int(trace.iterations[2].columns["start_ns"][30])
    event = DeviceEvent(time_ns, 2, "throttle", "node-1", "gpu0", detail="hw_thermal_slowdown")
    header = replace(trace.iterations[2].header, watermark_ns=time_ns)
    return replace(trace, events={2: batch_of([event], header)})


def _few_tokens() -> Trace:
    """Rank 3 has few tokens for a while, and rank 6 is late in some of these iterations: two faults."""
    trace = late(6, during=range(50, 70), job="few-tokens").trace(120)
    return with_few_tokens(trace, {3: set(range(40, 90))})


TOKENS: Final = "tests.detectors.bad_detectors:FewTokens"
"""A detector that finds the rank with few tokens, and nothing in any time."""

MADE: Final[Mapping[str, Callable[[], Trace]]] = {
    "made/other-call": _other_call,
    "made/slow-writer": _slow_writer,
    "made/throttled": _throttled,
    "made/few-tokens": _few_tokens,
}
