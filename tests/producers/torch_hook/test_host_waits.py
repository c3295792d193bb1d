"""Counters of the kernel: from files that look like its own, and from the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from irregulars.producers.torch_hook import host_waits
from irregulars.producers.torch_hook.host_waits import HostWaits

V1, V2 = "4:cpu,cpuacct:/jobs/a\n", "0::/jobs/a\n"


def write(proc: Path, cgroups: Path, groups: str, *, ran: int = 0, queued: int = 0, throttled: str = "") -> None:
    own = proc / "self" / "task" / str(threading.get_native_id())
    own.mkdir(parents=True, exist_ok=True)
    (own / "schedstat").write_text(f"{ran} {queued} 9\n")
    (proc / "self" / "cgroup").write_text(groups)
    place = cgroups / ("cpu,cpuacct/jobs/a" if groups == V1 else "jobs/a")
    place.mkdir(parents=True, exist_ok=True)
    (place / "cpu.stat").write_text(f"nr_periods {bool(throttled):d}\n{throttled}\n")


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setattr(host_waits, "PRICE_SHARE", 1e9)
    return tmp_path / "proc", tmp_path / "cgroup"


@pytest.mark.parametrize(("groups", "line"), [(V1, "throttled_time 4000000"), (V2, "throttled_usec 4000")])
def test_quotas_of_both_kinds_of_cgroups_are_read(roots: tuple[Path, Path], groups: str, line: str) -> None:
    write(*roots, groups, throttled=line.split()[0] + " 0")
    own = HostWaits(*roots)
    time.sleep(0.01)
    write(*roots, groups, queued=5_000_000, throttled=line)
    _, waits = own.take()
    own.close()
    assert (waits["cpu_throttled"], waits["cpu_wait"]) == (4_000_000, 1_000_000)


@pytest.mark.parametrize(("ran", "most"), [(0, 60e9), (999_999_999_999, 0)])
def test_nobody_waits_for_a_quota_longer_than_the_time_without_it(
    roots: tuple[Path, Path], ran: int, most: float
) -> None:
    write(*roots, V2, throttled="throttled_usec 0")
    own = HostWaits(*roots)
    write(*roots, V2, ran=ran, throttled="throttled_usec 999999999")  # a group of many threads
    _, waits = own.take()
    own.close()
    assert waits["cpu_throttled"] <= most
    assert (waits["cpu_throttled"] > 0) == (most > 0)


@pytest.mark.parametrize(("queued", "is_seen"), [(5_000_000, True), (50_000, False)])
def test_a_quota_that_is_set_later_is_looked_for_as_soon_as_the_thread_waits(
    roots: tuple[Path, Path], queued: int, is_seen: bool
) -> None:
    write(*roots, V2)
    own = HostWaits(*roots)
    time.sleep(0.01)
    write(*roots, V2, queued=queued, throttled="throttled_usec 4000")
    assert (own.take()[1]["cpu_throttled"] == 4_000_000) == is_seen
    own.close()


def test_a_machine_that_offers_nothing_has_no_waits(tmp_path: Path) -> None:
    own = HostWaits(tmp_path / "proc", tmp_path / "cgroup")
    _, waits = own.take()
    own.close()
    assert not any(waits.values())


def test_readings_take_a_bounded_share_of_the_time(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_waits, "PRICE_SHARE", 1e-9)
    own = HostWaits()
    own.take()
    assert own.take()[1] == {}
    own.close()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel must count waiting; it does not")
def test_a_thread_that_shares_a_processor_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    monkeypatch.setattr(host_waits, "PRICE_SHARE", 1e9)
    os.sched_setaffinity(0, {min(allowed)})
    rivals = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        own = HostWaits()
        began_s = time.thread_time()
        while time.thread_time() < began_s + 0.1:
            pass
        _, waits = own.take()
        own.close()
    finally:
        os.sched_setaffinity(0, allowed)
        for one in rivals:
            one.kill()
            one.wait()
    assert waits["cpu_wait"] > 0.1e9
    assert 0.09e9 < waits["cpu_time"] < 0.3e9
