"""Kubernetes' nodes: cordoned with a mark that says that it was us, shown as a condition, and given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from irregulars.errors import ServiceUnavailable
from irregulars.infra.acting.kubernetes_api import Conflict, KubernetesApi
from irregulars.infra.acting.nodes import Marked
from irregulars.sinks.notices.node_plan import Proposal

LABEL: Final = "irregulars/straggler"
"""Label of each node that carries anything of ours, by which they are found again."""

CORDONED: Final = "irregulars/cordoned"
"""Annotation of a node that we cordoned: the action's id. Who takes it off takes the node over."""

VERDICT: Final = "irregulars/verdict"
"""Annotation that names the verdict, for people."""

CONDITION: Final = "IrregularsStraggler"
_TRIES: Final = 5
_NO_NODE: Final = "Kubernetes knows no node {}"


class KubernetesNodes:
    """The nodes of the cluster that the API server has.

    A node is cordoned: pods on it go on, and no new one is put there. None is ever evicted.
    """

    def __init__(self, api: KubernetesApi, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._api: Final = api
        self._now: Final = now

    def marked(self) -> Marked:
        """Return the nodes that we cordoned, and what somebody has uncordoned since."""
        found = {_name(node): (_annotations(node).get(CORDONED), _is_cordoned(node)) for node in self._ours()}
        cordoned = {name: mark for name, (mark, is_cordoned) in found.items() if mark is not None and is_cordoned}
        return Marked(cordoned, frozenset(mark for mark, is_on in found.values() if mark is not None and not is_on))

    def obstacle(self, host: str) -> str | None:
        """Return why a node can't be cordoned by us."""
        node = self._api.node(host)
        return _NO_NODE.format(host) if node is None else _obstacle(node)

    def cordon(self, one: Proposal) -> str | None:
        """Cordon a node and mark it, in one step, unless somebody else has cordoned it."""

        def change(node: Mapping[str, Any]) -> dict[str, Any] | str:
            obstacle = _obstacle(node)
            if obstacle is not None:
                return obstacle
            marks = {CORDONED: one.action.action_id, VERDICT: one.message.verdict_id}
            return {"metadata": {"labels": {LABEL: "true"}, "annotations": marks}, "spec": {"unschedulable": True}}

        return self._change(one.host, change)

    def release(self, host: str, why: str) -> str | None:
        """Uncordon a node and take the mark off, in one step, if the mark is still there."""

        def change(node: Mapping[str, Any]) -> dict[str, Any] | str:
            if CORDONED not in _annotations(node):
                return "the mark was taken off: it is somebody else's now"
            return {"metadata": {"annotations": _NO_MARKS}, "spec": {"unschedulable": None}}

        return self._change(host, change)

    def accuse(self, accused: Mapping[str, Proposal]) -> None:
        """Set the condition of these nodes; clear it, and all marks, on others that are not cordoned by us."""
        for host, one in accused.items():
            node = self._api.node(host)
            if node is not None:
                self._show(
                    node,
                    "True",
                    "".join(part.capitalize() for part in one.message.kind.split("_")),
                    one.action.reason,
                )
        for node in self._ours():
            is_held = _is_cordoned(node) and CORDONED in _annotations(node)
            if _name(node) not in accused and not is_held:
                self._show(node, "False", "NoStraggler", "no open verdict accuses this node")
                self._change(
                    _name(node), lambda _node: {"metadata": {"labels": {LABEL: None}, "annotations": _NO_MARKS}}
                )

    def _ours(self) -> list[dict[str, Any]]:
        return self._api.labelled_nodes(LABEL)

    def _show(self, node: Mapping[str, Any], status: str, reason: str, message: str) -> None:
        """Write the condition where it is another one; the label comes first, so that it is found again."""
        before = next((one for one in _conditions(node) if one.get("type") == CONDITION), {})
        if (before.get("status"), before.get("message")) == (status, message):
            return
        if LABEL not in (node["metadata"].get("labels") or {}):
            self._api.patch_node(_name(node), {"metadata": {"labels": {LABEL: "true"}}})
        now = f"{self._now():%Y-%m-%dT%H:%M:%SZ}"
        condition = {
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
        }
        if before.get("status") != status:
            condition["lastTransitionTime"] = now
        self._api.patch_status(_name(node), {"status": {"conditions": [condition]}})

    def _change(self, host: str, change: Callable[[Mapping[str, Any]], dict[str, Any] | str]) -> str | None:
        """Read a node, work out its change, and write it if nobody changed the node in between; else do it again."""
        for _ in range(_TRIES):
            node = self._api.node(host)
            if node is None:
                return _NO_NODE.format(host)
            wanted = change(node)
            if isinstance(wanted, str):
                return wanted
            wanted["metadata"]["resourceVersion"] = node["metadata"]["resourceVersion"]
            try:
                self._api.patch_node(host, wanted)
            except Conflict:
                continue
            return None
        raise ServiceUnavailable(f"node {host} must stay as it is for a moment; got {_TRIES} changes by others")


_NO_MARKS: Final[dict[str, None]] = {CORDONED: None, VERDICT: None}


def _obstacle(node: Mapping[str, Any]) -> str | None:
    is_ours = CORDONED in _annotations(node)
    return "it is cordoned already, and not by us" if _is_cordoned(node) and not is_ours else None


def _name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])


def _annotations(node: Mapping[str, Any]) -> Mapping[str, str]:
    return node["metadata"].get("annotations") or {}


def _is_cordoned(node: Mapping[str, Any]) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))


def _conditions(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    return (node.get("status") or {}).get("conditions") or []
