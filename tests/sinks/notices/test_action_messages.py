from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from irregulars.errors import RecordError
from irregulars.messages.judgements import Verdict
from irregulars.sinks.notices.action_messages import decode_actions, encode_actions, newer
from irregulars.sinks.notices.actions import actions_of
from tests.sinks.notices.made_up_notices import VERDICT, notice_of
from tests.sinks.verdicts import verdicts

SCHEMA = json.loads((Path(__file__).parents[3] / "irregulars" / "messages" / "schemas" / "actions.json").read_text())


@given(verdicts(events=("opened", "changed", "raised", "closed")))
def test_every_message_follows_its_schema_and_reads_as_it_was_written(verdict: Verdict) -> None:
    notice = notice_of(verdict, "resolved" if verdict.state == "closed" else "opened")
    value = encode_actions(notice)
    jsonschema.validate(json.loads(value), SCHEMA)
    found = decode_actions(value)
    assert found.actions == actions_of(notice)
    assert (found.verdict_id, found.revision, found.job) == (verdict.verdict_id, verdict.revision, verdict.job)
    assert (found.kind, found.severity, found.time_ns) == (verdict.kind, verdict.severity, verdict.time_ns)
    assert encode_actions(notice) == value


def test_names_that_are_not_known_yet_are_let_pass() -> None:
    values = message()
    values |= {"kind": "custom", "more": 1}
    values["actions"][0] |= {"action": "reboot", "cost": 3}
    found = decode_actions(json.dumps(values).encode())
    assert (found.kind, found.actions[0].action) == ("custom", "reboot")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "version"),
        ({"schema": "alerts"}, "schema must be 'actions'"),
        ({"verdict_id": None}, "verdict_id must be text that is not empty; got None"),
        ({"actions": [3]}, r"actions\[0\] must be an object"),
        ({"actions": None}, "actions must be a list"),
    ],
)
def test_a_message_that_breaks_its_schema_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(RecordError, match=text):
        decode_actions(json.dumps(message() | change).encode())


@pytest.mark.parametrize("field", ["state", "action_id", "probability", "device"])
def test_an_action_that_lacks_a_field_is_refused_by_its_name(field: str) -> None:
    values = message()
    values["actions"][1].pop(field)
    with pytest.raises(RecordError, match=rf"actions\[1\].{field} must be"):
        decode_actions(json.dumps(values).encode())


def test_a_state_that_nobody_knows_is_neither_done_nor_undone() -> None:
    values = message()
    values["actions"][0]["state"] = "perhaps"
    with pytest.raises(RecordError, match="state must be one of proposed, withdrawn"):
        decode_actions(json.dumps(values).encode())


def test_the_same_again_and_later_ones_count_and_older_ones_do_not() -> None:
    first, second = (decode_actions(encode_actions(notice_of(replace(VERDICT, revision=n)))) for n in (1, 2))
    assert newer({}, first)
    assert newer({first.verdict_id: second}, second)
    assert newer({first.verdict_id: first}, second)
    assert not newer({first.verdict_id: second}, first)


def message() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode_actions(notice_of()))
    return found
