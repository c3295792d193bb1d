"""The units: systemd accepts them and finds them tight, commands and settings are real, no secret is in them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from irregulars.infra.settings import Settings, load_settings
from irregulars.sinks.notices.settings import OWN, read_notify_file
from tests.infra.kit.command_lines import parse
from tests.infra.kit.units import FOLDER, PROGRAM, ROOT, UNITS, Unit, instances

# Tenths of what ``systemd-analyze security`` calls exposure: 0 is a locked box, 96 a service without any line
MOST_EXPOSED = 20

WORKER = Unit(FOLDER / "irregulars-worker@.service", "9465")
IDS = [unit.name for unit in instances()]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze must be on the PATH to check units (Debian: apt-get install systemd); it is not")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_accepts_the_units_and_sees_a_misspelt_line(tmp_path: Path) -> None:
    agent = ROOT / "infra" / "node" / "irregulars-agent.service"
    for path in [*UNITS, agent]:  # a program that is there: verify looks for it
        (tmp_path / path.name).write_text(path.read_text().replace(PROGRAM, "/bin/true"))
    done = analyze("verify", "--man=no", *(str(path) for path in sorted(tmp_path.iterdir())))
    assert (done.returncode, done.stderr) == (0, "")
    unit = tmp_path / "irregulars-notify.service"
    text = (FOLDER / unit.name).read_text().replace(PROGRAM, "/bin/true")
    unit.write_text(text.replace("ProtectSystem=", "ProtectedSystem="))
    assert "ProtectedSystem" in analyze("verify", "--man=no", str(unit)).stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_the_units_tight(path: Path) -> None:
    done = analyze("security", "--offline=yes", "--no-pager", f"--threshold={MOST_EXPOSED}", str(path))
    assert done.returncode == 0, done.stdout.splitlines()[-1]


@pytest.mark.parametrize("unit", instances(), ids=IDS)
def test_the_command_is_one_and_the_files_that_it_names_are_those_of_the_kit(unit: Unit) -> None:
    assert unit.command[0] == PROGRAM
    values = parse(["irregulars", *unit.command[1:]])
    assert values.get("is_acting", False) is False
    named = [*unit.command, *unit.environment.values()]
    files = {Path(one).name for one in named if one.startswith("/etc/irregulars/")}
    assert files
    assert files <= {"irregulars.toml", "notify.toml"}


@pytest.mark.parametrize("unit", instances(), ids=IDS)
def test_the_variables_are_settings_and_secrets_are_credentials(unit: Unit) -> None:
    settings = load_settings(environment=unit.environment, config=Path("/dev/null"))
    files = [value for name, value in unit.environment.items() if name.endswith("_FILE")]
    files += [word for word in unit.command if word.startswith("/run/credentials")]
    assert {Path(file).name for file in files} == set(unit.loaded)
    assert all(file.startswith(unit.credentials) for file in files)
    assert not any(
        re.search("PASSWORD|TOKEN|SECRET", name) for name in unit.environment if not name.endswith("_FILE")
    )
    assert settings.stop_s < float(unit.one("TimeoutStopSec"))


def test_the_login_at_the_broker_fits_every_unit_that_talks_to_it() -> None:
    for unit in instances():
        whole = Unit(unit.path, unit.instance, FOLDER / "kafka-login.conf")
        settings = load_settings(environment=whole.environment, config=Path("/dev/null"))
        assert settings.kafka_user == unit.path.name.split("@")[0].removesuffix(".service")
        assert str(settings.kafka_password_file) == f"{whole.credentials}/kafka-password"
        assert whole.loaded["kafka-password"] == f"/etc/irregulars/credentials/{settings.kafka_user}.kafka"


def test_two_workers_of_a_machine_share_no_port_and_no_folder() -> None:
    one, other = (
        load_settings(environment=Unit(WORKER.path, port).environment, config=Path("/dev/null"))
        for port in ("9465", "9467")
    )
    for name in ("metrics_listen", "data_dir"):
        assert getattr(one, name) != getattr(other, name)
    assert one.metrics_listen == Settings().metrics_listen
    assert WORKER.one("StateDirectory") == one.data_dir.name


def mebibytes(text: str) -> float:
    """Read 2G, 1536M or Kubernetes' 2Gi.

    >>> mebibytes("2Gi"), mebibytes("1536M")
    (2048.0, 1536.0)
    """
    number, unit = re.fullmatch(r"(\d+)([MG])i?", text).groups()  # type: ignore[union-attr]
    return float(number) * {"M": 1, "G": 1024}[unit]


def test_a_worker_has_room_for_the_largest_job_that_was_measured_and_as_much_as_in_kubernetes() -> None:
    benchmarks = (ROOT / "infra" / "docs" / "benchmarks.md").read_text()
    (hop_gib,) = re.findall(r"\| … memory of the second hop \| ([\d.]+) \| GiB", benchmarks)
    (idle_mib,) = re.findall(r"\| idle worker of 1,024 ranks \| (\d+) \| MiB", benchmarks)
    limit = mebibytes(WORKER.one("MemoryMax"))
    assert limit > 1.5 * (1024 * float(hop_gib) + float(idle_mib))
    assert mebibytes(WORKER.one("MemoryHigh")) < limit
    manifest = yaml.safe_load_all((FOLDER.parent / "kubernetes" / "base" / "worker.yaml").read_text())
    (container,) = next(iter(manifest))["spec"]["template"]["spec"]["containers"]
    assert mebibytes(container["resources"]["limits"]["memory"]) == limit


def test_no_unit_waits_for_a_watchdog_that_nobody_feeds() -> None:
    assert all(not unit.all("WatchdogSec") and unit.one("Type") == "exec" for unit in instances())


def test_the_files_beside_the_units_are_read_as_theirs() -> None:
    assert load_settings(environment={}, config=FOLDER / "irregulars.toml").kafka_bootstrap == "127.0.0.1:9092"
    notify = FOLDER / "notify.toml"
    assert load_settings(environment={}, config=notify, others=OWN).kafka_bootstrap == "127.0.0.1:9092"
    assert [one.table.name for one in read_notify_file(notify)] == ["actions"]
