from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from irregulars.errors import InputError, ServiceUnavailable
from tests.benchmarks.recordings.__main__ import main
from tests.benchmarks.recordings.cgroups import PERIOD_US, CpuGroups
from tests.benchmarks.recordings.children import Child
from tests.benchmarks.recordings.counters import bandwidth_table, read_counters
from tests.benchmarks.recordings.faults import SlowWork
from tests.benchmarks.recordings.finishing import iteration_times_ms, measure, write_small
from tests.benchmarks.recordings.job_shape import JobShape
from tests.benchmarks.recordings.layout import Layout
from tests.benchmarks.recordings.making import require_machine
from tests.benchmarks.recordings.network import build_commands, rate_commands, shape_commands
from tests.benchmarks.recordings.recording import Recording

LAYOUT = Layout(2, ranks_per_host=1, hosts_per_leaf=1)
linux_alone = pytest.mark.skipif(sys.platform != "linux", reason="forks that die with their parent are Linux's own")


def test_each_rank_gets_a_nic_and_each_leaf_an_uplink() -> None:
    lines = build_commands(LAYOUT, [100, 101])
    assert sum("netns 10" in line for line in lines) == 2
    assert [line.split()[2] for line in lines if "master spine" in line] == ["down0", "down1"]


def test_all_classes_share_the_rate_of_their_device() -> None:
    lines = shape_commands("eth0", ["10.77.0.1", "10.77.0.2"])
    assert sum(" parent 1:1 " in line for line in lines) == 3
    assert rate_commands("eth0", 80)[0].startswith("class change dev eth0 parent 1: classid 1:1 htb rate 80mbit")
    assert "classid 1:12 htb rate 1mbit ceil 80mbit" in rate_commands("eth0", 80, ["10.77.0.2"])[0]


def test_what_a_port_receives_its_nic_has_sent() -> None:
    counted = np.array([[0, 0, 0, 0], [1_000, 50, 0, 0], [1_000, 50, 30, 0]])
    rows = bandwidth_table(LAYOUT, np.array([0, 10_000_000, 30_000_000]), counted).to_pylist()
    rates = [(row["rank"], row["tx_bytes_per_s"], row["rx_bytes_per_s"]) for row in rows]
    assert rates == [(0, 100_000, 5_000), (0, 0, 0), (1, 0, 0), (1, 1_500, 0)]


def test_counters_of_a_port_that_ends_are_left_out() -> None:
    counted = np.array([[0, 0, 0, 0], [10, 0, 0, 0], [0, 0, 0, 0], [5, 0, 0, 0]])
    rows = bandwidth_table(LAYOUT, np.arange(4) * 10_000_000, counted).to_pylist()
    assert [(row["rank"], row["tx_bytes_per_s"]) for row in rows] == [(0, 1_000), (1, 0)]


def test_a_port_that_is_gone_is_no_zero() -> None:
    with pytest.raises(KeyError):
        read_counters(" port0: 1 2 3 4 5 6 7 8 9 10\n", ["port0", "port1"])


def test_quotas_of_both_versions_of_control_groups(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    (first / "cpu").mkdir(parents=True)
    (first / "cpu" / "cpu.shares").write_text("1024")
    second.mkdir()
    (second / "cgroup.subtree_control").write_text("memory cpu\n")
    old, new = CpuGroups(first), CpuGroups(second)
    group = old.make([])
    old.limit(group, 0.25)
    assert (group / "cpu.cfs_quota_us").read_text() == str(PERIOD_US // 4)
    old.limit(group, None)
    assert (group / "cpu.cfs_quota_us").read_text() == "-1"
    group = new.make([])
    new.limit(group, 0.25)
    assert int((group / "cpu.weight").read_text()) > 100
    assert (group / "cpu.max").read_text() == f"{PERIOD_US // 4} {PERIOD_US}"


def test_a_machine_without_quotas_is_told(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnavailable, match="must offer the controller cpu"):
        CpuGroups(tmp_path)


@linux_alone
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_runs_and_its_last_words_are_kept(tmp_path: Path) -> None:
    def speak() -> None:
        os.write(1, b"fine\n")

    def fail() -> None:
        raise ValueError("no NIC")

    for run, status, words in ((speak, 0, "fine"), (fail, 1, "ValueError: no NIC")):
        child = Child(run, tmp_path / "log")
        deadline_s = time.monotonic() + 20
        while child.status is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert (child.status, child.last_words()) == (status, words)


@linux_alone
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_is_ended_by_its_id(tmp_path: Path) -> None:
    child = Child(lambda: time.sleep(60), tmp_path / "log")
    child.end()
    assert child.status == -9


def recording(span: tuple[int, int]) -> Recording:
    fault = SlowWork((span,), ranks=(1,), factor=2.0)
    return Recording("some", JobShape("ddp", dp=2), LAYOUT, (fault,), iterations=20)


def iterations(times_ms: list[float]) -> pa.Table:
    """Rank 1 takes the given times, rank 0 half of them."""
    rows = [{"rank": rank, "iteration": n, "start_ns": n, "elapsed_ns": int(ms * 1e6 * (0.5 + rank / 2)),
             "phase": "train"} for rank in (0, 1) for n, ms in enumerate(times_ms)]  # fmt: skip
    return pa.Table.from_pylist(rows)


def test_inflation_is_that_of_the_slowest_rank_in_the_window() -> None:
    table = iterations([500.0] * 3 + [100.0] * 7 + [150.0] * 5 + [100.0] * 5)
    assert iteration_times_ms(table)[4] == 100.0
    found = measure(recording((10, 15)), table, np.zeros((2, 4)))
    assert (found["regular_ms"], found["window_ms"], found["inflation"], found["hard"]) == (100, 150, 1.5, False)


def test_an_effect_below_the_noise_is_hard() -> None:
    table = iterations([100.0, 130.0] * 5 + [120.0] * 5 + [100.0, 130.0] * 2 + [100.0])
    assert measure(recording((10, 15)), table, np.zeros((2, 4)))["hard"]


def test_a_fault_from_the_start_is_held_against_the_times_before() -> None:
    found = measure(recording((0, 20)), iterations([150.0] * 20), np.array([[50e6] * 4, [100e6] * 4]))
    assert (found["regular_ms"], found["inflation"]) == (100, 1.5)


def test_evaluations_are_in_no_figure() -> None:
    table = iterations([100.0, 900.0])
    phases = pa.array(["train", "eval"] * 2)
    table = table.set_column(table.column_names.index("phase"), "phase", phases)
    assert iteration_times_ms(table) == {0: 100.0}


def test_a_small_file_reads_as_it_was_written(tmp_path: Path) -> None:
    table = iterations([1.0, 2.0, 3.0])
    write_small(table, tmp_path / "iterations.parquet", "iterations")
    assert pq.read_table(tmp_path / "iterations.parquet").to_pylist() == table.to_pylist()


def test_who_is_not_root_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    monkeypatch.setattr(sys, "platform", "linux")
    assert main(["make", "--all", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        "recordings: recordings must be made by root (network namespaces, tc, cgroups); got user 1000"
    ]
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InputError, match="must be made on Linux"):
        require_machine()


def test_the_list_names_every_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "ddp8-nic-send" in capsys.readouterr().out


def test_scoring_a_folder_without_recordings_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--directory", str(tmp_path)]) == 2
    assert "must hold recordings; got none" in capsys.readouterr().err


def test_a_report_has_both_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.conftest import RECORDINGS

    target = tmp_path / "nic"
    target.mkdir()
    for file in (RECORDINGS / "gloo-slow-nic").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    label = json.loads((target / "label.json").read_text())
    label |= {"device": "nic", "direction": "send", "inflation": 4.0, "host": None}
    (target / "label.json").write_text(json.dumps(label))
    assert main(["score", "--directory", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "| slow_nic | 1 | 1 | 0 | 0 |" in text
    assert main(["score", "--directory", str(tmp_path), "--json", "--only", "slow_nic"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["outcome"] == "right"
