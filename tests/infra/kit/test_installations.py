"""What is installed is enough for each program that is started from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.infra.kit.installations import documented_extras, image_extras, install_extras
from tests.infra.kit.test_dockerfile import stage
from tests.infra.kit.units import ROOT, Unit, instances

PAGE = (ROOT / "infra" / "docs" / "install.md").read_text()
MACHINES, AGENTS = "Machines with systemd", "Agents"
AGENT = ROOT / "infra" / "node" / "irregulars-agent.service"


NOBODY = {
    "IRREGULARS_KAFKA_BOOTSTRAP": "127.0.0.1:1", "IRREGULARS_CLICKHOUSE_URL": "http://127.0.0.1:1",
    "IRREGULARS_BROKER_AWAY_S": "1", "IRREGULARS_METRICS_LISTEN": "off",
}  # fmt: skip
"""No service is there: all that a program needs of its own it has imported before it says so."""

# How each program ends in such a place
SAYS = {
    "worker": "A start waits 1 s for it",
    "console": "console_token_file must be a readable file",
    "act": "--server must be given",
    "agent": "agent's socket must be a path",
}


def started(program: Path, *arguments: str) -> tuple[int, str]:
    environment = NOBODY | {"IRREGULARS_DATA_DIR": str(program.parents[1] / "data")}
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False,
                          cwd=program.parent, env=environment)  # fmt: skip
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return ``irregulars`` of an installation for each heading of the page below which one is made."""
    folder = tmp_path_factory.mktemp("installed")
    return {
        name: install_extras(folder / name.split()[0], documented_extras(PAGE, name)) for name in (MACHINES, AGENTS)
    }


@pytest.mark.parametrize("name", SAYS)
def test_what_the_page_installs_starts_each_unit(name: str, programs: dict[str, Path], tmp_path: Path) -> None:
    """As far as it comes without a service; notify, and each to its end: tests/integration/test_kit_units.py."""
    units = [Unit(AGENT), *instances()]
    unit = next(one for one in reversed(units) if one.command[1] == name)
    agent_file = tmp_path / "agent.toml"
    agent_file.write_text((AGENT.parent / agent_file.name).read_text().replace("/run/", "/nowhere/"))
    arguments = [str(agent_file) if word == "/etc/irregulars/agent.toml" else word for word in unit.command[1:]]
    status, said = started(programs[AGENTS if name == "agent" else MACHINES], *arguments)
    assert (status, SAYS[name] in said.splitlines()[-1]) == (2, True), said


def test_images_and_machines_get_the_same() -> None:
    extras = documented_extras(PAGE, MACHINES)
    assert set(extras) == {"worker", "console"}
    for image in ("worker", "console"):
        assert image_extras(stage(image)) == extras
    assert image_extras(stage("agent")) == documented_extras(PAGE, AGENTS) == ()


def test_the_console_does_not_start_from_what_a_worker_needs(tmp_path: Path) -> None:
    status, said = started(install_extras(tmp_path / "new", ["worker"]), "console", "--token-file", "/nowhere")
    assert (status, said.split(";")[0]) == (2, "irregulars: package uvicorn must be installed")
