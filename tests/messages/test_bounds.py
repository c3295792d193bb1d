"""One table of bounds: workers leave out the rows that the reader of traces leaves out, and no others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from irregulars.messages.announcements import Communicator
from irregulars.messages.bounds import usable_rows
from irregulars.messages.records import AUDIT, BATCH_SCHEMAS, PAUSE, RECV, SCHEMAS, SEND, UNKNOWN, decode_batch
from irregulars.producers.trace.directory import assemble_trace
from irregulars.producers.trace.files import COLUMNS, TableFile
from irregulars.producers.trace.job_file import JobFile
from tests.fuzz.mutations import with_column, written
from tests.messages.column_cases import Case, column_cases

HEADER = (
    '{"schema":"%s","version":1,"job":"j","attempt":0,"rank":0,"rows_before":0,"watermark_ns":null,"names":["w"]}'
)
JOB = JobFile("j", 0, 2, "shared", (Communicator("w", "world", (0, 1)),))
TEXTS = {"communicator": "w", "operator": "send", "path": "nic", "device": "w", "host": "w", "detail": "w",
         "kind": "xid"}  # fmt: skip
CODES = dict.fromkeys(TEXTS, 0) | {"operator": SEND}


def is_refused(case: Case) -> bool:
    """Whether the type on the wire, or the decoder, has no place for the value."""
    return case.value is None and not BATCH_SCHEMAS[case.schema].field(case.column).nullable


CASES = [
    case
    for schema in BATCH_SCHEMAS
    for case in column_cases(schema)
    if case.column not in TEXTS and not is_refused(case)
]


def read_by_a_worker(case: Case) -> bool:
    schema = BATCH_SCHEMAS[case.schema]
    rows = {field.name: [CODES.get(field.name, 1)] * 2 for field in schema}
    batch = pa.RecordBatch.from_arrays([pa.array(rows[f.name], f.type) for f in schema], schema=schema)
    batch = with_column(batch, schema.names.index(case.column), [1, case.value])
    columns = decode_batch(written(batch, (HEADER % case.schema).encode()), case.schema).columns
    found = usable_rows(case.schema, columns)
    assert found is None or found[0], "a row beside an unusable one must stay"
    return found is None


def read_by_analyze(case: Case) -> bool:
    wanted = COLUMNS[case.schema]
    rows = {one.name: [TEXTS.get(one.name, 1)] * 2 for one in wanted} | {case.column: [1, case.value]}
    rows |= {"rank": [0, 0], "phase": [None, None]}
    kind = BATCH_SCHEMAS[case.schema].field(case.column).type
    columns = {
        name: pa.chunked_array([pa.array(values, kind if name == case.column else None)])
        for name, values in rows.items()
        if name in {one.name for one in wanted}
    }
    own = TableFile(f"{case.schema}.parquet", case.schema, columns)
    return assemble_trace(JOB, lambda schema: [own] if schema == case.schema else []).rejected.count == 0


def test_a_worker_and_analyze_leave_out_the_same_rows() -> None:
    for case in CASES:
        is_usable = read_by_a_worker(case)
        if case.value != UNKNOWN:  # where null is allowed, that is read as unknown
            wanted = case.is_within is not False and (case.column, case.value) != ("peer", None)
            assert is_usable == wanted, case
        if case.schema in SCHEMAS and case.column not in (*AUDIT, *PAUSE):  # those have files of their own
            peer_of_nobody = case.column == "peer" and case.value not in (0, 1)  # analyze knows the communicator
            assert read_by_analyze(case) == (is_usable and not peer_of_nobody), case


@pytest.mark.parametrize(
    ("operator", "peer", "is_usable"), [(0, None, True), (0, 4, True), (0, -1, True), (RECV, None, False)]
)
def test_sends_and_recvs_have_a_peer(operator: int, peer: int | None, is_usable: bool) -> None:
    columns = {name: np.array([1], np.int64) for name in ("start_ns", "iteration")}
    columns |= {name: np.array([1.0]) for name in ("elapsed_ns", "size_bytes")}
    columns |= {"operator": np.array([operator], np.uint8), "peer": np.array([UNKNOWN if peer is None else peer])}
    assert (usable_rows("commops", columns) is None) == is_usable
