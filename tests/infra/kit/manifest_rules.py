"""What every manifest must keep, beside what Kubernetes itself asks for: plain functions over its documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Document = dict[str, Any]
Rule = Callable[[Sequence[Document]], Iterator[str]]

AS_ROOT = {"irregulars-agent"}  # pods that may be root: the folders of the host that the agent writes to are root's
WITH_TOKEN = {"irregulars-actor"}  # pods that ask Kubernetes for something

# Pods that serve nothing: whether they live says their exit status
WITHOUT_PAGES = {"irregulars-actor", "irregulars-topics", "irregulars-tables"}

_PINNED = re.compile(r"(?:@sha256:[0-9a-f]{64}|:\d+\.\d+\.\d+)\Z")
_SECRET = re.compile(r"PASSWORD|TOKEN|SECRET|CREDENTIAL|_KEY\Z")


def workloads(documents: Sequence[Document]) -> Iterator[tuple[str, Document, Document]]:
    """Name, document and pod template of everything that makes pods."""
    for one in documents:
        template = one.get("spec", {}).get("template")
        if one["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
            yield one["metadata"]["name"], one, template


def containers(documents: Sequence[Document]) -> Iterator[tuple[str, Document, Document]]:
    """Name of the workload, pod and container."""
    for name, _, template in workloads(documents):
        pod = template["spec"]
        for one in [*pod.get("initContainers", ()), *pod["containers"]]:
            yield name, pod, one


def pinned_images(documents: Sequence[Document]) -> Iterator[str]:
    for name, _, one in containers(documents):
        if not _PINNED.search(one["image"]):
            yield f"{name}: image must be pinned by version or digest; got {one['image']}"


def nobody_is_root(documents: Sequence[Document]) -> Iterator[str]:
    for name, pod, one in containers(documents):
        context = {**pod.get("securityContext", {}), **one.get("securityContext", {})}
        if name not in AS_ROOT and not (context.get("runAsNonRoot") is True and context.get("runAsUser", 0) > 0):
            yield f"{name}: must run as a user with a number above 0"


def restricted(documents: Sequence[Document]) -> Iterator[str]:
    """The rest of Kubernetes' level `restricted`, and a root that can't be written to."""
    for name, pod, one in containers(documents):
        context = {**pod.get("securityContext", {}), **one.get("securityContext", {})}
        wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                  "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
        wrong = [key for key, value in wanted.items() if context.get(key) != value]
        if wrong or any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")) or context.get("privileged"):
            yield f"{name}: must be restricted; {', '.join(wrong) or 'shares something of the host'}"


def host_folders(documents: Sequence[Document]) -> Iterator[str]:
    for name, pod, _ in containers(documents):
        if name not in AS_ROOT and any("hostPath" in one for one in pod.get("volumes", ())):
            yield f"{name}: must not see folders of the host"


def no_token(documents: Sequence[Document]) -> Iterator[str]:
    for name, _, template in workloads(documents):
        if name not in WITH_TOKEN and template["spec"].get("automountServiceAccountToken") is not False:
            yield f"{name}: must get no token of Kubernetes"


def no_service_links(documents: Sequence[Document]) -> Iterator[str]:
    """Variables of Services must not begin as our settings do: an unknown setting ends the program."""
    for name, _, template in workloads(documents):
        if template["spec"].get("enableServiceLinks") is not False:
            yield f"{name}: enableServiceLinks must be false"
    for one in documents:
        if one["kind"] == "Service" and one["metadata"]["name"].startswith("irregulars"):
            yield f"Service {one['metadata']['name']}: name must not begin with irregulars"


def bounded(documents: Sequence[Document]) -> Iterator[str]:
    for name, pod, one in containers(documents):
        resources = one.get("resources", {})
        if not {"cpu", "memory"} <= set(resources.get("requests", ())) or "memory" not in resources.get("limits", ()):
            yield f"{name}: must request cpu and memory, and have a limit of memory"
        if any("emptyDir" in one and "sizeLimit" not in one["emptyDir"] for one in pod.get("volumes", ())):
            yield f"{name}: each emptyDir must have a sizeLimit"


def probed(documents: Sequence[Document]) -> Iterator[str]:
    for name, pod, one in containers(documents):
        ports = {port["name"] for port in one.get("ports", ())}
        probes = [one.get(f"{kind}Probe") for kind in ("liveness", "readiness")]
        if name not in WITHOUT_PAGES and not all(probe and probe["httpGet"]["port"] in ports for probe in probes):
            yield f"{name}: must have a livenessProbe and a readinessProbe on a port of its own"
        if "terminationGracePeriodSeconds" not in pod and name not in WITHOUT_PAGES:
            yield f"{name}: must say how long it may take to stop"


def no_secret_in_text(documents: Sequence[Document]) -> Iterator[str]:
    for one in documents:
        if one["kind"] == "Secret":
            yield f"Secret {one['metadata']['name']}: must not be part of the manifests"
    for name, _, one in containers(documents):
        for variable in one.get("env", ()):
            if _SECRET.search(variable["name"].removesuffix("_FILE")) and not (
                variable["name"].endswith("_FILE") or "secretKeyRef" in variable.get("valueFrom", {})
            ):
                yield f"{name}: {variable['name']} must be a reference"


def selectors_select(documents: Sequence[Document]) -> Iterator[str]:
    labels = [template["metadata"]["labels"] for _, _, template in workloads(documents)]
    for name, one, template in workloads(documents):
        if one["kind"] != "Job" and not matches(one["spec"]["selector"], template["metadata"]["labels"]):
            yield f"{name}: selector must match the labels of its own pods"
    for one in documents:
        for key in ("selector", "podSelector"):
            selector = one.get("spec", {}).get(key)
            if one["kind"] == "Service":
                selector = {"matchLabels": selector}
            if selector is not None and not any(matches(selector, pod) for pod in labels):
                yield f"{one['kind']} {one['metadata']['name']}: {key} must match some pod"


def matches(selector: Document | None, labels: dict[str, str]) -> bool:
    wanted = (selector or {}).get("matchLabels") or {}
    expressions = (selector or {}).get("matchExpressions") or ()
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )


def maps_exist(documents: Sequence[Document]) -> Iterator[str]:
    """ConfigMaps that pods name are made here; else pods wait for them for ever."""
    made = {one["metadata"]["name"] for one in documents if one["kind"] == "ConfigMap"}
    for name, pod, one in containers(documents):
        named = {source["configMapRef"]["name"] for source in one.get("envFrom", ())}
        named |= {volume["configMap"]["name"] for volume in pod.get("volumes", ()) if "configMap" in volume}
        if not named <= made:
            yield f"{name}: ConfigMaps must be made here; got {', '.join(sorted(named - made))}"
        missing = {mount["name"] for mount in one.get("volumeMounts", ())} - {v["name"] for v in pod["volumes"]}
        if missing:
            yield f"{name}: volumes must be declared; got {', '.join(sorted(missing))}"


def behind_the_wall(documents: Sequence[Document]) -> Iterator[str]:
    """Each pod is of some NetworkPolicy for both directions: Kubernetes lets everything through where none is."""
    policies = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]
    for name, _, template in workloads(documents):
        labels = template["metadata"]["labels"]
        kinds = {kind for one in policies if matches(one["podSelector"], labels) for kind in one["policyTypes"]}
        if kinds != {"Ingress", "Egress"}:
            yield f"{name}: must be behind a NetworkPolicy in both directions"


RULES: tuple[Rule, ...] = (
    pinned_images, nobody_is_root, restricted, host_folders, no_token, no_service_links, bounded, probed,
    no_secret_in_text, selectors_select, maps_exist, behind_the_wall,
)  # fmt: skip


def problems(documents: Sequence[Document]) -> list[str]:
    """All that is wrong with the documents of one overlay."""
    return [text for rule in RULES for text in rule(documents)]
