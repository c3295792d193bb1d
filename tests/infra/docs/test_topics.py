"""The examples of infra/docs/topics.md are messages: they follow their schemas, and can be read and written again."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jsonschema
import numpy as np
import pyarrow as pa
import pytest

from irregulars.infra.docs_site.made_parts import SCHEMAS
from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.topics import TOPICS, TopicSettings
from irregulars.messages.announcements import (
    decode_announcement,
    decode_heartbeat,
    encode_announcement,
    encode_heartbeat,
)
from irregulars.messages.bundles import Bundle, BundleHeader, decode_batches, encode_bundle
from irregulars.messages.evidence import Evidence, Membership, decode_evidence
from irregulars.messages.judgements import decode_verdict, encode_verdict
from irregulars.messages.records import BATCH_SCHEMAS, COMMOPS, decode_batch, encode_arrow, encode_batch
from irregulars.sinks.notices.actions.actions import decode_actions, encode_actions
from irregulars.sinks.notices.notice import Notice
from tests.infra.docs.made_parts import DOCS, ROWS_SHOWN, topics_of_job

SECTIONS = dict(re.findall(r"^## ([\w, ]+)$(.*?)(?=^## |\Z)", (DOCS / "topics.md").read_text(), re.M | re.S))


def examples(topic: str) -> list[dict[str, Any]]:
    """The JSON blocks of a topic's section, or the file that it links to."""
    file = DOCS / "examples" / f"{topic}.json"
    if file.exists():
        assert f"(examples/{topic}.json)" in (DOCS / "topics.md").read_text()
        return [json.loads(file.read_text())]
    return [json.loads(text) for text in re.findall(r"```json\n(.*?)```", SECTIONS[topic], re.DOTALL)]


def as_bytes(example: dict[str, Any]) -> bytes:
    return json.dumps(example, separators=(",", ":")).encode()


def test_each_topic_has_a_section_with_short_examples() -> None:
    assert {name for title in SECTIONS for name in title.split(", ")} == {*TOPICS, "Bundles"}
    assert all(len(example.get("rows", ())) <= ROWS_SHOWN for topic in SECTIONS for example in examples(topic))


@pytest.mark.parametrize("topic", sorted(file.stem for file in SCHEMAS.glob("*.json")))
def test_json_follows_its_published_schema(topic: str) -> None:
    (example,) = examples(topic)
    jsonschema.validate(example, json.loads((SCHEMAS / f"{topic}.json").read_text()))


@pytest.mark.parametrize(("topic", "encode", "decode"), [
    ("jobs", encode_announcement, decode_announcement),
    ("heartbeats", encode_heartbeat, decode_heartbeat),
    ("verdicts", encode_verdict, decode_verdict),
])  # fmt: skip
def test_json_reads_and_writes_the_same(topic: str, encode: Any, decode: Any) -> None:
    (example,) = examples(topic)
    assert json.loads(encode(decode(as_bytes(example)))) == example


def test_alerts_hold_their_verdict_and_actions_are_those_of_the_alert() -> None:
    (alert,), (verdict,) = examples("alerts"), examples("verdicts")
    assert decode_verdict(as_bytes(alert), "alerts").verdict_id == verdict["verdict_id"]
    assert set(verdict) - set(alert) == set()
    (alert,), (example,) = examples("alerts"), examples("actions")
    assert json.loads(encode_actions(Notice("opened", alert, alert["severity"]))) == example
    assert [one.action for one in decode_actions(as_bytes(example)).actions] == ["test_device"]


@pytest.mark.parametrize("topic", sorted(BATCH_SCHEMAS))
def test_batches_read_and_write_the_same(topic: str) -> None:
    (example,) = examples(topic)
    header = {name: value for name, value in example["irregulars"].items() if name not in ("schema", "version")}
    rows = pa.RecordBatch.from_pylist(example["rows"], schema=BATCH_SCHEMAS[topic])
    batch = decode_batch(encode_arrow(topic, header, rows), topic)
    assert decode_batch(encode_batch(batch), topic).header == batch.header
    with pa.ipc.open_stream(encode_batch(batch)) as reader:
        assert json.loads(reader.schema.metadata[b"irregulars"]) == example["irregulars"]
        assert reader.read_next_batch().to_pylist() == example["rows"]


def test_the_header_of_a_bundle_is_as_it_is_sent() -> None:
    (example,) = examples("Bundles")
    header = {name: value for name, value in example.items() if name != "version"}
    rows = sum(example["rows"])
    own = {"communicator": np.uint16, "operator": np.uint8, "elapsed_ns": np.float64, "size_bytes": np.float64}
    columns = {field.name: np.zeros(rows, own.get(field.name, np.int64)) for field in COMMOPS}
    value = encode_bundle(Bundle(BundleHeader(**header), columns))
    with pa.ipc.open_stream(value) as reader:
        assert json.loads(reader.schema.metadata[b"irregulars"]) == example
    assert [batch.header.rank for batch in decode_batches(value, "commops")] == example["ranks"]


def test_the_evidence_that_is_shown_is_read_by_the_second_hop() -> None:
    (row,), (members,) = examples("evidence"), examples("membership")
    message = [one.value for one in topics_of_job()["evidence"] if one.value[:1] != b"{"][-1]
    (evidence,) = decode_evidence(message)
    assert isinstance(evidence, Evidence)
    assert list(evidence.names) == row["irregulars"]["names"]
    assert int(evidence.columns["elapsed_ns"][0]) == row["rows"][0]["elapsed_ns"]
    (member,) = decode_evidence(as_bytes(members))
    assert isinstance(member, Membership)
    assert member.announcement is not None


@dataclass
class Unusable:
    """A message that nobody could use, as its topic had it."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    key: bytes | None = b"walk/1"
    value: bytes | None = b"?"


class KeepingOutbox:
    """Keeps what is sent, in place of a broker."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes | None, bytes | None, Sequence[tuple[str, bytes]]]] = []

    async def send(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        self.sent.append((topic, key, value, headers))


def test_the_headers_of_a_dead_letter_are_those_that_are_sent() -> None:
    (example,) = examples("deadletter")
    outbox = KeepingOutbox()
    message = Unusable(example["topic"], int(example["partition"]), int(example["offset"]), 1_800_000_001.0)
    letters = DeadLetters(cast(Outbox, outbox), TopicSettings())
    asyncio.run(letters.bury(message, example["reason"]))
    ((topic, key, value, headers),) = outbox.sent
    assert (topic, key, value) == ("irregulars.deadletter", b"walk/1", b"?")
    assert {name: text.decode() for name, text in headers} == example
