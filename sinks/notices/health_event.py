"""NVSentinel's health events of the actions of an incident, each as a CloudEvent in JSON.

The fields are those of NVSentinel's ``health_event.proto`` as JSON, in the envelope that its event exporter uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from irregulars.messages.judgements import Suspect
from irregulars.sinks.notices.action_messages import ActionsMessage
from irregulars.sinks.notices.actions import Action

EVENT_TYPE: Final = "com.nvidia.nvsentinel.health.v1"
CHECK: Final = "IrregularsStraggler"
AGENT: Final = "irregulars"

_COMPONENTS: Final = {"gpu": "GPU", "nic": "NIC", "host": "Node"}
_TESTS: Final = {"gpu": "RUN_DCGMEUD", "nic": "CONTACT_SUPPORT", "host": "CONTACT_SUPPORT"}
"""What NVSentinel calls the next step: DCGM's diagnostics for a GPU; a NIC or a host is for people."""


def health_events(
    message: ActionsMessage, cluster: str, least_probability: float, now_ns: int, *, is_executed: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield an event for each host that is to be cordoned, or no more.

    Parameters
    ----------
    least_probability
        Below this nobody is told that a device is unhealthy, 0 to 1. That it is healthy again is always told.
    now_ns
        The time now, ns since the epoch: what may not be begun any more is not told.
    is_executed
        Whether NVSentinel may cordon, drain or repair by these events; else it only stores them.
    """
    for one in message.actions:
        if one.action == "cordon" and one.suspect.host is not None and _counts(one, least_probability, now_ns):
            yield _event(message, one, one.suspect.host, cluster, now_ns, is_executed)


def _counts(one: Action, least_probability: float, now_ns: int) -> bool:
    if one.state == "withdrawn":
        return True
    return one.suspect.probability >= least_probability and (one.expires_at_ns or 0) >= now_ns


def _event(
    message: ActionsMessage, one: Action, host: str, cluster: str, now_ns: int, is_executed: bool
) -> dict[str, Any]:
    is_healthy = one.state == "withdrawn"
    at = _timestamp(now_ns if message.time_ns is None else message.time_ns)
    code = f"IRREGULARS_{message.kind.upper()}"
    action = "NONE" if is_healthy else _TESTS.get(one.suspect.device, "CONTACT_SUPPORT")
    event = {
        "version": 1, "agent": AGENT, "componentClass": _COMPONENTS.get(one.suspect.device, "Node"),
        "checkName": CHECK, "isFatal": False, "isHealthy": is_healthy,
        "message": f"[{code}] {one.reason} - RecommendedAction: {action}", "recommendedAction": action,
        "errorCode": [] if is_healthy else [code], "entitiesImpacted": _entities(one.suspect),
        "metadata": _metadata(message, one), "generatedTimestamp": at, "nodeName": host,
        "quarantineOverrides": None, "drainOverrides": None,
        "processingStrategy": "EXECUTE_REMEDIATION" if is_executed else "STORE_ONLY",
    }  # fmt: skip
    return {
        "specversion": "1.0", "id": f"{one.action_id}/{message.revision}/{one.state}", "type": EVENT_TYPE,
        "source": f"nvsentinel://{cluster}/healthevents", "time": at, "datacontenttype": "application/json",
        "data": {"metadata": {"cluster": cluster}, "healthEvent": event},
    }  # fmt: skip


def _entities(suspect: Suspect) -> list[dict[str, str]]:
    found = []
    if suspect.device == "gpu" and suspect.gpu is not None:
        found.append({"entityType": "GPU", "entityValue": str(suspect.gpu)})
    if suspect.device == "nic" and suspect.nic is not None:
        found.append({"entityType": "NIC", "entityValue": suspect.nic})
    return found


def _metadata(message: ActionsMessage, one: Action) -> dict[str, str]:
    """Return what else is known, as texts: its type is a map of them."""
    found = {
        "verdict_id": message.verdict_id, "revision": str(message.revision), "job": message.job,
        "action_id": one.action_id, "probability": f"{one.suspect.probability:.4f}",
    }  # fmt: skip
    if one.gpu_hours_lost is not None:
        found["gpu_hours_lost"] = f"{one.gpu_hours_lost:.6g}"
    return found


def _timestamp(time_ns: int) -> str:
    whole_s, rest_ns = divmod(time_ns, 10**9)
    return f"{datetime.fromtimestamp(whole_s, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"
