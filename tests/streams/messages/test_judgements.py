"""Verdicts on the wire."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from irregulars.errors import RecordError
from irregulars.streams.messages.judgements import Suspect, Verdict, decode_verdict, encode_verdict

SUSPECT = Suspect("link", 3, (3, 5), 0.75, peer=5, host="a", nic="mlx5_0")
VERDICT = Verdict("v", 2, "open", "j", "slow_link", (4, 9), 1.25, 3.5, "pp", (SUSPECT,), "why", severity="page")


@pytest.mark.parametrize(
    "verdict", [VERDICT, replace(VERDICT, suspects=(), communicator=None, close_reason="silent")]
)
def test_a_verdict_comes_back_as_it_went(verdict: Verdict) -> None:
    assert decode_verdict(encode_verdict(verdict)) == verdict


def test_a_hang_without_an_end_has_no_delta_in_json() -> None:
    message = encode_verdict(replace(VERDICT, kind="hang", delta=math.nan))
    assert json.loads(message)["delta"] is None
    assert math.isnan(decode_verdict(message).delta)


def test_keys_of_a_later_minor_release_are_passed_over() -> None:
    message = json.loads(encode_verdict(VERDICT)) | {"colour": "red"}
    assert decode_verdict(json.dumps(message).encode()) == VERDICT


@pytest.mark.parametrize("key", ["verdict_id", "suspects", "delta"])
def test_a_verdict_that_lacks_a_key_is_refused(key: str) -> None:
    message = json.loads(encode_verdict(VERDICT))
    del message[key]
    with pytest.raises(RecordError, match="verdicts message must follow its schema"):
        decode_verdict(json.dumps(message).encode())
