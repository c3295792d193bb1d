"""Changes of thresholds: what may change, by which rules, and what counts where several were said."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import InputError, RecordError
from irregulars.infra.settings import FIELDS, Settings
from irregulars.messages.threshold_changes import (
    FIXED,
    LEAD_NS,
    LIVE,
    ThresholdChange,
    decode_change,
    encode_change,
    values_in_force,
)
from tests.messages.test_schemas import PUBLISHED

VALUES = {
    "delta": st.floats(1.01, 1e6), "silence_s": st.floats(1e-3, 1e9), "alert_least_seen": st.integers(1, 10**6),
    "alert_least_lost_s": st.floats(0, 1e6), "alert_ticket_gpu_hours": st.floats(1e-6, 1e6),
    "alert_ticket_job_s": st.floats(1e-6, 1e6), "alert_page_gpu_hours": st.floats(1e-6, 1e6),
    "alert_page_share": st.floats(0, 1), "alert_page_after_s": st.floats(0, 1e6),
}  # fmt: skip
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@st.composite
def changes(draw: st.DrawFn) -> ThresholdChange:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, unique=True))
    values = {name: draw(st.none() | VALUES[name]) for name in names}
    from_ns = None if "silence_s" in values else draw(st.none() | st.integers(0, 100))
    job = draw(st.none() | st.sampled_from(["j", "other"]))
    return ThresholdChange(draw(NAMES), values, draw(NAMES), draw(NAMES), draw(st.integers(0, 2**62)), job, from_ns)


def change(values: dict[str, Any], **others: Any) -> ThresholdChange:
    return ThresholdChange("t-1", values, "ann", "noise", 0, **others)


def test_the_rules_are_those_of_the_settings() -> None:
    kinds = get_type_hints(Settings, include_extras=True)
    assert {name: kinds[name] for name in LIVE} == LIVE
    assert set(FIXED) <= set(FIELDS) - set(LIVE)


@given(changes())
def test_a_change_follows_its_schema_and_is_read_as_it_was(one: ThresholdChange) -> None:
    jsonschema.validate(json.loads(encode_change(one)), PUBLISHED["thresholds"], jsonschema.Draft202012Validator)
    assert decode_change(encode_change(one)) == one


@pytest.mark.parametrize("name", sorted(FIXED))
def test_what_must_not_change_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must not change while workers run, since .*restart them"):
        change({name: 1})


def test_one_wrong_value_refuses_all_and_a_silence_can_t_be_planned() -> None:
    with pytest.raises(InputError, match=r"delta must be a number above 1; got 0\.9"):
        change({"alert_least_seen": 4, "delta": 0.9})
    with pytest.raises(InputError, match="did you mean delta"):
        change({"alert_least_seen": 4, "dleta": 1.2})
    with pytest.raises(InputError, match="must name one at least"):
        change({})
    with pytest.raises(InputError, match="silence_s must change at once"):
        change({"silence_s": 60.0}, from_ns=5)


@pytest.mark.parametrize("wrong", [
    {"values": {"delta": 0.5}}, {"values": {"window": 20}}, {"values": {}}, {"values": {"delta": "high"}},
    {"version": 2}, {"schema": "mutes"}, {"who": ""}, {"from_ns": "now"},
    None, b"", b"{", b"[]", b"null", b"\xff",
])  # fmt: skip
def test_a_message_that_can_t_be_used_is_refused_whole(wrong: dict[str, Any] | bytes | None) -> None:
    if isinstance(wrong, dict):
        sound = json.loads(encode_change(change({"delta": 1.2, "alert_least_seen": 4})))
        wrong = json.dumps(sound | wrong).encode()
    with pytest.raises(RecordError):
        decode_change(wrong)


def test_one_job_beats_all_and_unset_lets_the_next_weaker_one_count() -> None:
    everywhere, here = change({"delta": 1.2, "alert_least_seen": 9}), change({"delta": 1.5}, job="j")
    assert values_in_force([here, everywhere], LEAD_NS - 1) == {}
    assert values_in_force([here, everywhere], LEAD_NS) == {"alert_least_seen": 9, "delta": 1.5}
    unset = change({"delta": None}, job="j")
    assert values_in_force([here, everywhere, unset], LEAD_NS)["delta"] == 1.2
    assert "delta" not in values_in_force([here, everywhere, unset, change({"delta": None})], LEAD_NS)


@given(st.lists(changes(), max_size=6), st.none() | st.integers(0, 100))
def test_each_value_is_the_last_that_was_said_of_the_job_or_else_of_all(
    said: list[ThresholdChange], start_ns: int | None
) -> None:
    said = [one for one in said if one.job in (None, "j")]
    found = values_in_force(said, start_ns)
    for name in LIVE:
        wanted = None
        for job in (None, "j"):
            own = [
                one.values[name]
                for one in said
                if one.job == job
                and name in one.values
                and (name == "silence_s" or (start_ns is not None and start_ns >= one.begin_ns))
            ]
            wanted = own[-1] if own and own[-1] is not None else wanted
        assert found.get(name) == wanted
