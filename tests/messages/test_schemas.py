"""The published JSON Schemas and the encoders say the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import RecordError
from irregulars.messages.announcements import (
    Announcement,
    Communicator,
    Heartbeat,
    SourceProgress,
    encode_announcement,
    encode_heartbeat,
)
from irregulars.messages.judgements import (
    SEVERITIES,
    Suspect,
    Verdict,
    decode_verdict,
    encode_verdict,
)
from irregulars.messages.reasons import (
    Considered,
    Reasons,
    Reported,
    Step,
    decode_reasons,
    encode_reasons,
)
from irregulars.messages.records import BATCH_SCHEMAS, GROUP_KINDS
from irregulars.messages.threshold_changes import ThresholdChange, encode_change
from irregulars.sinks.alerts import ALERTING_EVENTS, alert_of
from irregulars.sinks.notices.mutes import Mute, decode_mute, encode_mute
from irregulars.sinks.notices.policy import STATES, DeliveryRecord, decode_delivery, encode_delivery
from tests.sinks.verdicts import NAMES, PLACES, RANKS, verdicts

REASONS = Reasons(
    70, 111e6, 16e6, "past", 1.1, (Step("work", 1, "all_reduce", "tp0", 21e6, 7e6, True),),
    (Considered("own_work", True, 1, 3e5),), (Reported(5, 1, "xid", "gpu1", 79, "off"),),
)  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    file.name.removesuffix(".json"): json.loads(file.read_text("utf-8"))
    for file in files("irregulars.messages").joinpath("schemas").iterdir()
}
COUNTS = st.integers(0, 2**62)
TIMES = st.none() | st.integers(-(2**62), 2**62)
SOURCES = st.sampled_from(sorted(BATCH_SCHEMAS))
COMMUNICATORS = st.builds(
    Communicator, NAMES, st.sampled_from(GROUP_KINDS), st.lists(RANKS, unique=True, max_size=6).map(tuple)
)
ANNOUNCEMENTS = st.builds(
    Announcement,
    job=NAMES, attempt=COUNTS, rank=RANKS, world_size=st.integers(1, 10**6), logged_ranks=RANKS,
    communicators=st.lists(COMMUNICATORS, max_size=3).map(tuple),
    sources=st.lists(SOURCES, unique=True).map(tuple), is_logged=st.booleans(),
    clock=st.sampled_from(["shared", "per_host"]), host=PLACES, gpu=st.none() | st.integers(0, 15), nic=PLACES,
    switch=PLACES, lost_rows=st.none() | COUNTS, recorded_until_ns=TIMES, start=PLACES, since_ns=st.none() | COUNTS,
    replicas=st.none() | st.lists(RANKS, unique=True, max_size=6).map(tuple), names_iterations=st.booleans(),
)  # fmt: skip
TOLD = DeliveryRecord(
    "v", "pager", "open", "opened", 1, "ticket", "j", "nic:node-3/mlx5_1", None, 10**18, 0, 7, "storm:p:1"
)
MUTE = Mute("m-1", 10**18, 2 * 10**18, "new firmware", "ann", host="node-3")
CHANGE = ThresholdChange("t-1", {"delta": 1.2}, "ann", "noise", 7)
TOLDS = st.builds(
    DeliveryRecord, NAMES, NAMES, st.sampled_from(STATES), st.sampled_from(["opened", "updated", "resolved"]),
    st.integers(0, 2**62), st.sampled_from(SEVERITIES), NAMES, PLACES, PLACES, st.integers(0, 2**62),
    st.integers(0, 10**6), st.integers(0, 2**62), PLACES,
)  # fmt: skip
MUTES = st.builds(
    Mute, NAMES, st.integers(0, 2**61), st.integers(2**61, 2**62), NAMES, NAMES, host=NAMES, job=PLACES,
    device=PLACES, kind=PLACES,
)  # fmt: skip
HEARTBEATS = st.builds(
    Heartbeat,
    job=NAMES, attempt=COUNTS, rank=RANKS,
    sources=st.dictionaries(SOURCES, st.builds(SourceProgress, COUNTS, TIMES, COUNTS)),
    state=st.sampled_from(["running", "ended"]), reason=PLACES,
)  # fmt: skip


def validate(message: bytes | None, name: str) -> None:
    assert message is not None
    jsonschema.validate(json.loads(message), PUBLISHED[name], jsonschema.Draft202012Validator)


def objects(schema: object) -> list[dict[str, Any]]:
    """Every schema of an object's or array's part, at any depth."""
    if isinstance(schema, list):
        return [found for part in schema for found in objects(part)]
    if not isinstance(schema, dict):
        return []
    return [schema, *(found for part in schema.values() for found in objects(part))]


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_each_is_a_sound_schema_in_which_everything_is_described_and_what_is_required_exists(name: str) -> None:
    schema = PUBLISHED[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    described = [part for found in objects(schema) for part in found.get("properties", {}).values()]
    assert all(part["description"] for part in described)
    for found in objects(schema):
        assert set(found.get("required", ())) <= set(found.get("properties", {}))


WRITTEN: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes | None], Callable[[bytes], Any] | None]] = {
    "jobs": (ANNOUNCEMENTS, encode_announcement, None),
    "heartbeats": (HEARTBEATS, encode_heartbeat, None),
    "verdicts": (verdicts(), encode_verdict, None),
    "alerts": (verdicts(events=ALERTING_EVENTS, severities=(None, "ticket", "page")), alert_of, None),
    "notices": (TOLDS, encode_delivery, decode_delivery),
    "mutes": (MUTES, encode_mute, decode_mute),
}


@pytest.mark.parametrize("name", WRITTEN)
@given(data=st.data())
def test_messages_follow_their_schema_and_are_read_as_they_were(name: str, data: st.DataObject) -> None:
    messages, encode, decode = WRITTEN[name]
    one = data.draw(messages)
    value = encode(one)
    validate(value, name)
    if decode is not None and value is not None:
        assert decode(value) == one


def test_a_mute_of_everything_is_none() -> None:
    values = json.loads(encode_mute(MUTE)) | {"host": None}
    with pytest.raises(jsonschema.ValidationError):
        validate(json.dumps(values).encode(), "mutes")
    with pytest.raises(RecordError, match="must name a host, a job, a device or a kind"):
        decode_mute(json.dumps(values).encode())


def test_no_key_is_missing_from_a_schema_and_none_is_invented() -> None:
    suspect = Suspect("gpu", 0, (0,), 0.5)
    verdict = Verdict("v", 1, "open", "j", "custom", (0, 1), 1.0, 0.0, None, (suspect,), "", detector="d",
                      thresholds={"delta": 1.2}, lasted_s=1.0, explanation=REASONS)  # fmt: skip
    announcement = Announcement("j", 0, 0, 1, 1, (Communicator("c", "dp", (0,)),), start="s", since_ns=5,
                                replicas=(0,), fabric={"leaf": ("spine",)}, names_iterations=True)  # fmt: skip
    messages = {
        "jobs": encode_announcement(announcement),
        "heartbeats": encode_heartbeat(Heartbeat("j", 0, 0, start="s", since_ns=5)),
        "verdicts": encode_verdict(verdict), "alerts": alert_of(verdict),
        "notices": encode_delivery(TOLD), "mutes": encode_mute(MUTE), "thresholds": encode_change(CHANGE),
    }  # fmt: skip
    for name, message in messages.items():
        assert message is not None
        assert list(PUBLISHED[name]["properties"]) == list(json.loads(message))
    assert decode_verdict(encode_verdict(verdict)) == verdict
    assert decode_reasons(encode_reasons(REASONS)) == REASONS


def test_the_words_are_those_of_the_code_and_a_device_that_a_newer_worker_knows_follows_the_schemas() -> None:
    kind = PUBLISHED["jobs"]["properties"]["communicators"]["items"]["properties"]["kind"]
    assert tuple(kind["enum"]) == GROUP_KINDS
    assert tuple(PUBLISHED["alerts"]["properties"]["event"]["enum"]) == ALERTING_EVENTS
    suspect = Suspect("dpu", 0, (0,), 0.5)
    verdict = Verdict("v", 1, "open", "j", "hang", (0, 1), 1.0, 0.0, None, (suspect,), "", severity="page")
    for name, message in (("verdicts", encode_verdict(verdict)), ("alerts", alert_of(verdict))):
        validate(message, name)
        assert decode_verdict(message, name) == verdict


@pytest.mark.parametrize("name", ["verdicts", "alerts"])
def test_a_message_from_before_severity_still_is_one(name: str) -> None:
    verdict = Verdict("v", 1, "open", "j", "hang", (0, 1), 1.0, 0.0, None, (), "")
    message = encode_verdict(verdict) if name == "verdicts" else alert_of(verdict)
    assert message is not None
    values = json.loads(message)
    del values["severity"], values["recovers_ratio"]
    validate(json.dumps(values).encode(), name)
    assert decode_verdict(json.dumps(values).encode(), name) == verdict


@pytest.mark.parametrize("wrong", [
    {"kind": "slow_cat"}, {"state": "ajar"}, {"world_size": -1}, {"iterations": (1,)}, {"lost_s": -1.0},
    {"severity": "panic"}, {"recovers_ratio": 1.1},
])  # fmt: skip
def test_a_wrong_value_does_not_follow_the_schema(wrong: dict[str, Any]) -> None:
    verdict = Verdict("v", 1, "open", "j", "hang", (0, 1), 1.0, 0.0, None, (), "")
    validate(encode_verdict(verdict), "verdicts")
    with pytest.raises(jsonschema.ValidationError):
        validate(encode_verdict(replace(verdict, **wrong)), "verdicts")
