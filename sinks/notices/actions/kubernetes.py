"""Kubernetes' nodes: cordoned with a mark that says that it was us, shown as a condition, and given back."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from irregulars.errors import InputError, ServiceRefused, ServiceUnavailable
from irregulars.private_files import read_secret
from irregulars.sinks.notices.actions.actor import Marked, NodeErrors, Proposal

# A value replaces what is there, an object is merged into it, null deletes (RFC 7386)
MERGE: Final = "application/merge-patch+json"

# The same, but lists of Kubernetes' own types are merged by a key: conditions by ``type``. With `MERGE` ours would
# replace those of the kubelet.
STRATEGIC: Final = "application/strategic-merge-patch+json"

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT: Final = urllib3.Timeout(connect=5.0, read=20.0)
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
# Nodes of one page of a list: as many as kubectl asks for.
_LISTED: Final = 500


class Conflict(ServiceUnavailable):
    """The object has changed since we read it: read it again, at once or later."""


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where the API server is, and who we are there."""

    server: str
    # It is read anew for each call: Kubernetes renews tokens every hour. None: no token is sent.
    token_file: Path | None
    ca_file: Path | None  # its certificate authority (PEM). None: the system's.


def api_access(
    environment: Mapping[str, str], server: str | None, token_file: Path | None, ca_file: Path | None
) -> ApiAccess:
    """Return the given access, completed by the pod's service account.

    Raises `InputError` if neither says where the server is, or a token would go over an open connection.
    """
    if server is None:
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise InputError("--server must be given outside of a pod; got none. Inside, Kubernetes sets "
                             "KUBERNETES_SERVICE_HOST")  # fmt: skip
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        token_file, ca_file = token_file or ACCOUNT / "token", ca_file or ACCOUNT / "ca.crt"
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise InputError(f"--server must be https://host:port, without credentials; got {parts.scheme}://…")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise InputError(f"--server must be https://…, as the token goes there; got {server!r}")
    return ApiAccess(server.rstrip("/"), token_file, ca_file)


class KubernetesApi:
    """Reads and patches nodes.

    All methods raise `ServiceUnavailable` where the server does not answer, or not now, and `ServiceRefused` where it
    refuses us or our request. Raises `InputError` if a file of the access can't be read.
    """

    def __init__(self, access: ApiAccess) -> None:
        self._access: Final = access
        try:
            context = ssl.create_default_context(cafile=access.ca_file)
        except OSError as error:
            raise InputError(f"--ca-file must be a readable PEM file; got {error} ({access.ca_file})") from error
        self._pool: Final = urllib3.PoolManager(ssl_context=context, timeout=_TIMEOUT, retries=False)
        self._authorization()  # a file that was never there is a wrong setting

    def node(self, name: str) -> dict[str, Any] | None:
        """Return a node, or None where there is none of that name."""
        return self._call("GET", _path(name))

    def labelled_nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that have our label, whatever its value."""
        found: list[dict[str, Any]] = []
        query = f"?labelSelector={quote(LABEL, safe='')}&limit={_LISTED}"
        more = ""
        while True:
            page = self._call("GET", f"/api/v1/nodes{query}{more}") or {}
            found += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return found
            more = f"&continue={quote(token, safe='')}"

    def patch_node(self, name: str, change: Mapping[str, Any]) -> dict[str, Any] | None:
        """Merge a change into a node; with a ``resourceVersion`` in it, only if the node is still of that version.

        Raises `Conflict` if it is not.
        """
        return self._call("PATCH", _path(name), change, MERGE)

    def patch_status(self, name: str, change: Mapping[str, Any]) -> dict[str, Any] | None:
        """Merge a change into a node's status."""
        return self._call("PATCH", f"{_path(name)}/status", change, STRATEGIC)

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, kind: str | None = None
    ) -> dict[str, Any] | None:
        headers = {"Accept": "application/json"} | ({"Content-Type": kind} if kind else {})
        try:
            headers |= self._authorization()
        except InputError as error:  # it was there at the start, and may be being exchanged
            raise ServiceUnavailable(str(error)) from error
        data = None if body is None else json.dumps(body).encode()
        try:
            # No redirect: the token would go along to its target.
            answer = self._pool.request(
                method, self._access.server + path, body=data, headers=headers, redirect=False
            )
        except HTTPError as error:
            raise ServiceUnavailable(f"Kubernetes at {self._access.server} must answer; got {error}") from error
        return self._answer(answer.status, answer.data, f"{method} {path.partition('?')[0]}")

    def _authorization(self) -> dict[str, str]:
        if self._access.token_file is None:
            return {}
        return {"Authorization": f"Bearer {read_secret(self._access.token_file, '--token-file')}"}

    def _answer(self, status: int, data: bytes, asked: str) -> dict[str, Any] | None:
        if status == 404:
            return None
        if status == 409:
            raise Conflict(f"Kubernetes at {self._access.server} must answer now; got {_said(status, data)}")
        if status == 429 or status >= 500:
            raise ServiceUnavailable(
                f"Kubernetes at {self._access.server} must answer now; got {_said(status, data)}"
            )
        if status != 200:
            hint = ". Check the token and infra/kit/kubernetes/components/actor" if status in (401, 403) else ""
            raise ServiceRefused(f"Kubernetes must allow {asked}; got {_said(status, data)}{hint}")
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ServiceRefused(f"Kubernetes must answer with JSON; got {data[:40]!r} ({asked})")
        return found


def _path(name: str) -> str:
    return f"/api/v1/nodes/{quote(name, safe='')}"


def _said(status: int, data: bytes) -> str:
    try:
        told = json.loads(data)
    except ValueError:
        told = None
    message = str(told.get("message", "")) if isinstance(told, dict) else ""
    return f"status {status}{': ' if message else ''}{message[:200]}"


# Label of each node that carries anything of ours, by which they are found again
LABEL: Final = "irregulars/straggler"

# Annotation of a node that we cordoned: the action's id. Who takes it off takes the node over.
CORDONED: Final = "irregulars/cordoned"

# Annotation of a node whose cordon a person took off: the action's id. The next cordon that they put there is theirs.
UNDONE: Final = "irregulars/undone"

VERDICT: Final = "irregulars/verdict"  # annotation that names the verdict, for people
CONDITION: Final = "IrregularsStraggler"
_TRIES: Final = 5
_NO_NODE: Final = "Kubernetes knows no node {}"


class KubernetesNodes:
    """The nodes of the cluster that the API server has.

    A node is cordoned: pods on it go on, and no new one is put there. None is ever evicted.
    """

    def __init__(self, api: KubernetesApi) -> None:
        self._api: Final = api

    def marked(self) -> Marked:
        """Return the nodes that we cordoned, and the actions undone by others since."""
        cordoned: dict[str, str] = {}
        undone: dict[str, str] = {}
        for node in self._api.labelled_nodes():
            mark = _annotations(node).get(CORDONED)
            if mark is not None and _is_cordoned(node):
                cordoned[_name(node)] = mark
            # Our mark without the cordon: somebody uncordoned it by hand, so the action is not begun again.
            elif (by_hand := mark or _annotations(node).get(UNDONE)) is not None:
                undone[_name(node)] = by_hand
        return Marked(cordoned, undone)

    def obstacle(self, host: str) -> str | None:
        """Return why a node can't be cordoned by us."""
        node = self._api.node(host)
        return _NO_NODE.format(host) if node is None else _obstacle(node)

    def cordon(self, one: Proposal) -> str | None:
        """Cordon a node and mark it, in one step, unless it was cordoned by others."""

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
        errors = NodeErrors()
        for host, one in accused.items():
            with errors.of(host):
                node = self._api.node(host)
                if node is not None:
                    reason = "".join(part.capitalize() for part in one.message.kind.split("_"))
                    self._show(node, "True", reason, one.action.reason)
        for node in self._api.labelled_nodes():
            is_marked = CORDONED in _annotations(node)
            is_held = _is_cordoned(node) and is_marked
            if _name(node) not in accused and not is_held:
                with errors.of(_name(node)):
                    # The condition before the label: without that nobody would find the node again to clear it.
                    self._show(node, "False", "NoStraggler", "no open verdict accuses this node")
                    self._change(
                        _name(node), lambda _node: {"metadata": {"labels": {LABEL: None}, "annotations": _NO_MARKS}}
                    )
            elif is_marked and not is_held:
                with errors.of(_name(node)):
                    self._change(_name(node), _hand_over)
        if errors:
            raise ServiceUnavailable("; ".join(map(str, errors.values())))

    def _show(self, node: Mapping[str, Any], status: str, reason: str, message: str) -> None:
        """Write the condition where it is another one; the label comes first, so that it is found again."""
        conditions = (node.get("status") or {}).get("conditions") or []
        before: dict[str, Any] = next((one for one in conditions if one.get("type") == CONDITION), {})
        if (before.get("status"), before.get("message")) == (status, message):
            return
        if LABEL not in (node["metadata"].get("labels") or {}):
            self._api.patch_node(_name(node), {"metadata": {"labels": {LABEL: "true"}}})
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        condition = {
            "type": CONDITION, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": now,
        }  # fmt: skip
        if before.get("status") != status:
            condition["lastTransitionTime"] = now
        self._api.patch_status(_name(node), {"status": {"conditions": [condition]}})

    def _change(self, host: str, change: Callable[[Mapping[str, Any]], dict[str, Any] | str]) -> str | None:
        """Read a node, work out its change, and write it if the node has not changed in between; else do it again."""
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


_NO_MARKS: Final[dict[str, None]] = {CORDONED: None, UNDONE: None, VERDICT: None}


def _hand_over(node: Mapping[str, Any]) -> dict[str, Any] | str:
    """Change the mark of a node that a person uncordoned: else their own next cordon would be undone as ours."""
    mark = _annotations(node).get(CORDONED)
    if mark is None or _is_cordoned(node):
        return "it has changed meanwhile"
    return {"metadata": {"annotations": {CORDONED: None, UNDONE: mark}}}


def _obstacle(node: Mapping[str, Any]) -> str | None:
    is_ours = CORDONED in _annotations(node)
    return "it is cordoned already, and not by us" if _is_cordoned(node) and not is_ours else None


def _name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])


def _annotations(node: Mapping[str, Any]) -> Mapping[str, str]:
    return node["metadata"].get("annotations") or {}


def _is_cordoned(node: Mapping[str, Any]) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))
