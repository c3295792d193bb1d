from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from irregulars.errors import RecordError
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.kinds import DEVICE_KINDS, VERDICT_KINDS
from irregulars.sinks.advice import ACTION_NAMES, SURE, advise, plan_of
from irregulars.sinks.notices.actions.actions import (
    TIME_TO_LIVE_NS,
    Action,
    actions_of,
    decode_actions,
    encode_actions,
    newer,
    recall,
    remember,
)
from irregulars.sinks.notices.mutes import TrackRecord
from tests.sinks.notices.made_up_notices import GPU, NOW_NS, VERDICT, notice_of
from tests.sinks.verdicts import verdicts

OUT_OF_SERVICE = ("cordon ", "keep ", "does not run on", "before it takes work again")
IN_SERVICE = ("drain nothing", "nothing yet", "nothing now", "confirm before", "take work again if")
ENDS = ("recovered", "finished", "restarted", "silent", "merged", None)
STATES = [("open", None), *(("closed", reason) for reason in ENDS)]
ALL = ["cordon", "drain", "checkpoint_now"]


def named(actions: tuple[Action, ...], state: str = "proposed") -> list[str]:
    return [one.action for one in actions if one.state == state]


def every(kind: str) -> Iterator[Verdict]:
    """All that a verdict of a kind may say that advice depends on."""
    for device, probability, severity, (state, reason) in itertools.product(
        DEVICE_KINDS, (0.3, SURE, 0.95), ("note", "ticket", "page", None), STATES
    ):
        suspect = replace(GPU, device=device, probability=probability, peer=9)
        yield replace(VERDICT, kind=kind, state=state, close_reason=reason, severity=severity, suspects=(suspect,))


@pytest.mark.parametrize("kind", VERDICT_KINDS)
def test_advice_and_actions_never_contradict_each_other(kind: str) -> None:
    for verdict in every(kind):
        text, actions = advise(verdict), plan_of(verdict).actions
        is_unsure = verdict.suspects[0].probability < SURE
        assert set(actions) <= set(ACTION_NAMES)
        assert ("drain" in actions) == ("drain it at the next checkpoint" in text and not is_unsure)
        assert ("checkpoint_now" in actions) == ("drain" in actions)
        assert ("cordon" in actions) == (any(words in text for words in OUT_OF_SERVICE) and not is_unsure), verdict
        assert ("replan_stages" in actions) == ("fewer layers" in text and not is_unsure)
        if any(words in text for words in IN_SERVICE):
            assert not {"cordon", "drain", "checkpoint_now"} & set(actions)


@pytest.mark.parametrize("kind", ["slow_link", "slow_communicator", "slow_stage", "imbalance"])
@pytest.mark.parametrize("device", DEVICE_KINDS)
def test_no_host_is_taken_out_of_service_where_none_is_at_fault(kind: str, device: str) -> None:
    for state, reason in STATES:
        verdict = replace(
            VERDICT, kind=kind, state=state, close_reason=reason, suspects=(replace(GPU, device=device),)
        )
        assert set(plan_of(verdict).actions) <= {"test_device", "replan_stages"}


@given(verdicts(events=("opened", "changed", "raised", "closed")))
def test_any_notice_has_actions_of_its_first_suspect_alone_and_below_sure_only_its_test(verdict: Verdict) -> None:
    actions = actions_of(notice_of(verdict, "resolved" if verdict.state == "closed" else "updated"))
    assert {one.suspect for one in actions} <= set(verdict.suspects[:1])
    assert len({one.action_id for one in actions}) == len(actions)
    assert all(one.reason.isprintable() for one in actions)
    suspects = tuple(replace(one, probability=0.49) for one in verdict.suspects)
    assert set(plan_of(replace(verdict, suspects=suspects)).actions) <= {"test_device"}


@pytest.mark.parametrize(("kind", "names"), [
    ("slow_rank", ALL), ("slow_nic", ALL), ("slow_link", ["test_device"]), ("slow_communicator", ["test_device"]),
    ("slow_stage", ["replan_stages"]), ("imbalance", []), ("hang", ["cordon"]),
])  # fmt: skip
def test_each_kind_has_its_actions(kind: str, names: list[str]) -> None:
    assert named(actions_of(notice_of(replace(VERDICT, kind=kind)))) == names
    assert actions_of(notice_of(replace(VERDICT, kind=kind, suspects=()))) == ()


def test_an_action_says_what_it_rests_on_costs_and_until_when() -> None:
    cordon, drain, checkpoint = actions_of(notice_of())
    assert cordon.suspect == GPU
    assert cordon.reason == "slow rank in llama: GPU 0 on node-1 (rank 8, NIC mlx5_1), 95% sure"
    assert cordon.gpu_hours_lost == pytest.approx(690 * 64 / 3600, rel=1e-6)
    assert cordon.gpu_hours_lost_per_hour == 32.0  # at twice the usual time, half of the 64 GPUs' time is lost
    assert cordon.expires_at_ns == NOW_NS + TIME_TO_LIVE_NS["cordon"] == drain.expires_at_ns
    assert checkpoint.expires_at_ns == NOW_NS + TIME_TO_LIVE_NS["checkpoint_now"]


def test_in_a_hang_all_gpus_are_lost_and_what_is_not_known_is_none() -> None:
    hang = replace(VERDICT, kind="hang", delta=float("nan"))
    assert [one.gpu_hours_lost_per_hour for one in actions_of(notice_of(hang))] == [64.0]
    unknown = replace(VERDICT, world_size=0, time_ns=None)
    for one in actions_of(notice_of(unknown)):
        assert (one.gpu_hours_lost, one.gpu_hours_lost_per_hour, one.expires_at_ns) == (None, None, None)


def test_ids_stay_while_the_device_does_and_differ_otherwise() -> None:
    ids = [one.action_id for one in actions_of(notice_of())]
    later = replace(VERDICT, revision=2, lost_s=9000.0, suspects=(replace(GPU, probability=0.99, ranks=(8, 9)),))
    assert [one.action_id for one in actions_of(notice_of(later))] == ids
    for other in (replace(VERDICT, verdict_id="x"), replace(VERDICT, suspects=(replace(GPU, host="node-2"),))):
        assert not {one.action_id for one in actions_of(notice_of(other))} & set(ids)
    assert ids[0] == "cordon-8e4b3e985e2f-2c44ba49"  # consumers find what they did by it: it must never change


def test_a_verdict_that_changes_to_another_device_withdraws_what_it_said() -> None:
    first = actions_of(notice_of())
    other = replace(VERDICT, revision=2, event="changed", suspects=(replace(GPU, host="node-2"), GPU))
    second = actions_of(notice_of(other, "updated", remember(first)))
    assert named(second) == ["cordon", "drain", "checkpoint_now"] == named(second, "withdrawn")
    gone = [one for one in second if one.state == "withdrawn"]
    assert [one.action_id for one in gone] == [one.action_id for one in first]
    assert {one.suspect.host for one in gone} == {"node-1"}
    assert gone[0].reason == "the verdict now says GPU 0 on node-2 (rank 8, NIC mlx5_1) (job llama)"
    assert gone[0].expires_at_ns is None


def test_a_muted_notice_takes_back_and_proposes_nothing_new() -> None:
    first = actions_of(notice_of())
    other = replace(VERDICT, revision=2, event="changed", suspects=(replace(GPU, host="node-2"), GPU))
    second = actions_of(replace(notice_of(other, "updated", remember(first)), is_muted=True))
    assert [(one.action_id, one.state) for one in second] == [(one.action_id, "withdrawn") for one in first]
    same = actions_of(replace(notice_of(replace(other, suspects=(GPU,)), "updated", remember(first)), is_muted=True))
    assert [one.action_id for one in same] == [one.action_id for one in first]
    assert {one.expires_at_ns for one in same} == {None}, "what was not begun is not begun under a mute"


@pytest.mark.parametrize("is_remembered", [True, False])
@pytest.mark.parametrize(("reason", "proposed", "withdrawn"), [
    ("recovered", ["test_device"], ALL),
    ("merged", [], ALL),
    *((reason, ["cordon", "test_device"], ALL[1:]) for reason in ("finished", "restarted", "silent")),
])  # fmt: skip
def test_a_host_is_given_back_only_if_it_was_seen_to_be_as_usual_again(
    reason: str, proposed: list[str], withdrawn: list[str], is_remembered: bool
) -> None:
    closed = replace(VERDICT, revision=3, event="closed", state="closed", close_reason=reason)
    reference = remember(actions_of(notice_of())) if is_remembered else None
    found = actions_of(notice_of(closed, "resolved", reference))
    assert (named(found), named(found, "withdrawn")) == (proposed, withdrawn)


def test_a_verdict_that_grows_unsure_is_called_off_or_closes_on_another_device_withdraws_all_of_the_first() -> None:
    reference = remember(actions_of(notice_of()))
    unsure = replace(VERDICT, revision=2, event="changed", suspects=(replace(GPU, probability=0.4),))
    # Told of node-1, then closed with node-2 as the suspect, with nothing in between
    other = replace(VERDICT, state="closed", close_reason="recovered", suspects=(replace(GPU, host="node-2"),))
    for verdict, event, proposed in (
        (unsure, "updated", ["test_device"]), (VERDICT, "resolved", []), (other, "resolved", ["test_device"]),
    ):  # fmt: skip
        found = actions_of(notice_of(verdict, event, reference))
        assert (named(found), named(found, "withdrawn")) == (proposed, ALL)
        assert {one.suspect.host for one in found if one.state == "withdrawn"} == {"node-1"}
        assert event == "updated" or verdict is other or found[0].reason == "the incident was called off (job llama)"


def test_where_people_called_such_verdicts_wrong_a_device_is_only_tested() -> None:
    sure = notice_of(replace(VERDICT, suspects=(replace(GPU, probability=0.9),)))
    assert "drain" in {one.action for one in actions_of(sure)}
    doubted = replace(sure, record=TrackRecord(0, 5, -3.0))
    assert {one.action for one in actions_of(doubted)} == {"test_device"}


def test_what_is_remembered_is_short_however_many_ranks_hang() -> None:
    many = Suspect("gpu", 0, tuple(range(50_000)), 0.9, host="node-0")
    text = remember(actions_of(notice_of(replace(VERDICT, kind="hang", suspects=(many,)))))
    assert len(text) < 1000
    ((name, device),) = recall(text)
    assert (name, device) == ("cordon", replace(many, ranks=tuple(range(64))))


@pytest.mark.parametrize("text", ["", "x", "3", '[["cordon"]]', '[["cordon", {"rank": 1}]]', '[["cordon", 3]]'])
def test_a_reference_that_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="reference of a notice must be what remember made"):
        actions_of(notice_of(VERDICT, "updated", text))


SCHEMA = json.loads((Path(__file__).parents[4] / "irregulars" / "messages" / "schemas" / "actions.json").read_text())


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


@pytest.mark.parametrize(("change", "text"), [
    ({"version": 2}, "version"), ({"schema": "alerts"}, "schema must be 'actions'"),
    ({"verdict_id": None}, "verdict_id must be text that is not empty; got None"),
    ({"actions": [3]}, r"actions\[0\] must be an object"), ({"actions": None}, "actions must be a list"),
])  # fmt: skip
def test_a_message_that_breaks_its_schema_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(RecordError, match=text):
        decode_actions(json.dumps(message() | change).encode())


@pytest.mark.parametrize("field", ["state", "action_id", "probability", "device"])
def test_an_action_that_lacks_a_field_or_has_an_unknown_state_is_refused_by_its_name(field: str) -> None:
    lacking, odd = message(), message()
    lacking["actions"][1].pop(field)
    odd["actions"][1][field] = "perhaps" if field == "state" else 3  # that state is neither done nor undone
    for values in (lacking, odd):
        with pytest.raises(RecordError, match=rf"actions\[1\].{field} must be"):
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
