"""What a node's devices report: the kernel's log, links and states of GPUs, as events of the ranks that use them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.producers.node.device_source import DeviceSource
from irregulars.producers.node.events import ErrorFiles, LinkWatch, NodeEvents
from irregulars.producers.node.kernel_log import Devices, KernelLog, parse_line
from irregulars.producers.node.roster import HealthSample, Owner, Roster
from irregulars.producers.node.slurm_log import SlurmLines
from tests.producers.node.sysfs_trees import Sysfs

NOW_NS = 1_795_000_000 * 10**9
XID = "NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(("line", "expected"), [
    (XID, ("xid", "0000:3b:00", 79)),
    ("[ 12.3] NVRM: Xid (PCI:0000:1a:00): 31, Ch 0000000b, intr 10000000.", ("xid", "0000:1a:00", 31)),
    ("Out of memory: Killed process 4711 (python3) total-vm:61kB, anon-rss:8kB", ("out_of_memory", "", 4711)),
    ("Memory cgroup out of memory: Killed process 12 (a b)", ("out_of_memory", "", 12)),
    ("mlx5_core 0000:5e:00.0 ibs10: Link down", ("link_down", "0000:5e:00.0", None)),
    ("mlx5_core 0000:5e:00.0: Port: 1 Link up", ("link_up", "0000:5e:00.0", None)),
    ("pcieport 0000:5d:00.0: AER: Uncorrected (Non-Fatal) error received: 0000:5e", ("pcie", "0000:5d:00.0", None)),
    ("nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=x", ("pcie", "0000:01:00.0", None)),
    ("pcieport 0000:5d:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
     ("pcie", "0000:5d:00.0", None)),
    ("pcieport 0000:5d:00.0: AER: PCIe Bus Error: severity=Correctable, type=Physical Layer", None),
    ("pcieport 0000:5d:00.0: AER: Corrected error received: 0000:5e:00.0", None),
    ("eth0: renamed from veth1", None), ("", None), ("NVRM: Xid (PCI:0000:3b:00): 99999999999999999999", None),
])  # fmt: skip
def test_lines_of_the_kernel(line: str, expected: tuple[str, str, int | None] | None) -> None:
    found = parse_line(line)
    assert (None if found is None else found[:3]) == expected


def test_the_log_is_followed_from_its_end_and_over_its_replacement(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text(XID + "\n")
    log = KernelLog(path, lambda: NOW_NS)
    assert log.take() == []
    with path.open("a") as file:
        file.write("Xid of nobody\n" + XID[:30])
    assert log.take() == []
    with path.open("a") as file:
        file.write(XID[30:] + "\n")
    assert [(time_ns, one.code) for time_ns, one in log.take()] == [(NOW_NS, 79)]
    path.rename(tmp_path / "kern.log.1")
    path.write_text(XID.replace("79", "48") + "\n")
    assert [one.code for _, one in log.take()] == [48]
    path.write_text("")  # cut, as copytruncate does
    assert log.take() == []
    path.write_text(XID + "\n")
    assert [one.code for _, one in log.take()] == [79]
    log.close()


def test_of_a_storm_of_lines_each_is_examined_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("")
    log = KernelLog(path, lambda: NOW_NS)
    with path.open("a") as file:
        file.write("x\n" * 5_000 + XID + "\n")
    assert [len(log.take()) for _ in range(3)] == [0, 1, 0]
    log.close()


def test_a_log_that_is_not_there_is_sought_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = KernelLog(tmp_path / "kern.log", lambda: NOW_NS)
    assert log.take() == log.take() == []
    assert [one.message.split()[0] for one in caplog.records] == ["event=kernel_log_missing"]
    (tmp_path / "kern.log").write_text(XID + "\n")
    assert [one.code for _, one in log.take()] == [79]
    log.close()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's log must be readable; it is not")
def test_the_real_log_can_be_read() -> None:
    log = KernelLog(Path("/dev/kmsg"))
    assert log.take() == []
    log.close()


def roster(*gpus: int, nic: str = "mlx5_0") -> Roster:
    """Ranks 0, 1, .. that use these GPUs, none of which is sampled, and share a NIC."""
    made = Roster("node-3")
    for rank, gpu in enumerate(gpus):
        made.admit(Announcement("job", 0, rank, 8, 8, (), host="node-3", gpu=gpu, nic=nic))
    return made


@pytest.fixture
def events(tmp_path: Path) -> NodeEvents:
    (tmp_path / "log").write_text("")
    devices = Devices({0: "0000:1a:00.0", 5: "0000:3b:00.0"}, {"mlx5_0": "0000:5e:00.0"})
    log = KernelLog(tmp_path / "log", lambda: NOW_NS)
    return NodeEvents(roster(0, 5), "node-3", devices, tmp_path / "sys", [log], lambda: NOW_NS)


def log_line(folder: Path, *lines: str) -> None:
    with (folder / "log").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_lines_of_the_kernel_are_of_the_gpu_s_rank_or_of_one_of_each_job(events: NodeEvents, tmp_path: Path) -> None:
    log_line(tmp_path, XID, XID.replace("3B", "77"))
    [(owner, event)] = events.take()
    assert (owner.rank, event.rank, event.device, event.code, event.host) == (1, 1, "gpu5", 79, "node-3")
    log_line(tmp_path, "Out of memory: Killed process 4711 (python)")
    [(owner, event)] = events.take()
    assert (event.kind, event.device, event.code) == ("out_of_memory", "", 4711)
    assert owner.rank == event.rank


def states(events: NodeEvents, second: float = 0.0, job: str = "job", **values: float) -> list[tuple[Any, ...]]:
    """Kind, code and detail of the events in one state of rank 1's GPU."""
    sample = HealthSample(Owner(job, 0, 1), "gpu5", NOW_NS + round(second * 1e9), values)
    return [(one.kind, one.code, one.detail) for _, one in events.of_health([sample])]


def test_an_xid_that_nvml_tells_too_counts_once_and_a_lasting_one_again(events: NodeEvents, tmp_path: Path) -> None:
    log_line(tmp_path, XID)
    assert len(events.take()) == 1
    assert states(events, 1, xid=79.0) == []
    assert states(events, 60, xid=79.0) == [("xid", 79, "")]
    assert [second for second in range(0, 40, 4) if states(events, second, xid=79.0)] == [0, 8, 16, 24, 32]


def test_states_of_gpus_become_events_when_they_change(events: NodeEvents) -> None:
    throttled = ("throttle", None, "hw_thermal")
    assert states(events, throttle_reasons=0b101, ecc_uncorrected=0.0) == [], "idle, and a power cap"
    assert states(events, throttle_reasons=0b1000101) == [throttled]
    assert states(events, throttle_reasons=0b1000101) == []
    assert states(events, throttle_reasons=0.0) == []
    assert states(events, throttle_reasons=0b1000000, ecc_uncorrected=2.0) == [("ecc", 2, ""), throttled]


def test_clocks_that_are_held_down_are_told_of_each_job_and_again_now_and_then(events: NodeEvents) -> None:
    thermal = 0b1000000
    assert [at for at in range(0, 700, 5) if states(events, at, throttle_reasons=thermal)] == [0, 300, 600]
    others = ((705, thermal), (710, thermal), (715, 0), (720, thermal))
    assert [at for at, mask in others if states(events, at, "job-2", throttle_reasons=mask)] == [705, 720]


def test_what_a_link_counted_between_two_jobs_is_of_neither(tmp_path: Path) -> None:
    own, counters = roster(0), Sysfs(tmp_path).rdma("mlx5_0")
    (counters / "symbol_error").write_text("7\n")
    watched = NodeEvents(own, "node-3", Devices({}, {}), tmp_path, [], lambda: NOW_NS)
    assert watched.take() == []
    own.release(Heartbeat("job", 0, 0, state="ended"))
    (counters / "symbol_error").write_text("12\n")
    assert watched.take() == []
    own.admit(Announcement("job-2", 0, 0, 8, 8, (), host="node-3", gpu=0, nic="mlx5_0"))
    assert watched.take() == []
    (counters / "symbol_error").write_text("14\n")
    assert [(owner.job, one.code) for owner, one in watched.take()] == [("job-2", 2)]


def test_links_that_go_down_and_counters_that_grow(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    counters = sysfs.rdma("mlx5_0")
    (counters.parent / "state").write_text("4: ACTIVE\n")
    (counters / "symbol_error").write_text("7\n")
    watch = LinkWatch(tmp_path)
    assert list(watch.look("mlx5_0")) == []
    (counters / "symbol_error").write_text("12\n")
    (counters.parent / "state").write_text("1: DOWN\n")
    assert list(watch.look("mlx5_0")) == [("link_down", None, "1: DOWN"), ("link_errors", 5, "symbol_error")]
    (counters / "symbol_error").write_text("0\n")  # reset
    (counters.parent / "state").write_text("4: ACTIVE\n")
    assert list(watch.look("mlx5_0")) == [("link_up", None, "4: ACTIVE")]
    statistics = sysfs.interface("eth0")
    (statistics / "rx_errors").write_text("0\n")
    (statistics.parent / "operstate").write_text("up\n")
    assert list(watch.look("eth0")) == []
    (statistics / "rx_errors").write_text("3\n")
    assert list(watch.look("eth0")) == [("link_errors", 3, "rx_errors")]
    assert list(watch.look("none")) == []


@pytest.mark.parametrize("name", ["{}", "../../{}", "..", "n" * 300, "é" * 200, "n\0", ""])
def test_a_name_that_no_nic_has_is_watched_nowhere(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "statistics").mkdir(parents=True)
    (elsewhere / "ports" / "1").mkdir(parents=True)
    watch = LinkWatch(tmp_path / "sys" / "sys")
    for state in ("up", "down"):
        (elsewhere / "operstate").write_text(state)
        (elsewhere / "ports" / "1" / "state").write_text(state)
        assert list(watch.look(name.format(elsewhere))) == []


def test_error_files_that_vanish_meanwhile_are_sought_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors, glob, path = ErrorFiles(tmp_path), Path.glob, tmp_path / "run" / "attempt_0" / "3" / "error.json"

    def vanish(own: Path, pattern: str) -> Iterator[Path]:
        yield path
        raise FileNotFoundError("attempt_0")

    path.parent.mkdir(parents=True)
    path.write_text('{"message": "first"}')
    monkeypatch.setattr(Path, "glob", vanish)
    assert list(errors.take()) == [("run", 3, "first")]
    monkeypatch.setattr(Path, "glob", glob)
    assert list(errors.take()) == []


@pytest.mark.parametrize("make", [
    os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.parents[3] / "secret.json"),
], ids=["pipe", "folder", "link"])  # fmt: skip
def test_what_is_no_error_file_is_not_waited_for_nor_followed(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "secret.json").write_text('{"message": "secret"}')
    errors, path = ErrorFiles(tmp_path), tmp_path / "run" / "attempt_0" / "3" / "error.json"
    path.parent.mkdir(parents=True)
    make(path)
    found: list[tuple[str, int, str]] = []
    # A daemon: to open the pipe waits without an end.
    reading = threading.Thread(target=lambda: found.extend(errors.take()), daemon=True)
    reading.start()
    reading.join(30)
    assert found == [("run", 3, "")]


def leave_error(folder: Path, run: str, local_rank: int, text: str) -> None:
    path = folder / run / "attempt_0" / str(local_rank) / "error.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def watched_errors(folder: Path, own: Roster) -> NodeEvents:
    return NodeEvents(own, "node-3", Devices({}, {}), folder, [], lambda: NOW_NS, error_files=ErrorFiles(folder))


def test_the_last_error_of_a_process_is_told_of_its_rank(tmp_path: Path) -> None:
    leave_error(tmp_path, "run", 0, "{}")
    watched = watched_errors(tmp_path, roster(0, 5))
    assert watched.take() == []
    text = json.dumps({"message": {"message": "RuntimeError: NCCL error\nin call", "extraInfo": {}}})
    leave_error(tmp_path, "run", 5, text)
    leave_error(tmp_path, "run", 7, "not JSON")  # of no rank that is here
    [(owner, event)] = watched.take()
    assert (owner.rank, event.kind, event.detail) == (1, "process_exit", "RuntimeError: NCCL error")
    assert watched.take() == []


def test_the_last_error_of_a_process_is_not_told_of_another_job_on_the_same_node(tmp_path: Path) -> None:
    own = roster(0, 1)
    own.assign(Owner("other", 0, 0), 2, None)
    watched = watched_errors(tmp_path, own)
    for run, local_rank in (("other_x7", 0), (f"{own.users['gpu0'].job}_8k", 1)):
        leave_error(tmp_path, run, local_rank, "{}")
    found = [(owner.rank, event.kind, event.device) for owner, event in watched.take()]
    assert found == [(1, "process_exit", "gpu1")]


STEP = "[2026-04-29T23:36:37.809] [4711.0] "  # slurmd's prefix


@pytest.mark.parametrize(("line", "expected"), [
    (f"{STEP}task 5 (8122) exited with exit code 1.", ("process_exit", 1, "4711", 5)),
    (f"{STEP}task 5 (8122) exited. Killed by signal 11 (core dumped).", ("process_exit", 139, "4711", 5)),
    (f"{STEP}task 5 (8122) Out Of Memory (OOM)", ("process_exit", None, "4711", 5)),
    (f"{STEP}error: *** STEP 4711.0 ON node-3 CANCELLED AT 2026-04-29T23:36:37 DUE TO TIME LIMIT ***",
     ("process_exit", None, "4711", None)),
    ("4711.0|FAILED|1:0", ("process_exit", 1, "4711", None)),
    ("4711.0|OUT_OF_MEMORY|0:125", ("process_exit", None, "4711", None)),
    ("4711.0|CANCELLED by 1000|0:15", ("process_exit", 143, "4711", None)),
    ("NodeName=node-3.example Arch=x86_64 State=IDLE+DRAIN Weight=1 Reason=Kill task failed [root@2026-04-29T23:36]",
     ("node_state", None, "", None)),
    (f"{STEP}task 5 (8122) exited with exit code 0.", None), ("4711.0|COMPLETED|0:0", None),
    ("4711.batch|FAILED|1:0", None), ("NodeName=node-4 Arch=x86_64 State=DOWN* Weight=1", None),
    ("NodeName=node-3 Arch=x86_64 State=MIXED Weight=1", None), ("", None),
    *((f"NodeName=node-3 Arch=x86_64 State=IDLE+{state} Weight=1", None) for state in ("POWERED_DOWN", "UNDRAIN")),
    ("4711.0|SUSPENDED|0:0", None), ("4711.0|REQUEUED|0:0", None),
])  # fmt: skip
def test_lines_of_slurm(line: str, expected: tuple[str, int | None, str, int | None] | None) -> None:
    found = SlurmLines("node-3")(line)
    assert (None if found is None else (found.kind, found.code, found.job, found.task)) == expected


def test_a_task_s_end_is_told_of_its_rank_and_a_node_s_state_when_it_changes(tmp_path: Path) -> None:
    own = roster(0, 5)
    own.assign(Owner("4711", 0, 1), 6, None)
    (tmp_path / "log").write_text("")
    log = KernelLog(tmp_path / "log", lambda: NOW_NS, SlurmLines("node-3"))
    watched = NodeEvents(own, "node-3", Devices({}, {}), tmp_path, [log], lambda: NOW_NS)
    log_line(tmp_path, *(f"{STEP}task {task} (8122) exited with exit code 1." for task in (1, 9)))
    # Of two jobs it is of the one with this number, of which one task is here.
    found = [(owner.job, one.rank, one.device, one.code) for owner, one in watched.take()]
    assert found == [("4711", 1, "gpu6", 1), ("4711", 1, "", 1)]
    drained, well = (f"NodeName=node-3 Arch=x86_64 State={state} Weight=1" for state in ("IDLE+DRAIN", "IDLE"))
    log_line(tmp_path, drained, drained, well, drained)
    assert [(owner.job, one.kind, one.detail) for owner, one in watched.take()] == [
        (job, "node_state", "IDLE+DRAIN") for _ in range(2) for job in ("job", "4711")
    ]


@pytest.mark.parametrize(("job", "told"), [("4711", 1), ("4710", 0), ("pretraining", 1)])
def test_a_job_that_is_named_by_a_number_has_that_of_slurm(tmp_path: Path, job: str, told: int) -> None:
    own = Roster("node-3")
    own.admit(Announcement(job, 0, 1, 8, 8, (), host="node-3", gpu=0))
    (tmp_path / "log").write_text("")
    log = KernelLog(tmp_path / "log", lambda: NOW_NS, SlurmLines("node-3"))
    watched = NodeEvents(own, "node-3", Devices({}, {}), tmp_path, [log], lambda: NOW_NS)
    log_line(tmp_path, "4711.0|CANCELLED by 1000|0:15")
    assert [one.detail for _, one in watched.take()] == ["Slurm's CANCELLED"] * told


def test_events_travel_at_once_and_counted(events: NodeEvents, tmp_path: Path) -> None:
    clock_s = [0.0]
    source = DeviceSource([], events=events, clock_s=lambda: clock_s[0], now_ns=lambda: NOW_NS)
    found = []
    for second in (2.0, 4.0):
        log_line(tmp_path, XID.replace("79", str(int(second))))
        clock_s[0] = second
        found += list(source.poll(100))
    assert [(one.header.schema, one.header.rank, one.header.rows_before) for one in found] == [  # type: ignore[union-attr]
        ("events", 1, 0), ("events", 1, 1)
    ]  # fmt: skip
    source.close()
