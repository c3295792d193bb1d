"""A real Slurm on loopback: munged, slurmctld and one slurmd for each node, without root's files."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from irregulars.infra.runs.child_process import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo")
DEADLINE_S = 60.0


def missing_programs() -> list[str]:
    """What a cluster needs and this machine lacks; Debian: apt-get install slurmctld slurmd munge."""
    return [name for name in PROGRAMS if _find(name) is None]


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class SlurmCluster:
    """A cluster of nodes ``node-0``, ``node-1``, … that are all this machine; its files lie in one folder.

    `folder`: an empty folder with a short path: munge's socket stands in it.
    """

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.names = [f"node-{number}" for number in range(nodes)]
        self.config = folder / "slurm.conf"
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> SlurmCluster:
        (self._folder / "munge").mkdir(mode=0o700)
        (self._folder / "state").mkdir(mode=0o700)
        key = self._folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        ports = [free_port() for _ in range(2 + len(self.names))]
        host, user = socket.gethostname().split(".")[0], "root" if os.getuid() == 0 else os.environ.get("USER", "")
        place = self._folder
        lines = [
            "ClusterName=test", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmUser={user}", f"SlurmdUser={user}",
            f"AuthInfo=socket={place / 'munge' / 's'}", f"SlurmctldPort={ports[0]}", f"SlurmdPort={ports[1]}",
            f"SlurmctldPidFile={place / 'ctld.pid'}", f"SlurmdPidFile={place / 'slurmd-%n.pid'}",
            f"StateSaveLocation={place / 'state'}", f"SlurmdSpoolDir={place / 'spool-%n'}",
            f"SlurmctldLogFile={place / 'ctld.log'}", f"SlurmdLogFile={place / 'slurmd-%n.log'}",
            "ProctrackType=proctrack/pgid", "TaskPlugin=task/none", "SelectType=select/linear", "MpiDefault=none",
            "SlurmdTimeout=300", "ReturnToService=2",
            *(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 State=UNKNOWN"
              for name, port in zip(self.names, ports[2:], strict=True)),
            "PartitionName=main Nodes=ALL Default=YES State=UP", "PartitionName=other Nodes=ALL State=UP",
        ]  # fmt: skip
        self.config.write_text("\n".join(lines) + "\n")
        self._start_munged()
        self._start("slurmctld", "-D", "-f", str(self.config))
        for name in self.names:
            (self._folder / f"spool-{name}").mkdir()
            self._start("slurmd", "-D", "-N", name, "-f", str(self.config))
        self.wait_for("idle", *self.names)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)
        self._stack.close()

    def scontrol(self, *arguments: str) -> None:
        subprocess.run([str(_find("scontrol")), *arguments], env=self.environment(), check=True, timeout=120)

    def sinfo(self) -> dict[str, tuple[str, str]]:
        """State and reason of each node, without the star of one that was not heard of for a while."""
        lines = self.text("--noheader", "--Node", "--format=%N|%T|%E").splitlines()
        found = [line.split("|", 2) for line in lines]
        return {name: (state.rstrip("*"), reason) for name, state, reason in found}

    def text(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(_find("sinfo")), *arguments], env=self.environment(), capture_output=True, text=True, check=True,
            timeout=120,
        )  # fmt: skip
        return done.stdout

    def environment(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self.config)}

    def wait_for(self, state: str, *names: str) -> None:
        """Wait until nodes have a state."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                found = self.sinfo()
            except subprocess.CalledProcessError:  # slurmctld is still starting
                found = {}
            if all(found.get(name, ("",))[0] == state for name in names):
                return
            assert time.monotonic() < deadline, f"{names} must be {state} within {DEADLINE_S:g} s; got {found}"
            time.sleep(0.1)

    def _start_munged(self) -> None:
        place = self._folder / "munge"
        files = {"key-file": "key", "socket": "s", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={place / name}" for option, name in files.items()]
        self._start("munged", "--foreground", "--force", "--num-threads=2", *options)
        deadline = time.monotonic() + DEADLINE_S
        while not (place / "s").exists():
            assert time.monotonic() < deadline, "munged must open its socket"
            time.sleep(0.02)

    def _start(self, name: str, *arguments: str) -> None:
        log = self._stack.enter_context((self._folder / f"{name}-{len(self._processes)}.out").open("wb"))
        command = [str(_find(name)), *arguments]
        self._processes.append(
            subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log, start_new_session=True)
        )
