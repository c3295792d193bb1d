"""The manifests, rendered: Kubernetes' own schema accepts them, our rules too, and their commands are real ones."""

from __future__ import annotations

import copy
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from irregulars.infra.agent_settings import read_agent_file
from irregulars.infra.settings import Settings, load_settings
from irregulars.sinks.notices.settings import read_notify_file
from tests.infra.kit.command_lines import parse
from tests.infra.kit.manifest_rules import RULES, Document, containers, matches, problems, workloads
from tests.infra.kit.manifests import KUBERNETES, OVERLAYS, named, rendered

VERSIONS = ("1.28", "1.37")  # the oldest and the newest Kubernetes whose schema is asked
OTHERS = {"PodMonitor"}  # kinds of an operator: Kubernetes' schema does not have them


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_accepts_every_document(overlay: str, version: str) -> None:
    documents = [one for one in rendered(overlay) if one["kind"] not in OTHERS]
    assert len(documents) >= 4
    for one in documents:
        kubernetes_validate.validate(one, version, strict=True)


def test_the_schema_refuses_a_field_that_kubernetes_does_not_know() -> None:
    worker = copy.deepcopy(named(rendered("small"), "Deployment", "irregulars-worker"))
    worker["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(kubernetes_validate.ValidationError, match="enableServiceLink"):
        kubernetes_validate.validate(worker, VERSIONS[-1], strict=True)


def _pod(documents: list[Document]) -> Any:
    return named(tuple(documents), "Deployment", "irregulars-worker")["spec"]["template"]["spec"]


def _container(documents: list[Document]) -> Any:
    return _pod(documents)["containers"][0]


BROKEN: dict[str, Any] = {
    "pinned_images": lambda all_: _container(all_).update(image="registry.example/irregulars:latest"),
    "nobody_is_root": lambda all_: _pod(all_)["securityContext"].update(runAsUser=0),
    "restricted": lambda all_: _container(all_)["securityContext"].update(readOnlyRootFilesystem=False),
    "host_folders": lambda all_: _pod(all_)["volumes"].append({"name": "etc", "hostPath": {"path": "/etc"}}),
    "no_token": lambda all_: _pod(all_).pop("automountServiceAccountToken"),
    "no_service_links": lambda all_: _pod(all_).pop("enableServiceLinks"),
    "bounded": lambda all_: _container(all_)["resources"].pop("limits"),
    "probed": lambda all_: _container(all_).pop("livenessProbe"),
    "no_secret_in_text": lambda all_: _container(all_)["env"].append(
        {"name": "IRREGULARS_KAFKA_PASSWORD", "value": "swordfish"}
    ),
    "selectors_select": lambda all_: named(tuple(all_), "PodDisruptionBudget", "irregulars-worker")["spec"].update(
        selector={"matchLabels": {"app.kubernetes.io/name": "another"}}
    ),
    "maps_exist": lambda all_: all_.remove(named(tuple(all_), "ConfigMap", "irregulars-site")),
    "behind_the_wall": lambda all_: all_.__setitem__(
        slice(None),
        [one for one in all_ if one["metadata"]["name"] not in ("irregulars-nothing-else", "irregulars-metrics")],
    ),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_rule_refuses_a_manifest_that_breaks_it(rule: Any) -> None:
    documents = copy.deepcopy(list(rendered("small")))
    BROKEN[rule.__name__](documents)
    assert list(rule(documents))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_document_keeps_our_rules_and_every_command_line_is_one(overlay: str) -> None:
    assert problems(rendered(overlay)) == []
    for _, _, container in containers(rendered(overlay)):
        parse(container["args"])
        assert "--do-it" not in container["args"]


def settings_of(container: Document, documents: tuple[Document, ...], labels: dict[str, str]) -> Settings:
    """Read a container's variables as the program does."""
    environment: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        environment |= named(documents, "ConfigMap", source["configMapRef"]["name"])["data"]
    for one in container.get("env", ()):
        field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        environment[one["name"]] = labels[field.split("'")[1]] if field else one["value"]
    return load_settings(environment=environment, config=Path("/dev/null"))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_variable_is_a_setting_and_they_fit_together(overlay: str) -> None:
    documents = rendered(overlay)
    found = {
        name: settings_of(template["spec"]["containers"][0], documents, template["metadata"]["labels"])
        for name, _, template in workloads(documents)
    }
    assert len({(one.kafka_bootstrap, one.clickhouse_url) for one in found.values()}) == 1
    users = {one.kafka_user for one in found.values()}
    roles = {f"irregulars-{role}" for role in ("worker", "notify", "agent", "actor", "console", "admin")}
    assert users <= roles if overlay.startswith("production") else users == {None}
    grace_s = [template["spec"].get("terminationGracePeriodSeconds", 99) for _, _, template in workloads(documents)]
    assert all(one.stop_s < min(grace_s) for one in found.values())


def test_an_authority_of_the_site_s_own_is_told_to_each_who_talks_to_clickhouse() -> None:
    for overlay in ("production", "production/setup"):
        documents = rendered(overlay)
        for name, pod, one in containers(documents):
            names = {variable["name"]: variable.get("value", "") for variable in one["env"]}
            talks = any(name.startswith("IRREGULARS_CLICKHOUSE_") for name in names)
            assert ("IRREGULARS_CLICKHOUSE_CA_FILE" in names) == talks, name
            if talks:
                folder = Path(names["IRREGULARS_CLICKHOUSE_CA_FILE"]).parent
                (mount,) = (mount for mount in one["volumeMounts"] if mount["mountPath"] == str(folder))
                (volume,) = (volume for volume in pod["volumes"] if volume["name"] == mount["name"])
                assert "items" not in volume["secret"]
    site = named(rendered("production"), "ConfigMap", "irregulars-site")["data"]
    assert site["IRREGULARS_CLICKHOUSE_URL"].startswith("https://")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_copy_beside_the_overlays_is_rendered_as_the_original(overlay: str, tmp_path: Path) -> None:
    first, *rest = Path(overlay).parts
    for name in ("kit/kubernetes", "node"):
        shutil.copytree(KUBERNETES.parents[1] / name, tmp_path / name)
    overlays = tmp_path / "kit" / "kubernetes" / "overlays"
    shutil.copytree(overlays / first, overlays / "ours")
    assert rendered(str(overlays.joinpath("ours", *rest))) == rendered(overlay)


def test_the_worker_s_pages_are_where_kubelet_and_prometheus_look() -> None:
    for name, setting in (("worker", "metrics_listen"), ("notify", "notify_listen")):
        deployment = named(rendered("small"), "Deployment", f"irregulars-{name}")
        template = deployment["spec"]["template"]
        container = template["spec"]["containers"][0]
        port = container["ports"][0]["containerPort"]
        settings = settings_of(container, rendered("small"), template["metadata"]["labels"])
        assert getattr(settings, setting) == f"0.0.0.0:{port}"
        assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port)


def test_starts_wait_as_long_as_kafka_may_be_away_and_production_for_its_digests() -> None:
    probe = _container(list(rendered("small")))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > Settings().broker_away_s
    images = {one["image"] for _, _, one in containers(rendered("production"))}
    assert images
    assert all(image.endswith("@sha256:" + 64 * "0") for image in images)


def test_notify_s_and_the_agent_s_files_are_read_as_theirs(tmp_path: Path) -> None:
    for overlay in ("small", "production"):
        text = named(rendered(overlay), "ConfigMap", "irregulars-notify")["data"]["notify.toml"]
        (tmp_path / "notify.toml").write_text(text)
        assert [one.table.name for one in read_notify_file(tmp_path / "notify.toml")] == ["actions"]
    text = named(rendered("small"), "ConfigMap", "irregulars-agent")["data"]["agent.toml"]
    (tmp_path / "agent.toml").write_text(text)
    agent = read_agent_file(tmp_path / "agent.toml")
    template = named(rendered("small"), "DaemonSet", "irregulars-agent")["spec"]["template"]
    assert agent.metrics.port == template["spec"]["containers"][0]["ports"][0]["containerPort"]
    assert str(tomllib.loads(text)["sources"][0]["path"]).startswith("/run/irregulars/")


def test_the_site_of_production_is_that_of_sizing_and_survives_a_broker() -> None:
    sizing = (KUBERNETES.parents[1] / "docs" / "operating.md").read_text()
    documents = rendered("production")
    workers = named(documents, "Deployment", "irregulars-worker")["spec"]["replicas"]
    site = named(documents, "ConfigMap", "irregulars-site")["data"]
    found = re.findall(r"^\| 8,192 \| [\d.]+ \| (\d+) \| (\d+) \|", sizing, re.MULTILINE)
    wanted, partitions = found[0]  # with agents as shipped; the next table is of thinned samples
    assert int(wanted) <= workers <= 1.5 * int(wanted)  # the figure moves a little with each measurement
    assert site["IRREGULARS_PARTITIONS"] == partitions
    assert site["IRREGULARS_REPLICAS"] == "3"
    assert len(site["IRREGULARS_KAFKA_BOOTSTRAP"].split(",")) == 3


PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


def scraped(overlay: str) -> dict[str, tuple[str, Document]]:
    """Name and template of all pods that say that they have metrics, with the name of the port where they are."""
    found = {}
    for name, _, template in workloads(rendered(overlay)):
        annotations = template["metadata"].get("annotations", {})
        if annotations.get("prometheus.io/scrape") == "true":
            (port,) = (
                one["name"] for container in template["spec"]["containers"] for one in container["ports"]
                if str(one["containerPort"]) == annotations["prometheus.io/port"]
            )  # fmt: skip
            found[name] = (port, template)
    return found


def admits(policy: Document, labels: dict[str, str], port: str) -> bool:
    """Whether a NetworkPolicy lets Prometheus reach a port of pods with these labels."""
    return (
        bool(policy["spec"]["podSelector"])
        and matches(policy["spec"]["podSelector"], labels)
        and any(
            PROMETHEUS in rule["from"] and port in {one["port"] for one in rule["ports"]}
            for rule in policy["spec"].get("ingress", ())
        )
    )


@pytest.mark.parametrize("overlay", ["small", "production"])
def test_prometheus_is_let_to_every_page_of_metrics(overlay: str) -> None:
    policies = [one for one in rendered(overlay) if one["kind"] == "NetworkPolicy"]
    pods = scraped(overlay)
    assert {"irregulars-worker", "irregulars-notify", "irregulars-console"} <= set(pods)
    for name, (port, template) in pods.items():
        assert any(admits(one, template["metadata"]["labels"], port) for one in policies), (name, port)


def test_prometheus_looks_for_the_metrics_of_every_pod_by_the_names_that_the_alerts_ask_for() -> None:
    (monitor,) = (one for one in rendered("production") if one["kind"] == "PodMonitor")
    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    assert {"irregulars-worker", "irregulars-agent"} <= set(expression["values"])
    ports = {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]}
    page = (KUBERNETES.parents[1] / "docs" / "install.md").read_text()
    (regex,) = re.findall(r"container_port_name\], regex: ([^,]+),", page)
    for name, (port, template) in scraped("production").items():
        assert template["metadata"]["labels"][expression["key"]] in expression["values"], name
        assert port in ports, name
        assert re.fullmatch(regex, port), name


def test_the_files_as_they_stand_are_kubernetes_documents_without_kustomize() -> None:
    """Where nothing can render, the files themselves are still held against the schema and most rules."""
    files = [*KUBERNETES.rglob("*.yaml"), KUBERNETES.parents[1] / "node" / "daemonset.yaml"]
    documents = [
        one for file in files if file.name != "kustomization.yaml" for one in yaml.safe_load_all(file.read_text())
    ]
    assert len(documents) > 15
    for one in documents:
        if one["kind"] not in OTHERS:
            kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
    needs_an_overlay = {"selectors_select", "maps_exist", "behind_the_wall"}
    assert [text for rule in RULES if rule.__name__ not in needs_an_overlay for text in rule(documents)] == []
