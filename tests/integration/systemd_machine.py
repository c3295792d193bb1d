"""A real systemd in namespaces of its own: over this machine's files, which it can't change, and on its network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.infra.kit.installations import install_extras
from tests.infra.kit.units import ROOT

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
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            *spaces,
            "bash",
            "-c",
            _BOOT,
            "boot",
            str(self.folder / "mount"),
            str(self.folder),
        ]
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
