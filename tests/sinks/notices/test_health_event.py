from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from irregulars.messages.judgements import Verdict
from irregulars.sinks.notices.action_messages import decode_actions, encode_actions
from irregulars.sinks.notices.actions import HOUR_NS, remember
from irregulars.sinks.notices.health_event import health_events
from irregulars.sinks.notices.notice import Notice
from tests.sinks.notices.made_up_notices import GPU, NOW_NS, VERDICT, notice_of

FIELDS = {
    "version", "agent", "componentClass", "checkName", "isFatal", "isHealthy", "message", "recommendedAction",
    "errorCode", "entitiesImpacted", "metadata", "generatedTimestamp", "nodeName", "quarantineOverrides",
    "drainOverrides", "processingStrategy",
}  # fmt: skip
"""Those of ``HealthEvent`` in NVSentinel's health_event.proto, as protobuf writes them in JSON."""


def events_of(notice: Notice, now_ns: int = NOW_NS, **options: Any) -> list[dict[str, Any]]:
    return list(health_events(decode_actions(encode_actions(notice)), "west", 0.9, now_ns, **options))


def of(verdict: Verdict) -> list[dict[str, Any]]:
    return [one["data"]["healthEvent"] for one in events_of(notice_of(verdict))]


def test_an_accused_gpu_is_unhealthy_and_only_stored() -> None:
    (event,) = events_of(notice_of())
    assert (event["specversion"], event["type"]) == ("1.0", "com.nvidia.nvsentinel.health.v1")
    assert (event["source"], event["data"]["metadata"]) == ("nvsentinel://west/healthevents", {"cluster": "west"})
    health = event["data"]["healthEvent"]
    assert set(health) == FIELDS
    assert (health["nodeName"], health["componentClass"], health["isHealthy"]) == ("node-1", "GPU", False)
    assert (health["processingStrategy"], health["isFatal"]) == ("STORE_ONLY", False)
    assert health["entitiesImpacted"] == [{"entityType": "GPU", "entityValue": "0"}]
    assert health["message"].startswith("[IRREGULARS_SLOW_RANK] slow rank in llama: GPU 0 on node-1")
    assert health["message"].endswith(" - RecommendedAction: RUN_DCGMEUD")
    assert event["time"] == health["generatedTimestamp"] == "2026-11-18T11:06:40.000000000Z"
    assert all(isinstance(value, str) for value in health["metadata"].values())
    json.dumps(event, allow_nan=False)


def test_only_who_is_asked_to_lets_nvsentinel_act() -> None:
    (event,) = events_of(notice_of(), is_executed=True)
    assert event["data"]["healthEvent"]["processingStrategy"] == "EXECUTE_REMEDIATION"


def test_a_nic_is_named_as_one() -> None:
    (health,) = of(replace(VERDICT, kind="slow_nic", suspects=(replace(GPU, device="nic"),)))
    assert (health["componentClass"], health["recommendedAction"]) == ("NIC", "CONTACT_SUPPORT")
    assert health["entitiesImpacted"] == [{"entityType": "NIC", "entityValue": "mlx5_1"}]


def test_a_withdrawn_accusation_makes_the_device_healthy_again() -> None:
    actions = decode_actions(encode_actions(notice_of())).actions
    closed = replace(VERDICT, revision=2, state="closed", close_reason="recovered", event="closed")
    (event,) = events_of(notice_of(closed, "resolved", remember(actions)), now_ns=NOW_NS + 99 * HOUR_NS)
    health = event["data"]["healthEvent"]
    assert (health["isHealthy"], health["recommendedAction"], health["errorCode"]) == (True, "NONE", [])
    assert (health["nodeName"], health["checkName"]) == ("node-1", "IrregularsStraggler")


@pytest.mark.parametrize("kind", ["slow_link", "slow_communicator", "slow_stage", "imbalance"])
def test_kinds_that_accuse_no_host_give_no_event(kind: str) -> None:
    assert of(replace(VERDICT, kind=kind)) == []


def test_what_is_improbable_or_over_or_has_no_host_gives_no_event() -> None:
    assert of(replace(VERDICT, suspects=(replace(GPU, probability=0.8),))) == []
    assert of(replace(VERDICT, suspects=(replace(GPU, host=None),))) == []
    assert events_of(notice_of(), now_ns=NOW_NS + 2 * HOUR_NS) == []


def test_the_same_message_gives_the_same_event_under_the_same_id() -> None:
    assert events_of(notice_of()) == events_of(notice_of())
    later = events_of(notice_of(replace(VERDICT, revision=2)))
    assert later[0]["id"] != events_of(notice_of())[0]["id"]
