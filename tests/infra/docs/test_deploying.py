"""The commands of infra/docs/install.md: each is parsed, rendered or looked up by what will read it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from irregulars.infra import locked_install
from irregulars.infra.settings import load_settings
from irregulars.kafka.topics import TOPICS
from irregulars.streams.snapshots.records import STATE_VERSION
from tests.infra.kit.command_lines import parse
from tests.infra.kit.manifests import named, rendered
from tests.infra.kit.test_dockerfile import stage
from tests.infra.kit.units import FOLDER, UNITS

ROOT = Path(__file__).resolve().parents[3]
GUIDE = re.compile(
    r"^## On your own Kafka and ClickHouse\n.*?(?=^## )", re.MULTILINE | re.DOTALL
)  # test_guides.py types it
PAGE = GUIDE.sub("", (ROOT / "infra" / "docs" / "install.md").read_text())
UPGRADE = (ROOT / "infra" / "docs" / "install.md").read_text().split("\n## Upgrade\n")[1]
SYSTEM = Path("/etc/systemd/system")

NOT_HERE = {
    "until": "needs what answers", "docker compose": "test_compose.py reads it", "docker buildx": "needs a registry",
    "kubectl create": "needs a cluster", "kubectl scale": "needs a cluster", "useradd": "would change this machine",
    "usermod": "would change this machine", "ln": "would change this machine", "export": "is the shell's own",
    "cd": "is the shell's own", "cp": "test_kubernetes.py renders a copy", "openssl": "test_kit_units.py types it",
    "systemctl daemon-reload": "needs systemd",
}  # fmt: skip
"""Commands of which nothing here can be checked, and why."""


def commands() -> list[str]:
    """Every line of the page that people are to type."""
    typed = re.findall(r"^(?: {4}| {6})(\w.*)$", PAGE, re.MULTILINE)
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [*typed, *(line for block in blocks for line in block.splitlines())]
    return [line for line in lines if not line.startswith(("- {", "kubernetes_sd", "relabel"))]


COMMANDS = commands()


def those(beginning: str) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in COMMANDS if line.startswith(beginning + " ")]


def test_every_command_is_checked_below_or_has_its_reason() -> None:
    checked = ("irregulars", "kubectl", "docker build", "python3", "install", "systemctl", "srun")
    assert not [line for line in COMMANDS if line.startswith("kustomize")], "kubectl alone must be enough"
    unknown = [line for line in COMMANDS if not line.startswith((*checked, *NOT_HERE))]
    assert (len(COMMANDS) > 40, unknown) == (True, [])
    for page in ("agent", "actions"):
        assert "(install.md)" in (ROOT / "infra" / "docs" / f"{page}.md").read_text()


def test_calls_of_irregulars_are_its_own() -> None:
    lines = those("irregulars")
    assert len(lines) >= 3
    for line in [*lines, ["irregulars", "agent", "agent.toml"]]:
        parse(line)
    assert "--overlap irregulars agent agent.toml" in PAGE


@pytest.mark.parametrize("folder", sorted({line[-1] for line in those("kubectl apply") + those("kubectl delete")}))
def test_folders_that_are_applied_can_be_rendered(folder: str) -> None:
    assert len(rendered(str(Path(folder).relative_to("infra/kit/kubernetes/overlays")))) > 3


def test_objects_that_are_waited_for_are_there() -> None:
    kinds = {"deploy": ("Deployment", "small"), "job": ("Job", "small/setup")}
    found = re.findall(r"\b(deploy|job)/([\w-]+)", "\n".join(COMMANDS))
    assert len(found) >= 6
    for kind, name in found:
        named(rendered(kinds[kind][1]), kinds[kind][0], name)


def test_secrets_that_pods_wait_for_are_made_before() -> None:
    made = {line[line.index("generic") + 1] for line in those("kubectl") if "generic" in line}
    needed = set()
    for overlay in ("small", "small/setup"):
        templates = [one["spec"]["template"] for one in rendered(overlay) if "template" in one.get("spec", {})]
        volumes = [volume["secret"] for one in templates for volume in one["spec"]["volumes"] if "secret" in volume]
        needed |= {one["secretName"] for one in volumes if not one.get("optional")}
    assert made == needed


def test_images_that_are_built_are_stages_and_take_the_argument() -> None:
    builds = those("docker build")
    assert len(builds) == 3
    for words in builds:
        assert stage(words[words.index("--target") + 1])
        assert (ROOT / words[words.index("-f") + 1]).exists()
    names = {words[words.index("-t") + 1] for words in builds}
    used = {one["spec"]["template"]["spec"]["containers"][0]["image"] for one in rendered("small")
            if one["kind"] in ("Deployment", "DaemonSet")}  # fmt: skip
    assert names == used


def test_the_installer_takes_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(locked_install, "install", lambda into, extras: calls.append((into, extras)))
    for words in those("python3 infra/locked_install.py"):
        locked_install.main(words[2:])
    assert {(str(into), *extras) for into, extras in calls} == {
        ("/opt/irregulars/0.1.0", "worker", "console"), ("/opt/irregulars/0.1.0",),
        ("/opt/irregulars/0.2.0", "worker", "console"), ("/opt/irregulars/0.2.0",),
    }  # fmt: skip


def test_files_that_are_installed_are_of_the_kit_and_go_where_units_look() -> None:
    for words in those("install"):
        source = words[-2]
        if source not in ("FILE", "700", "/dev/null", "/dev/stdin"):
            assert (ROOT / source).exists(), words
        assert words[-1].startswith(("/etc/irregulars", str(SYSTEM)))


def test_the_settings_that_are_installed_say_how_topics_are_made() -> None:
    """Else a topic that a later release brings would be made with another number of partitions."""
    settings = load_settings(environment={}, config=FOLDER / "irregulars.toml")
    assert (settings.partitions, settings.replicas) == (32, 3)
    assert all("--partitions" not in line for line in those("irregulars"))


def test_units_that_are_started_are_installed_before() -> None:
    installed = {Path(words[-2]).name for words in those("install") if words[-2].endswith(".service")}
    started = {word for words in those("systemctl enable") + those("systemctl restart") for word in words[2:]
               if not word.startswith("-")}  # fmt: skip
    units = {re.sub(r"@.*", "@", unit) + ".service" for unit in started}
    assert units == installed == {unit.name for unit in UNITS} | {"irregulars-agent.service"}


def test_commands_of_an_upgrade_are_ours_and_versions_of_states_those_of_the_code() -> None:
    calls = re.findall(r"^ {4,8}(irregulars .+)$|`(irregulars [a-z][^`]+)`", UPGRADE, re.MULTILINE)
    for indented, quoted in calls:
        parse(shlex.split((indented or quoted).replace("ROLE", "worker").replace("NAME", "ada")))
    assert len(calls) >= 6
    assert f"(now {STATE_VERSION})" in UPGRADE
    assert {"rank_snapshots", "job_snapshots"} <= TOPICS.keys()
