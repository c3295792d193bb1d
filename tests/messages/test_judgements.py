"""Verdicts on the wire."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from irregulars.errors import RecordError
from irregulars.messages.judgements import Suspect, Verdict, decode_verdict, encode_verdict

SUSPECT = Suspect("link", 3, (3, 5), 0.75, peer=5, host="a", nic="mlx5_0")
VERDICT = Verdict("v", 2, "open", "j", "slow_link", (4, 9), 1.25, 3.5, "pp", (SUSPECT,), "why", severity="page")


@pytest.mark.parametrize("name", ["delta", "lost_s"])
def test_a_number_that_is_not_known_is_null_in_json(name: str) -> None:
    message = encode_verdict(replace(VERDICT, **{name: math.nan}))
    assert json.loads(message)[name] is None
    assert math.isnan(getattr(decode_verdict(message), name))


@pytest.mark.parametrize(("name", "value"), [
    ("lost_s", "x"), ("lost_s", math.nan), ("lost_s", -1.0), ("lost_s", 1e308), ("delta", math.inf),
    ("revision", "x"), ("revision", -1), ("severity", 3), ("state", None), ("kind", ""), ("iterations", [1]),
    ("world_size", 1.5), ("time_ns", "now"), ("recovers_ratio", 1.1), ("attempt", True), ("job", "j" * 5000),
    ("verdict_id", "v" * 5000), ("thresholds", {"delta": "x"}), ("lasted_s", -1.0), ("suspects", [{}]),
    ("suspects", [{"device": "gpu", "rank": 0, "ranks": [0], "probability": math.nan}]),
    ("suspects", [{"device": "gpu", "rank": 0, "ranks": [], "probability": 0.5}]),
])  # fmt: skip
def test_what_breaks_the_schema_is_refused_and_named(name: str, value: object) -> None:
    message = json.loads(encode_verdict(VERDICT)) | {name: value}
    with pytest.raises(RecordError, match=rf"{name}\S* must be .*; got "):
        decode_verdict(json.dumps(message).encode())


@pytest.mark.parametrize("word", ["state", "kind", "severity", "event", "close_reason"])
def test_a_word_of_a_newer_worker_is_taken_as_it_is_and_its_keys_passed_over(word: str) -> None:
    message = json.loads(encode_verdict(VERDICT)) | {word: "brand_new", "colour": "red"}
    assert decode_verdict(json.dumps(message).encode()) == replace(VERDICT, **{word: "brand_new"})


@pytest.mark.parametrize("key", ["verdict_id", "suspects", "delta"])
def test_a_verdict_that_lacks_a_key_is_refused(key: str) -> None:
    message = json.loads(encode_verdict(VERDICT))
    del message[key]
    with pytest.raises(RecordError, match=f"{key} must be .*; got none"):
        decode_verdict(json.dumps(message).encode())
