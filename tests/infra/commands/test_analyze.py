from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import pytest

from irregulars.infra.runs.analysis import analyze
from irregulars.producers.trace.directory import read_trace
from tests.conftest import RECORDINGS
from tests.infra.conftest import Run, refused

APART = "Irregular: longer than delta times the window before, which learns what lasts. Slow, in the evidence:"


def test_people_read_device_chance_and_evidence_and_how_to_see_them_on_one_screen(run: Run) -> None:
    status, out, _ = run("analyze", str(RECORDINGS / "gloo-slow-nic"))
    assert status == 0
    assert "slow_nic in iterations 60 to" in out
    assert "eth0 on node-1" in out
    assert "%" in out
    assert APART not in " ".join(out.split())
    recording = str(RECORDINGS / "gloo-slow-nic")
    _, out, _ = run("--set", "grace_s=31", "analyze", recording, "--delta", "1.25")
    assert out.rstrip().endswith(f" --set grace_s=31 --set delta=1.25 show {recording}")


def test_only_irregular_iterations_count_as_irregular(run: Run) -> None:
    out = run("analyze", str(RECORDINGS / "gloo-slow-rank"))[1]
    found = analyze(read_trace(RECORDINGS / "gloo-slow-rank"))
    irregular = sum(one.is_irregular is True for one in found.iterations)
    joined = sum(past - first for first, past in found.irregular_ranges)
    assert irregular < joined, "ranges join over regular iterations"
    assert f"{irregular} of them irregular (within 38 to 40, " in out


def test_nobody_is_blamed_in_words_and_irregular_and_slow_are_told_apart(run: Run) -> None:
    status, out, _ = run("analyze", str(RECORDINGS / "gloo-clean"))
    assert status == 0
    assert "Nobody to blame: no cause was clear at once" in out
    assert APART in " ".join(run("analyze", str(RECORDINGS / "gloo-slow-compute"))[1].split())
    assert "commops" in refused(run, "analyze", str(RECORDINGS / "gloo-clean"), "--without", "job")


def test_irregular_iterations_without_a_verdict_are_told_by_what_took_longest(run: Run) -> None:
    status, out, _ = run("analyze", str(RECORDINGS / "bench" / "ddp8-pauses"))
    assert status == 0
    out = " ".join(out.split())
    assert "2 (41, 57): up to: rank 1 worked 138 ms before all_reduce on world (usual 55.7 ms)" in out
    parts = json.loads(run("analyze", str(RECORDINGS / "bench" / "ddp8-pauses"), "--json")[1])["irregular_parts"]
    assert [one["iterations"] for one in parts] == [[41, 57], [19], [54], [62]]
    assert (parts[0]["what"], parts[0]["rank"], parts[0]["operator"]) == ("work", 1, "all_reduce")


def test_what_can_not_be_judged_says_why(run: Run, tmp_path: Path) -> None:
    shutil.copytree(RECORDINGS / "gloo-clean", tmp_path / "trace")
    for name in ("commops", "iterations"):
        (path,) = (tmp_path / "trace").glob(f"{name}.parquet")
        rows = pyarrow.parquet.read_table(path)
        pyarrow.parquet.write_table(rows.filter(pa.compute.less(rows["iteration"], 1)), path)
    status, out, _ = run("analyze", str(tmp_path / "trace"))
    assert status == 0
    assert "Cannot judge, because 1 training iteration is too few" in out
    assert "Nobody to blame" not in out
    assert (
        "1 training iteration is too few"
        in json.loads(run("analyze", str(tmp_path / "trace"), "--json")[1])["unjudged_reason"]
    )


@pytest.mark.parametrize(("name", "blamed"), [
    ("gloo-slow-rank", [("slow_rank", "gpu", [2])]), ("gloo-slow-nic", [("slow_nic", "nic", [1])]),
    ("gloo-slow-link", [("slow_link", "link", [1, 3])]), ("gloo-clean", []),
])  # fmt: skip
def test_without_marks_the_same_device_is_blamed_and_one_line_says_what_was_inferred(
    run: Run, tmp_path: Path, name: str, blamed: list[tuple[str, str, list[int]]]
) -> None:
    table = pyarrow.parquet.read_table(RECORDINGS / name / "commops.parquet")
    at = table.schema.get_field_index("iteration")
    table = table.set_column(at, "iteration", pa.nulls(len(table), pa.int64()))
    pyarrow.parquet.write_table(table, tmp_path / "commops.parquet")
    shutil.copy(RECORDINGS / name / "job.json", tmp_path)
    status, out, err = run("analyze", str(tmp_path), "--json")
    assert status == 0
    verdicts = json.loads(out)["verdicts"]
    assert [(v["kind"], v["suspects"][0]["device"], v["suspects"][0]["ranks"]) for v in verdicts] == blamed
    assert err == f"irregulars: {name}: no iterations are marked; inferred 160 from the operators on world\n"


def test_without_a_log_of_operators_bandwidth_alone_is_judged_if_that_is_asked_for(run: Run, tmp_path: Path) -> None:
    shutil.copytree(RECORDINGS / "gloo-slow-nic", tmp_path / "trace")
    (tmp_path / "trace" / "commops.parquet").unlink()
    status, out, err = run("analyze", str(tmp_path / "trace"), "--json")
    assert (status, out) == (2, "")
    assert "must hold commops.parquet" in err
    status, out, err = run("analyze", str(tmp_path / "trace"), "--json", "--without", "commops")
    assert (status, err) == (0, "")
    (verdict,) = json.loads(out)["verdicts"]
    assert (verdict["kind"], verdict["suspects"][0]["rank"], verdict["communicator"]) == ("slow_nic", 1, None)


@pytest.mark.parametrize("name", ["gloo-slow-nic", "gloo-slow-link", "gloo-slow-rank", "gloo-clean"])
def test_without_operators_and_iterations_nobody_is_accused_and_a_steady_nic_is_told(run: Run, name: str) -> None:
    recording = str(RECORDINGS / name)
    status, out, err = run("analyze", recording, "--json", "--without", "commops", "--without", "iterations")
    assert status == 0
    found = json.loads(out)
    assert (found["iterations"], found["verdicts"]) == (0, [])
    first, *others = err.splitlines()
    assert "no iterations are known" in first
    steady = ["NIC eth0 on node-1 (rank 1) sent a steady "] if name == "gloo-slow-nic" else []
    assert [line.split(": ", 1)[1][: len(told)] for line, told in zip(others, steady, strict=True)] == steady
