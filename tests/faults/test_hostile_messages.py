"""No message stops a worker or fills its memory; all are found among the dead letters."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from irregulars.infra.settings import Settings
from irregulars.kafka.topics import RANK_TOPICS, rank_key
from irregulars.messages.announcements import (
    Announcement,
    Communicator,
    Heartbeat,
    SourceProgress,
    encode_announcement,
    encode_heartbeat,
)
from irregulars.messages.evidence import Evidence, decode_evidence, encode_evidence
from irregulars.messages.records import encode_batch
from tests.integration.pipelines import MOST_BYTES, Pipeline, largest_bytes
from tests.integration.test_bad_input import run
from tests.integration.worker_runs import wait_until
from tests.messages.test_arrow_limits import message
from tests.streams.evidence_rows import evidence_of
from tests.streams.lockstep_job import MS, START_NS, iteration_batch

pytestmark = pytest.mark.integration

ROWS_OF_A_CLOSING = 100_000
LARGE_BYTES = 999_800  # what librdkafka takes, unless told otherwise; with headers and key no letter holds it
BAD = (b"no record at all", b'{"schema":"other","version":1}', b"")
PLAIN = Announcement("other", 1, 0, 4, 4, (Communicator("w", "world", (0, 1)),))


def hostile() -> Iterator[tuple[str, bytes, bytes]]:
    """Topic, key and value of messages that must all become dead letters."""
    for topic in (*RANK_TOPICS, "evidence"):
        for value in BAD:
            yield topic, b"bad/0", value
    yield "commops", b"random/0", os.urandom(LARGE_BYTES)
    yield "commops", os.urandom(400_000), os.urandom(400_000)
    long = "j" * 400_000
    yield "jobs", rank_key(long, 0), encode_announcement(replace(PLAIN, job=long))
    yield "jobs", b"other/0", encode_announcement(replace(PLAIN, host="h" * 400_000))
    (evidence,) = encode_evidence([evidence_of(1, {0: 5.0}, phase="train")], "j")
    yield "evidence", b"j", with_phase(evidence, 200)
    yield "commops", b"j/1", message(40_000_000, "zstd")
    yield "evidence", b"j", message(40_000_000, "zstd")
    lost = json.loads(encode_announcement(PLAIN)) | {"lost_rows": 1 << 62}
    yield "jobs", b"other/0", json.dumps(lost).encode()
    beat = json.loads(encode_heartbeat(Heartbeat("other", 1, 0)))
    sources = {"commops": {"rows": 1, "watermark_ns": 5, "lost_rows": 1 << 62}}
    yield "heartbeats", b"other/0", json.dumps(beat | {"sources": sources}).encode()


def with_phase(evidence: bytes, phase: int) -> bytes:
    (rows,) = decode_evidence(evidence)
    assert isinstance(rows, Evidence)
    spoilt = replace(rows, columns={**rows.columns, "phase": np.full(len(rows), phase, np.uint8)})
    return encode_evidence([spoilt], "j")[0]


def large_announcements() -> Iterator[tuple[str, bytes, bytes]]:
    """40 sound announcements of some hundred bytes that name 4 M ranks each."""
    for rank in range(40):
        runs = [{"id": f"w{rank}", "kind": "world", "ranks": [[0, 1 << 22, 1]]}]
        values = json.loads(encode_announcement(replace(PLAIN, job="large", rank=rank, world_size=1 << 22)))
        yield "jobs", rank_key("large", rank), json.dumps(values | {"communicators": runs}).encode()


def long_closing(pipeline: Pipeline) -> None:
    """Send a rank whose iterations all close with its last heartbeat; the job's other rank never comes."""
    key = rank_key("lockstep", 0)
    announcement = Announcement("lockstep", 1, 0, 2, 2, (), sources=("iterations",))
    pipeline.bus.send("jobs", key, encode_announcement(announcement))
    for first in range(0, ROWS_OF_A_CLOSING, 5_000):
        rows = [
            {"iteration": n, "start_ns": START_NS + n * MS, "elapsed_ns": MS - 1} for n in range(first, first + 5_000)
        ]
        batch = iteration_batch(0, rows, rows_before=first)
        batch = replace(batch, header=replace(batch.header, watermark_ns=None))
        pipeline.bus.send("iterations", key, encode_batch(batch))
    # It counts its rows: topics have no order among them, and it must not be taken for true before they have come.
    sources = {"iterations": SourceProgress(ROWS_OF_A_CLOSING)}
    beat = Heartbeat("lockstep", 1, 0, sources, "ended", "finished")
    pipeline.bus.send("heartbeats", key, encode_heartbeat(beat))


def closed_rows(pipeline: Pipeline) -> int:
    own = [m.value() for m in pipeline.bus.read("evidence") if m.key() == b"lockstep"]
    return sum(len(row) for value in own for row in decode_evidence(value) if isinstance(row, Evidence))


def test_no_message_stops_a_worker_and_each_is_a_dead_letter(pipeline: Pipeline) -> None:
    bus, bad = pipeline.bus, list(hostile())
    worker = pipeline.start_worker()
    for topic, key, value in bad:
        bus.send(topic, key, value)
    for topic, key, value in large_announcements():
        bus.send(topic, key, value)
    bus.flush()
    pipeline.replay("gloo-slow-nic")
    wait_until(lambda: len(bus.read("deadletter")) >= len(bad), "dead letters")
    pipeline.wait_until_stored(1)
    assert largest_bytes(worker) < MOST_BYTES
    letters = require_letters(pipeline, bad)
    require_commands(pipeline.settings, letters)
    require_replay(pipeline, letters)
    assert worker.stop() == 0
    assert "Traceback" not in worker.output()


def test_a_closing_of_100_000_rows_is_sent_in_parts(pipeline: Pipeline) -> None:
    worker = pipeline.start_worker(snapshot_s=60.0)
    long_closing(pipeline)
    pipeline.bus.flush()
    wait_until(lambda: closed_rows(pipeline) == ROWS_OF_A_CLOSING, "evidence of the long closing")
    assert worker.is_running
    assert "Traceback" not in worker.output()
    assert pipeline.bus.read("deadletter") == []


def require_letters(pipeline: Pipeline, bad: list[tuple[str, bytes, bytes]]) -> list[dict[str, str]]:
    found = [({n: v.decode() for n, v in m.headers()}, m) for m in pipeline.bus.read("deadletter")]
    assert len(found) == len(bad)
    for headers, letter in found:
        name = headers["topic"].removeprefix(pipeline.settings.topic_prefix)
        (original,) = [
            m
            for m in pipeline.bus.read(name)
            if (str(m.partition()), str(m.offset())) == (headers["partition"], headers["offset"])
        ]
        assert original.value().startswith(letter.value())
        assert len(original.value()) == int(headers["value_bytes"])
        assert headers["reason"]
        assert int(headers["time_ns"]) > 1_600_000_000_000_000_000
    return [headers for headers, _ in found]


def require_commands(settings: Settings, letters: list[dict[str, str]]) -> None:
    """`list` names all of them, `show` the whole original of one that was cut."""
    listed = json.loads(run("deadletter", "list", "--json", settings=settings).stdout)
    assert [(one["partition"], one["offset"]) for one in listed] == [
        (int(one["partition"]), int(one["offset"])) for one in letters
    ]
    (cut,) = [one for one in listed if one["is_cut"] and one["key"] == "random/0"]
    shown: dict[str, Any] = json.loads(run("deadletter", "show", cut["letter"], "--json", settings=settings).stdout)
    assert len(base64.b64decode(shown["value_base64"])) == LARGE_BYTES
    people = run("deadletter", "list", "--topic", "evidence", settings=settings)
    assert people.returncode == 0
    assert len(people.stdout.splitlines()) == 2 + len(BAD)
    assert "phase codes must be below 4" in people.stdout
    assert run("deadletter", "show", "99999", settings=settings).stderr.startswith("irregulars: letter must be one")


def require_replay(pipeline: Pipeline, letters: list[dict[str, str]]) -> None:
    """A letter goes back whole, and comes back as it still can't be used."""
    before, again_sent = len(pipeline.bus.read("commops")), 3 + len(BAD)
    sent = run("deadletter", "replay", "--all", "--topic", "commops", "--json", settings=pipeline.settings)
    assert json.loads(sent.stdout)["sent"] == again_sent
    again = pipeline.bus.read("commops")
    assert len(again) == before + again_sent
    sizes = sorted(len(m.value()) for m in again)
    assert sizes[-2:] == [LARGE_BYTES, LARGE_BYTES]
    wait_until(
        lambda: len(pipeline.bus.read("deadletter")) == len(letters) + again_sent, "the same letters once more"
    )
