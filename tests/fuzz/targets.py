"""What is fuzzed: a reader of bytes from outside, and sound bytes for it to begin with.

Whatever the bytes, a reader returns a value, or raises `InputError` (`RecordError` is one). Every other exception is
a finding, as are seconds of time or a large piece of memory for a small input (`tests/fuzz/run.py`).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from irregulars.errors import InputError
from irregulars.messages.announcements import (
    Announcement,
    Communicator,
    Heartbeat,
    SourceProgress,
    decode_announcement,
    decode_heartbeat,
    encode_announcement,
    encode_heartbeat,
)
from irregulars.messages.bundles import bundle_of, decode_batches, decode_rows, encode_bundle
from irregulars.messages.evidence import Membership, decode_evidence, encode_evidence
from irregulars.messages.judgements import Suspect, Verdict, decode_verdict, encode_verdict
from irregulars.messages.records import BATCH_SCHEMAS, PHASE_UNKNOWN, UNKNOWN, Batch, Header, encode_batch
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.trace.directory import read_trace
from irregulars.settings import JudgeSettings
from irregulars.sinks.alerts import alert_line, alert_of, decode_alert
from irregulars.sinks.notices.actions.actions import decode_actions, encode_actions
from irregulars.sinks.notices.actions.actor import ActingLimits, plan_nodes
from irregulars.sinks.notices.actions.nvsentinel import HealthEvents
from irregulars.sinks.notices.alertmanager import annotations_of
from irregulars.sinks.notices.ledger import Ledger
from irregulars.sinks.notices.notice import Notice, encode_notice
from irregulars.sinks.notices.pagerduty import events_of
from irregulars.sinks.notices.policy import Rules
from irregulars.sinks.notices.slack import message_of
from irregulars.state_codec import decode_state, encode_state
from irregulars.streams.rank_hop.group_monitor import GroupMonitor, GroupMonitorState
from tests.producers.importers.test_hostile_files import NAMES, VALID
from tests.streams.evidence_rows import evidence_of

RECORDING: Final = Path(__file__).parent.parent / "recordings" / "gloo-clean"
WORLD: Final = Communicator("world", "world", (0, 1))


@dataclass(frozen=True)
class Target:
    """A reader, and inputs that it reads."""

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def batch_of(schema: str) -> Batch:
    """Three rows of a schema."""
    columns: dict[str, Any] = {}
    for field in BATCH_SCHEMAS[schema]:
        kind = np.dtype(field.type.to_pandas_dtype())
        is_float = kind.kind == "f" or field.name in ("elapsed_ns", "size_bytes", "tokens", "not_finite")
        columns[field.name] = np.arange(3, dtype=np.float64 if is_float else kind if kind.itemsize < 4 else np.int64)
    names = dict.fromkeys(("communicator", "device", "host", "detail", "path"), 0)  # the header has one
    for name, value in (names | {"operator": 1, "phase": PHASE_UNKNOWN}).items():
        if name in columns:
            columns[name] = np.full(3, value, columns[name].dtype)
    if "peer" in columns:
        columns["peer"] = np.full(3, UNKNOWN)
    return Batch(Header(schema, "j", 1, 0, 0, 9, ("world",)), columns)


def monitored(value: bytes) -> object:
    """Decode operators and give them to a monitor that has begun: what decodes must not stop it."""
    monitor = GroupMonitor("j", JudgeSettings())
    monitor.announce(Announcement("j", 1, 0, 2, 2, (WORLD,)))
    monitor.add(batch_of("commops"), 0)
    monitor.add(decode_rows(value, "commops"), 1)
    monitor.tick(1e9, 2e9)
    drained = monitor.drain()
    return [decode_evidence(one) for one in encode_evidence(drained, "j")]


def file_target(name: str, read: Callable[[Path], object], *seeds: bytes) -> Target:
    """A reader of a file of this name."""

    def read_bytes(value: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_bytes(value)
            return read(Path(folder))

    return Target(read_bytes, seeds)


def read_with_job(folder: Path) -> object:
    """Read a trace directory of one file; the job is that of a recording."""
    if not (folder / "job.json").exists():
        (folder / "job.json").symlink_to(RECORDING / "job.json")
    return read_trace(folder)


def import_one(kind: str) -> Callable[[Path], object]:
    return lambda folder: import_trace(kind, folder / NAMES[kind], folder / "out")


def state() -> bytes:
    monitor = GroupMonitor("j", JudgeSettings())
    monitor.announce(Announcement("j", 1, 0, 2, 2, (WORLD,)))
    monitor.add(batch_of("commops"), 0)
    return encode_state(monitor.state(), 1)


def restored(value: bytes) -> object:
    return decode_state(value, GroupMonitorState, 1)


def bundle_of_two(schema: str) -> bytes:
    """Two ranks with three rows each."""
    first = batch_of(schema)
    headers = [replace(first.header, rank=rank, group="node-0/0") for rank in (0, 1)]
    return encode_bundle(bundle_of([replace(first, header=header) for header in headers]))


def rows_of_recording() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.parquet.read_table(RECORDING / "commops.parquet").slice(0, 20).to_pylist()
    return rows


def written(write: Callable[[pa.Table, Any], None]) -> bytes:
    sink = pa.BufferOutputStream()
    write(pa.Table.from_pylist(rows_of_recording()), sink)
    return bytes(sink.getvalue())


def targets() -> Mapping[str, Target]:
    """All of them, by name: topics, importers, files."""
    return dict(_topics()) | dict(_files())


def _topics() -> Iterator[tuple[str, Target]]:
    announcement = Announcement("j", 1, 0, 4, 4, (WORLD,), host="node-0", gpu=0, nic="eth0")
    suspect = Suspect("nic", 1, (1,), 0.9, host="n")
    verdict = Verdict(
        "v", 1, "open", "j", "slow_nic", (1, 9), 2.0, 3.0, None, (suspect,), "e", time_ns=5, severity="page"
    )
    alert = alert_of(verdict)
    assert alert is not None
    members = [Membership("j", 1, 0, announcement), Membership("j", 1, 1, reason="finished")]
    evidence = encode_evidence([*members, evidence_of(1, {0: 5.0, 1: 6.0}, phase="train")], "j")
    beat = Heartbeat("j", 1, 0, {"commops": SourceProgress(3, 5)})
    for schema in BATCH_SCHEMAS:
        seed = encode_batch(batch_of(schema))
        seeds = (seed, packed(seed), bundle_of_two(schema))
        yield schema, Target(lambda value, schema=schema: decode_batches(value, schema), seeds)  # type: ignore[misc]  # a default binds the name
    yield "jobs", Target(decode_announcement, (encode_announcement(announcement),))
    yield "heartbeats", Target(decode_heartbeat, (encode_heartbeat(beat),))
    yield "evidence", Target(decode_evidence, tuple(evidence))
    yield "verdicts", Target(decode_verdict, (encode_verdict(verdict),))
    yield "alerts", Target(noticed, (alert,))
    yield "actions", Target(planned, (encode_actions(Notice("opened", json.loads(alert), "ticket")),))
    yield "rank_snapshots", Target(restored, (state(),))
    yield "monitor", Target(monitored, (encode_batch(batch_of("commops")), bundle_of_two("commops")))


def noticed(value: bytes) -> object:
    """What followers of the topic ``alerts`` and all channels make of a message."""
    ledger = Ledger({"c": Rules(hold_s=0.0)})
    ledger.apply_alert(decode_alert(value), 0)
    due = ledger.next_due("c", 0)
    writers = (encode_notice, encode_actions, events_of, message_of, annotations_of)
    return alert_line(value), None if due is None else [write(due.notice) for write in writers]


def planned(value: bytes) -> object:
    """What consumers make of a message of the topic ``actions``."""
    found = decode_actions(value)
    made = HealthEvents("c", 0.5)
    events = json.dumps([*made.of(found, 0), *made.of(replace(found, actions=()), 0)], allow_nan=False)
    return events, plan_nodes({found.verdict_id: found}, {"node-0": "cordon-0-0"}, (), ActingLimits(), 0)


def packed(value: bytes) -> bytes:
    """Write an Arrow stream again, with compression."""
    with pa.ipc.open_stream(value) as reader:
        table = reader.read_all()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _files() -> Iterator[tuple[str, Target]]:
    for kind, valid in VALID.items():
        yield kind, file_target(NAMES[kind], import_one(kind), valid())
    rows = rows_of_recording()
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    table = ",".join(rows[0]) + "\n"
    table += "".join(",".join("" if one is None else str(one) for one in row.values()) + "\n" for row in rows)
    parquet = written(lambda table, sink: pa.parquet.write_table(table, sink))
    yield "jsonl", file_target("commops.jsonl", read_with_job, lines.encode())
    yield "csv", file_target("commops.csv", read_with_job, table.encode())
    yield "parquet", file_target("commops.parquet", read_with_job, parquet)
    yield "job", file_target("job.json", read_trace_of_job, (RECORDING / "job.json").read_bytes())


def read_trace_of_job(folder: Path) -> object:
    (folder / "commops.jsonl").write_bytes(b"")
    return read_trace(folder)


def try_one(target: Target, value: bytes) -> bool:
    """Read once; whether it was a value. Lets every exception through that is no `InputError`."""
    try:
        target.read(value)
    except InputError:
        return False
    return True
