"""Benchmarks as processes: one that fails, hangs or is missing holds up no other."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.benchmarks.table import running
from tests.benchmarks.table.figures import Program
from tests.benchmarks.table.running import run, run_all


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules of benchmarks in a folder of the test's own."""
    codes = {
        "good": "print('a table'); open(sys.argv[-1], 'w').write('{\"value\": 2}')",
        "bad": "print('before'); sys.exit('it broke')",
        "wrong": "open(sys.argv[-1], 'w').write('[1]'); sys.exit(1)",
        "slow": "import time; print('begun', flush=True); time.sleep(60)",
    }
    for name, code in codes.items():
        (tmp_path / f"bench_of_ours_{name}.py").write_text(f"import sys\n{code}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def program(name: str, limit_s: float = 30.0) -> Program:
    return Program(name, f"bench_of_ours_{name}", ("--some", "option"), limit_s)


def test_each_is_run_and_none_holds_up_another(programs: Path) -> None:
    names = ["bad", "missing", "wrong", "good"]
    found = {one.program.name: one for one in run_all([program(name) for name in names], programs / "out")}
    assert {name: (one.told, one.problem) for name, one in found.items()} == {
        "bad": (None, "failed, status 1: it broke"),
        "missing": (None, "not there (bench_of_ours_missing)"),
        "wrong": ([1], "failed, status 1: it said nothing"),
        "good": ({"value": 2}, None),
    }
    assert (programs / "out" / "good.log").read_text() == "a table\n"


def test_what_takes_too_long_is_ended(programs: Path) -> None:
    began_s = time.monotonic()
    assert run(program("slow", 1.0), programs).problem == "ended after 1 s"
    assert time.monotonic() - began_s < 45  # it would sleep for 60


def test_figures_of_an_earlier_run_are_not_taken_for_this_one_s(programs: Path) -> None:
    (programs / "bad.json").write_text("{}")
    assert run(program("bad"), programs).told is None


def test_json_of_earlier_runs_can_be_taken_again(programs: Path) -> None:
    names = ("good", "wrong", "bad")
    before = [run(program(name), programs) for name in names]
    found = list(running.kept([program(name) for name in names], programs))
    assert [(one.told, one.problem) for one in found] == [(one.told, one.problem) for one in before if one.told]


def test_ctrl_c_ends_the_benchmark_that_runs(programs: Path) -> None:
    code = f"""
        from pathlib import Path
        from tests.benchmarks.table.figures import Program
        from tests.benchmarks.table.running import run
        try:
            run(Program("slow", "bench_of_ours_slow", limit_s=60), Path({str(programs)!r}))
        except KeyboardInterrupt:
            print("interrupted")
    """
    root = Path(running.__file__).resolve().parents[3]
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    while not (programs / "slow.log").exists() or not (programs / "slow.log").read_text():
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0] == "interrupted\n"
