"""Whatever stands in a column, the worker goes on, and an innocent job beside it is judged as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby

import pyarrow as pa
import pytest

from irregulars.errors import RecordError
from irregulars.messages.bounds import BOUNDS
from irregulars.messages.evidence import Evidence, decode_evidence
from irregulars.messages.records import BATCH_SCHEMAS, UNKNOWN
from irregulars.sinks.tables import SAMPLES
from tests.conftest import ClickHouseAddress
from tests.fuzz.mutations import with_column, written
from tests.fuzz.watched_worker import RANKS, Sent, WatchedWorker, other_messages, sound_messages, watched_worker
from tests.fuzz.worker_run import HostileJobs, send_hostile_jobs
from tests.integration.worker_runs import DEADLINE_S, wait_until
from tests.messages.column_cases import Case, column_cases

pytestmark = pytest.mark.integration

SCHEMAS = (*BATCH_SCHEMAS, "evidence")
JOBS_PER_WITNESS = 20


@pytest.fixture(scope="module")
def watched(
    kafka_bootstrap: str, clickhouse: ClickHouseAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WatchedWorker]:
    with watched_worker(kafka_bootstrap, clickhouse, tmp_path_factory.mktemp("worker")) as own:
        yield own


def test_each_column_at_its_bounds_and_beyond_them(watched: WatchedWorker) -> None:
    """A hostile job for four values of a column: each stands in rows of one of its ranks."""
    jobs = dict(enumerate(hostile_jobs(), 1))
    for number, cases in jobs.items():
        for message in spoilt_job(cases, number):
            watched.send(message)
        if number % JOBS_PER_WITNESS == 0 or number == len(jobs):
            watched.require_witness(DEADLINE_S)
    watched.require_ready()
    beyond = [
        (name_of(n), rank, case) for n, cases in jobs.items() for rank, case in enumerate(cases) if is_bad(case)
    ]
    lost = {(job, rank) for job, rank, case in beyond if case.schema in SCHEMAS[:3]}
    wait_until(lambda: lost <= ranks_with_losses(watched), "rows beyond their bounds counted as lost")
    refused = {job for job, rank, case in beyond if case.schema == "evidence" and is_in_evidence(case, rank)}
    wait_until(lambda: refused <= buried(watched), "evidence beyond its bounds among the dead letters")
    assert stored_beyond(watched) == {}


def test_mutated_messages(watched: WatchedWorker) -> None:
    """The short form of ``make fuzz``."""
    send_hostile_jobs(watched, HostileJobs(1), 300, DEADLINE_S)


def hostile_jobs() -> Iterator[Sequence[Case]]:
    for schema in SCHEMAS:
        for _, own in groupby(column_cases(schema), lambda case: case.column):
            cases = [*own]
            yield from (cases[first : first + RANKS] for first in range(0, len(cases), RANKS))


def is_bad(case: Case) -> bool:
    return case.is_within is False and case.value != UNKNOWN  # that is read as unknown, where it may be


def name_of(number: int) -> str:
    return f"hos-{number:06d}"


def spoilt_job(cases: Sequence[Case], number: int) -> Iterator[Sent]:
    """Messages of a job: in those of rank n of one topic stands the value of case n."""
    schema, messages = cases[0].schema, list(sound_messages())
    messages[-RANKS:-RANKS] = [one for one in other_messages() if one.topic == schema]  # before its last heartbeats
    for message in messages:
        rank = rank_of(message)
        if message.topic == schema and rank < len(cases):
            message = replace(message, value=spoilt(message.value, cases[rank]))
        yield message.of(name_of(number).encode())


def rank_of(message: Sent) -> int:
    """The rank whose rows a message holds; RANKS of membership."""
    if message.topic != "evidence":
        return int(message.key.rpartition(b"/")[2])
    (rows, *_) = decode_evidence(message.value)
    return int(rows.columns["rank"][0]) if isinstance(rows, Evidence) else RANKS


def spoilt(value: bytes, case: Case) -> bytes:
    """Put the value into every fiftieth row, and into all that a list holds."""
    with pa.ipc.open_stream(value) as reader:
        batch = reader.read_next_batch()
    field = case.column.removesuffix(" of a pattern")
    name = field if field == case.column else "patterns"
    if name not in batch.schema.names:
        return value
    values = batch.column(name).to_pylist()
    for row in range(0, len(values), 1 if name == "peer" else 50):  # that of a collective means nothing
        if not isinstance(values[row], list):
            values[row] = case.value
        elif name == "patterns":
            values[row] = [{**one, field: case.value} for one in values[row]]
        else:
            values[row] = [case.value for _ in values[row]]
    return written(with_column(batch, batch.schema.names.index(name), values), batch.schema.metadata[b"irregulars"])


def ranks_with_losses(watched: WatchedWorker) -> set[tuple[str, int]]:
    """Jobs and ranks of which evidence counts rows as lost."""
    found = set()
    for message in watched.pipeline.bus.read("evidence"):
        with suppress(RecordError):  # ours: the worker refuses it as well
            for rows in decode_evidence(message.value()):
                if isinstance(rows, Evidence):
                    ranks = rows.columns["rank"][rows.columns["lost_rows"] > 0]
                    found |= {(rows.job, rank) for rank in ranks.tolist()}
    return found


def buried(watched: WatchedWorker) -> set[str]:
    return {(message.key() or b"").decode() for message in watched.pipeline.bus.read("deadletter")}


def is_in_evidence(case: Case, rank: int) -> bool:
    own = [one.value for one in other_messages() if one.topic == "evidence" and rank_of(one) == rank]
    return any(spoilt(value, case) != value for value in own)


def stored_beyond(watched: WatchedWorker) -> dict[str, int]:
    """How many stored samples lie beyond their bounds, by column."""
    found = {}
    for table in SAMPLES:
        for name, bound in BOUNDS[table].items():
            if name not in ("time_ns", "throttle_reasons"):
                beyond = f"{name} < {bound.least} OR {name} > {bound.most}"
                found[f"{table}.{name}"] = int(watched.pipeline.query(f"SELECT countIf({beyond}) FROM {table}"))
    return {name: count for name, count in found.items() if count}
