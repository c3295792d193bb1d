from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from irregulars.infra.settings import load_settings
from tests.apache_kafka.jars import kafka_version
from tests.infra.kit.command_lines import parse

COMPOSE = Path(__file__).resolve().parents[2] / "infra" / "compose.yaml"
TEXT = COMPOSE.read_text()
PASSWORD = "IRREGULARS_CLICKHOUSE_PASSWORD"


def test_ports_are_on_loopback_and_no_password_is_written_or_taken_for_granted() -> None:
    published = re.findall(r'^ +- "([\d.:]+)"$', TEXT, re.MULTILINE)
    services = ["127.0.0.1:9092:9092", "127.0.0.1:8123:8123", "127.0.0.1:9000:9000"]
    assert published == [*services, "127.0.0.1:8321:8321"]
    found = re.findall(r"PASSWORD: (.*)", TEXT)
    assert set(found) == {f"${{{PASSWORD}:?set {PASSWORD} to a password of your choice}}"}


def test_the_images_are_of_the_versions_that_the_tests_run_on() -> None:
    assert re.findall(r"image: apache/kafka:(\S+)", TEXT) == [kafka_version()]
    pinned = re.findall(r'"chdb-core==([\d.]+)\.\*"', (COMPOSE.parents[1] / "pyproject.toml").read_text())
    assert re.findall(r"image: clickhouse/clickhouse-server:(\S+)", TEXT) == pinned


def compose(*options: str, password: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != PASSWORD}
    environment |= {PASSWORD: password} if password else {}
    command = ["docker", "compose", "-f", str(COMPOSE), *options, "config", "--format", "json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.fixture
def needs_compose() -> None:
    asked = ["docker", "compose", "version"]
    if (
        shutil.which("docker") is None
        or subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode
    ):
        pytest.skip("docker compose must be installed to read compose.yaml as Docker does; it is not")


@pytest.mark.usefixtures("needs_compose")
def test_docker_accepts_the_file_with_a_password_alone() -> None:
    services: dict[str, Any] = json.loads(compose(password="swordfish").stdout)["services"]
    assert set(services) == {"kafka", "clickhouse"}
    assert all("healthcheck" in service for service in services.values())
    services = json.loads(compose("--profile", "all", password="swordfish").stdout)["services"]
    assert set(services) == {"kafka", "clickhouse", "topics", "worker", "notify", "console"}
    refused = compose(password=None)
    assert refused.returncode != 0
    assert PASSWORD in refused.stderr


def test_the_profile_all_runs_our_images_harmlessly_with_real_commands() -> None:
    services = {one: it for one, it in yaml.safe_load(TEXT)["services"].items() if it.get("profiles") == ["all"]}
    assert set(services) == {"topics", "worker", "notify", "console"}
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["build"]["dockerfile"] == "infra/kit/Dockerfile"
        if "command" in service:
            parse(service["command"])
        own = {name: text for name, text in service["environment"].items() if name.startswith("IRREGULARS_")}
        assert load_settings(environment=own, config=Path("/dev/null")).kafka_bootstrap == "kafka:29092"
