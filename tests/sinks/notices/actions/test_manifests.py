"""The files that ship for Kubernetes and node-problem-detector say what the commands take, and ask for no more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from irregulars.infra.cli import app
from irregulars.sinks.notices.actions.feed import MOST_CHARACTERS

INFRA = Path(__file__).resolve().parents[4] / "infra"
NODE = INFRA / "node"
ACTOR = (INFRA / "kit" / "kubernetes" / "components" / "actor" / "actor.yaml").read_text()
MONITOR = json.loads((NODE / "irregulars-plugin-monitor.json").read_text())


def rules() -> dict[str, set[str]]:
    """What the role allows: resources and verbs."""
    (role,) = re.findall(r"kind: ClusterRole\n.*?\nrules:\n(.*?)\n---", ACTOR, re.DOTALL)
    found = re.findall(r"resources: \[(.*?)\]\n\s+verbs: \[(.*?)\]", role)
    return {resource: set(verbs.split(", ")) for resource, verbs in found}


def test_the_role_allows_nodes_to_be_seen_and_patched_and_nothing_else() -> None:
    assert rules() == {"nodes": {"get", "list", "patch"}, "nodes/status": {"patch"}}
    assert re.findall(r"apiGroups: (.*)", ACTOR) == ['[""]', '[""]']


def test_the_parts_of_the_manifest_name_one_another() -> None:
    documents = ACTOR.split("\n---\n")
    assert [re.search(r"^kind: (\w+)", one, re.M)[1] for one in documents] == [  # type: ignore[index]
        "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Deployment", "NetworkPolicy",
    ]  # fmt: skip
    assert all("name: irregulars-actor" in one and re.search("^apiVersion: ", one, re.M) for one in documents)
    assert "serviceAccountName: irregulars-actor" in documents[3]
    assert "\t" not in ACTOR


def test_the_manifest_s_command_is_one_and_does_not_act() -> None:
    arguments = json.loads(re.search(r"args: (\[.*\])", ACTOR)[1])  # type: ignore[index]
    assert arguments[:3] == ["irregulars", "act", "kubernetes"]
    assert "--do-it" not in arguments
    names = {one for one in arguments if one.startswith("--")}
    assert names <= options("act", "kubernetes")


def test_the_monitor_s_command_is_one_and_ends_in_time() -> None:
    (rule,) = MONITOR["rules"]
    assert rule["args"][0] == "node-check"
    assert {one for one in rule["args"] if one.startswith("--")} <= options("node-check")
    within_s = float(rule["args"][rule["args"].index("--within-s") + 1])
    assert within_s < float(rule["timeout"].rstrip("s")) <= float(MONITOR["pluginConfig"]["timeout"].rstrip("s"))
    assert rule["condition"] == MONITOR["conditions"][0]["type"]
    assert MONITOR["pluginConfig"]["max_output_length"] == MOST_CHARACTERS


@pytest.mark.parametrize("command", ["kubernetes", "slurm", "nvsentinel"])
def test_nothing_acts_by_default(command: str) -> None:
    (flag,) = (one for one in params("act", command) if "--do-it" in one.opts)
    assert flag.default is False


def options(*path: str) -> set[str]:
    """The options of a command of the command line."""
    return {option for one in params(*path) for option in one.opts}


def params(*path: str) -> list[Any]:
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    return list(command.params)
