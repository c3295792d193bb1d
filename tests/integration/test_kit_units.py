"""The kit's units under a real systemd, as tight as they ship: a worker judges, and comes back when it is killed."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from irregulars.infra.runs.child_process import free_port
from tests.infra.kit.installations import documented_extras, install_extras
from tests.infra.kit.units import FOLDER, ROOT, UNITS
from tests.integration.pipelines import Pipeline
from tests.integration.worker_runs import page_of, wait_until

SYSTEMD = Path("/lib/systemd/systemd")
_TARGETS = ("sysinit", "basic", "shutdown", "network-online", "multi-user")
_END_S = 300.0
_TYPED_S = 600.0

# What unshare runs, as root of namespaces of its own. An overlay takes what is written; systemd sees our units alone.
_BOOT = """
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
root=$1/root
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount --bind "$2/console.log" "$root/dev/console"
mount -t tmpfs tmpfs "$root/run"
mkdir -p "$root/etc/systemd/system"
mount -t tmpfs tmpfs "$root/etc/systemd/system"
mkdir -p "$root/kit" "$root/run/kit"
mount --bind "$2" "$root/kit"
cp -a "$2/files/." "$root/"
cd "$root"
mkdir -p old
pivot_root . old
umount -l /old
mount --make-rshared /
export SYSTEMD_UNIT_PATH=/kit/units:/etc/systemd/system container=kit
exec /lib/systemd/systemd --system --unit=kit.target --log-target=console --show-status=no </dev/null
"""


def require_systemd() -> None:
    """Skip where no systemd can be started in namespaces."""
    missing = [name for name in ("setpriv", "unshare", "nsenter", "systemctl") if shutil.which(name) is None]
    if not SYSTEMD.exists() or missing:
        pytest.skip("systemd, unshare and nsenter must be installed to start units; they are not")
    if os.geteuid() != 0 or "overlay" not in Path("/proc/filesystems").read_text():
        pytest.skip("root and overlayfs must be there to start a systemd in namespaces; they are not")
    tried = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--cgroup", "true"], check=False)
    if tried.returncode != 0:
        pytest.skip("namespaces must be allowed to start a systemd in them; they are not")


class SystemdMachine:
    """Runs the units in `folder`'s ``units``, with ``files`` laid over the root; `close` ends all of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.units, self.files, self.logs = (folder / name for name in ("units", "files", "logs"))
        for one in (self.units, self.files, self.logs, folder / "mount"):
            one.mkdir(parents=True)
        folder.chmod(0o755)
        self.logs.chmod(0o777)
        (folder / "console.log").touch()
        for name in _TARGETS:
            (self.units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        self._process: subprocess.Popen[bytes] | None = None

    def add_unit(self, path: Path, drop_in: str) -> None:
        """Take in a unit as it stands, with lines of the test's own beside it."""
        shutil.copy(path, self.units)
        self.add_settings(path, drop_in)

    def add_installation(self, folder: str, extras: Iterable[str]) -> None:
        """Put an installation with `extras`, and no more, where the machine sees it as `folder`."""
        place = self.files / folder.removeprefix("/")
        program = install_extras(place, extras)
        program.write_text(program.read_text().replace(str(place), folder))

    def add_settings(self, path: Path, drop_in: str) -> None:
        """Give a unit that somebody will install lines of the test's own."""
        beside = self.units / f"{path.name}.d"
        beside.mkdir()
        (beside / "test.conf").write_text(f"[Service]\n{drop_in}")

    def start(self, *wanted: str) -> None:
        """Boot, with `wanted` units started."""
        (self.units / "kit.target").write_text(f"[Unit]\nDefaultDependencies=no\nWants={' '.join(wanted)}\n")
        spaces = ["--mount", "--pid", "--fork", "--cgroup", "--uts", "--ipc", "--kill-child"]
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", *spaces, "bash", "-c", _BOOT, "boot"]
        command += [str(self.folder / "mount"), str(self.folder)]
        with (self.folder / "boot.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def systemctl(self, *arguments: str) -> str:
        """Ask the machine's own systemd."""
        command = ["nsenter", "--target", str(self._init()), "--mount", "--pid", "systemctl", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def type(self, script: str, folder: str) -> str:
        """Run a script of bash as root of the machine, in one of its folders; each command must succeed."""
        until_s = time.monotonic() + _END_S
        while self.systemctl("is-active", "kit.target").strip() != "active":  # it sees other files before
            assert time.monotonic() < until_s, self.said()
            time.sleep(0.1)
        inside = ["nsenter", "--target", str(self._init()), "--mount", "--pid"]
        done = subprocess.run(
            [*inside, "bash", "-euo", "pipefail", "-xc", f"cd {folder}\n{script}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=_TYPED_S,
            check=False, env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + self.systemctl("status", "irregulars-*") + self.said()
        return done.stdout

    def shown(self, unit: str, key: str) -> str:
        """Return a property of a unit."""
        return self.systemctl("show", unit, "--value", f"--property={key}").strip()

    def said(self) -> str:
        """All that was logged, for a test that failed."""
        logs = [self.folder / "boot.log", self.folder / "console.log", *self.logs.iterdir()]
        return "\n".join(f"{one.name}: {one.read_text(errors='replace')[-3000:]}" for one in logs)

    def _init(self) -> int:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        until_s = time.monotonic() + _END_S
        while not (found := children.read_text().split()):
            assert time.monotonic() < until_s, self.said()
            time.sleep(0.05)
        return int(found[0])

    def close(self) -> None:
        """Kill it: its end ends all of its processes and mounts."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_END_S)


def reading_paths() -> str:
    """Return the lines that let a unit see Python and the checkout although homes are hidden from it."""
    paths = {str(ROOT), sys.prefix, str(Path(sys.prefix).resolve()), sys.base_prefix}
    hidden = sorted(one for one in paths if one.startswith(("/root/", "/home/", "/tmp/", "/var/tmp/")))
    return "ProtectHome=tmpfs\n" + "".join(f"BindReadOnlyPaths={one}\n" for one in hidden)


pytestmark = pytest.mark.integration
PAGE = ROOT / "infra" / "docs" / "install.md"
MACHINES = "Machines with systemd"
AGENT = ROOT / "infra" / "node" / "irregulars-agent.service"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SystemdMachine]:
    require_systemd()
    machine = SystemdMachine(tmp_path / "machine")
    yield machine
    machine.close()
    print(machine.said())


def four_digits(count: int) -> list[str]:
    """Free ports of four digits, as the unit of the worker wants them."""
    free = (port for port in range(9600, 9999) if _is_free(port) and _is_free(port + 10_000))
    return [str(port) for port in itertools.islice(free, count)]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Site:
    """A machine, the page's commands, and what stands in them for this machine: ports, and a user of ClickHouse.

    Ports are this machine's own, as its network is shared; and the tests' database has one user for all.
    """

    FILES = ("infra/kit/systemd", "infra/node")
    CHECKOUT = "/kit/checkout"

    def __init__(self, machine: SystemdMachine, pipeline: Pipeline) -> None:
        topics = replace(pipeline.bus.topics, prefix=f"site-{uuid4().hex[:10]}.")  # nobody has made these yet
        pipeline.bus.topics = topics
        pipeline.settings = replace(pipeline.settings, topic_prefix=topics.prefix)
        self.machine, self.settings = machine, pipeline.settings
        four, other = four_digits(2), [str(free_port()) for _ in range(3)]
        self.ports = dict(zip(("9465", "9467", "9466", "8321", "9464"), [*four, *other], strict=True))
        users = (f"irregulars_{role}" for role in ("admin", "writer", "reader"))
        self.swapped = self.ports | dict.fromkeys(users, self.settings.clickhouse_user)
        self.swapped |= {"TRAINER": "nobody", "install -m 600 FILE": "install -m 600 /kit/FILE"}
        for folder in self.FILES:
            shutil.copytree(ROOT / folder, machine.folder / "checkout" / folder)
        for path in (machine.folder / "checkout").rglob("*.*"):
            if path.is_file():
                path.write_text(self.here(path.read_text()))
        password = machine.folder / "FILE"
        password.touch(mode=0o600)
        password.write_text(self.settings.clickhouse_password)

    def here(self, text: str) -> str:
        """Put in what is this machine's."""
        for word, own in self.swapped.items():
            text = re.sub(rf"(?<![\w.]){re.escape(word)}(?![\w.])", own, text)
        return text

    def script(self, *sections: str) -> str:
        """Return the commands of sections of the page, with the files edited where it says that people do it."""
        lines = [line for name in sections for line in typed(section(name))]
        return "\n".join(self.line(line) for line in lines)

    def line(self, line: str) -> str:
        if line.startswith("python3"):
            return ":"  # the installation is there
        files = ("irregulars.toml", "notify.toml", "agent.toml") if line.startswith("install") else ()
        edited = [one for one in files if line.endswith(f"/{one}")]
        return self.here(line) + "".join(f"\n{self.edit(name)}" for name in edited)

    def edit(self, name: str) -> str:
        """Return the command that says where the services are, as everybody does it in a file of settings."""
        own = {"kafka_bootstrap": self.settings.kafka_bootstrap, "topic_prefix": self.settings.topic_prefix}
        if name == "irregulars.toml":
            own |= {"clickhouse_url": self.settings.clickhouse_url, "partitions": 2, "replicas": 1,
                    "clickhouse_database": self.settings.clickhouse_database}  # fmt: skip
        path, lines = f"/etc/irregulars/{name}", "\n".join(f"{key} = {json.dumps(own[key])}" for key in own)
        return f"sed -Ei '/^({'|'.join(own)}) /d' {path}\nsed -i '1i {lines.replace(chr(10), chr(92) + 'n')}' {path}"


def section(name: str) -> str:
    """Return the text below a heading of the page, up to the next heading."""
    (text,) = re.findall(rf"^##+ {name}\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


def typed(text: str) -> list[str]:
    return re.findall(r"^ {4}(\w.*)$", text, re.MULTILINE)


def ready(port: str, page: str) -> bool:
    return page_of(f"http://127.0.0.1:{port}{page}")[0] == 200


def test_a_machine_is_set_up_and_upgraded_as_the_page_says(machine: SystemdMachine, pipeline: Pipeline) -> None:
    site = Site(machine, pipeline)
    own = f"{reading_paths()}StandardOutput=append:/kit/logs/%p.log\nStandardError=inherit\nRestartSec=1\n"
    for path in (*UNITS, AGENT):
        machine.add_settings(path, own)
    for release in ("0.1.0", "0.2.0"):
        machine.add_installation(f"/opt/irregulars/{release}", documented_extras(PAGE.read_text(), MACHINES))
    machine.start()
    said = machine.type(site.script(MACHINES, "Workers", "Notify", "Console", "Agents"), site.CHECKOUT)
    assert f"created   {site.settings.topic_prefix}commops" in said
    assert "1 channel; nothing is wrong with it" in said
    worker = f"irregulars-worker@{site.ports['9465']}.service"
    services = [worker, *(f"irregulars-{name}.service" for name in ("notify", "console", "agent"))]
    pids = {name: machine.shown(name, "MainPID") for name in services}

    pipeline.replay("gloo-slow-nic")
    wait_until(lambda: bool(pipeline.bus.verdict_ids()), "a verdict of the unit")
    assert machine.shown(worker, "MemoryMax") == str(2 << 30)

    machine.type(site.script("Upgrading machines"), site.CHECKOUT)
    for name in services:
        assert machine.shown(name, "ActiveState") == "active"
        assert machine.shown(name, "MainPID") not in ("0", pids[name]), name
    wait_until(lambda: ready(site.ports["9465"], "/readyz"), "the new worker")
    machine.type(site.script("Rollback"), site.CHECKOUT)
    wait_until(lambda: ready(site.ports["9465"], "/readyz"), "the old worker")
    pid = machine.shown(worker, "MainPID")
    machine.systemctl("kill", "--signal=KILL", worker)
    wait_until(
        lambda: machine.shown(worker, "MainPID") not in ("0", pid) and ready(site.ports["9465"], "/readyz"),
        "a restart",
    )
    machine.systemctl("stop", *services)
    for unit in services:
        assert (machine.shown(unit, "ActiveState"), machine.shown(unit, "ExecMainStatus")) == ("inactive", "0")


def test_what_the_unit_runs_is_nobody_who_may_do_nothing(machine: SystemdMachine) -> None:
    """The same lines around another program: one that says who it is, and tries what it must not."""
    unit = machine.folder / "irregulars-notify.service"
    script = (
        "id -u; touch /etc/x /opt/x; cat /etc/irregulars/credentials/secret; grep CapEff /proc/self/status; echo end"
    )
    credentials = machine.files / "etc" / "irregulars" / "credentials"
    credentials.mkdir(parents=True, mode=0o700)
    (credentials / "secret").touch(mode=0o600)
    lines = (FOLDER / unit.name).read_text()
    unit.write_text(lines.replace("Type=exec", "Type=oneshot").replace("Restart=always", "Restart=no"))
    output = "StandardOutput=append:/kit/logs/it.log\nStandardError=inherit\n"
    machine.add_unit(unit, f"ExecStart=\nExecStart=/bin/sh -c '{script}'\n{output}")
    machine.start(unit.name)
    log = machine.logs / "it.log"
    wait_until(lambda: log.exists() and "end" in log.read_text(), "its end")
    said = log.read_text()
    assert int(said.splitlines()[0]) > 60_000  # a user that systemd made up
    assert said.count("Read-only file system") == 2
    assert "Permission denied" in said
    assert "CapEff:\t0000000000000000" in said
