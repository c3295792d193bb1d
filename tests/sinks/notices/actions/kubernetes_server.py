"""A server that answers as the Kubernetes API does for nodes: list by label, get, and the two kinds of patches.

What it keeps to: merge patches by RFC 7386, conditions merged by their type in strategic ones, a status that only
changes under ``/status`` (and nothing else there), versions that change with each write, 409 for an old one, 401
without the token, 404, 415 for another content type.
"""

from __future__ import annotations

import copy
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.sinks.notices.receiver import CLOSING, Receiver, Reply, Request

TOKEN = "a-token"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
Answer = tuple[int, dict[str, Any]]


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merge(found.get(name), value)
    return found


class KubernetesServer(Receiver):
    """Nodes in memory, served over HTTPS on loopback.

    `fail` is the status of all answers where it is set, `fail_patches` that of the answers to writes, of which none
    is done; writes to the nodes `denied` are refused; `before_patch` runs between a client's read and its write.
    """

    def __init__(self, certificate: Path, key: Path, *names: str) -> None:
        self.nodes = {name: new_node(name) for name in names}
        self.fail: int | None = None
        self.fail_patches: int | None = None
        self.denied: set[str] = set()
        self.before_patch: Callable[[], None] = lambda: None
        self.writes: list[tuple[str, dict[str, Any]]] = []
        self._version = len(names)
        self._lock = threading.Lock()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        super().__init__(self._answer, context)

    def _answer(self, request: Request) -> Reply:
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            status, value = 401, {"message": "Unauthorized"}
        elif request.method == "PATCH":
            status, value = self.patch(request.path, request.headers["Content-Type"], request.json())
        else:
            status, value = self.get(request.path)
        headers = (("Content-Type", "application/json"), *CLOSING)
        return Reply(self.fail or status, json.dumps(value).encode(), headers)

    def get(self, path: str) -> Answer:
        parts = urlsplit(path)
        with self._lock:
            if parts.path == "/api/v1/nodes":
                query = parse_qs(parts.query)
                return 200, self._page(query["labelSelector"][0], int(query.get("continue", ["0"])[0]))
            node = self.nodes.get(unquote(parts.path.removeprefix("/api/v1/nodes/")))
            return (200, copy.deepcopy(node)) if node is not None else (404, {"message": "not found"})

    def _page(self, label: str, begin: int) -> dict[str, Any]:
        """One node a page: a reader that stops at the first page misses the others."""
        found = [node for node in self.nodes.values() if label in node["metadata"]["labels"]]
        more = {"continue": str(begin + 1)} if begin + 1 < len(found) else {}
        return {"items": copy.deepcopy(found[begin : begin + 1]), "metadata": more}

    def patch(self, path: str, kind: str, change: dict[str, Any]) -> Answer:
        if self.fail_patches is not None:
            return self.fail_patches, {"message": "not now"}
        name, _, part = unquote(path.removeprefix("/api/v1/nodes/")).partition("/")
        if name in self.denied:
            return 403, {"message": "denied by a policy"}
        if self.fail is None and not part:
            self.before_patch()
        with self._lock:
            node = self.nodes.get(name)
            if node is None:
                return 404, {"message": "not found"}
            if kind != (STRATEGIC if part else MERGE):
                return 415, {"message": f"unsupported: {kind}"}
            version = change.get("metadata", {}).get("resourceVersion")
            if version not in (None, node["metadata"]["resourceVersion"]):
                return 409, {"message": "the object has been modified"}
            self._write(name, node, part, change)
            return 200, copy.deepcopy(self.nodes[name])

    def change(self, name: str, change: dict[str, Any]) -> None:
        """What somebody else does to a node."""
        with self._lock:
            self._write(name, self.nodes[name], "", change)

    def _write(self, name: str, node: dict[str, Any], part: str, change: dict[str, Any]) -> None:
        self._version += 1
        if part == "status":
            by_type = {one["type"]: one for one in node["status"]["conditions"]}
            for one in change["status"]["conditions"]:
                by_type[one["type"]] = {**by_type.get(one["type"], {}), **one}
            found = {**node, "status": {**node["status"], "conditions": list(by_type.values())}}
        else:
            found = {**merge(node, change), "status": node["status"]}
        found["metadata"] = {**found["metadata"], "resourceVersion": str(self._version)}
        self.writes.append((name, change))
        self.nodes[name] = found


def new_node(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": "1", "labels": {"kubernetes.io/hostname": name}},
        "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {"conditions": [dict(READY)], "nodeInfo": {"osImage": "linux"}},
    }
