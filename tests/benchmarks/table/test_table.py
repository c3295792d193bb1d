"""The table of all figures: what is run, read, compared, kept and drawn; and sizes of an installation."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import textwrap
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.agent_settings import NicsTable
from tests.benchmarks.table import __main__ as command
from tests.benchmarks.table import growth, running
from tests.benchmarks.table.comparing import (
    Line,
    against_committed,
    committed_lines,
    committed_table,
    lines_of,
    merged,
    read,
    read_committed,
)
from tests.benchmarks.table.figures import FIGURES, PROGRAMS, Figure, Program
from tests.benchmarks.table.running import Outcome, run, run_all
from tests.benchmarks.table.sizing import (
    DAY_S,
    GPU_ROWS_PER_S,
    SAMPLE_KAFKA_BYTES,
    SAMPLE_US,
    Site,
    page_part,
    partitions_for,
    size,
)
from tests.conftest import ROOT

WORKER = next(one for one in PROGRAMS if one.name == "worker")
TOLD = {
    "batches": 4000, "operators": 8_000_000, "size_bytes": 400_000_000,
    "took_s": {
        "confluent-kafka, reading": 0.2, "Faust agent, counting bytes": 1.0, "worker, broker to evidence": 4.0,
    },
}  # fmt: skip


def figure(*, must: float | None = None, is_more_better: bool = True, is_ratio: bool = True) -> Figure:
    return Figure("ratio", "of Faust", "", "program", float, must, is_more_better, is_ratio)


# --- figures --------------------------------------------------------------------------------------------------------


def test_every_program_gives_figures_and_every_figure_has_a_program_and_a_key() -> None:
    assert {one.program for one in FIGURES} == {one.name for one in PROGRAMS}
    assert len({one.key for one in FIGURES}) == len(FIGURES)
    assert command.chosen(None, True) == list(PROGRAMS)
    assert 0 < len(command.chosen(None, False)) < len(PROGRAMS)


def test_the_figures_of_a_benchmark_are_read_from_its_json() -> None:
    values = {line.figure.key: line.value for line in lines_of([Outcome(WORKER, TOLD)], {})}
    assert values == pytest.approx(
        {"worker": 2.0, "worker_of_faust": 0.25, "worker_of_plain": 0.05, "operator_bytes": 50.0}
    )


@pytest.mark.parametrize(("told", "problem", "value", "said"), [
    ("x", None, None, "not in its JSON (ValueError: could not convert string to float: 'x')"),
    (math.nan, None, None, "must be a number; got nan"),
    (None, None, None, "it wrote no JSON"),
    (2.0, "failed, status 1: x", 2.0, "failed, status 1: x"),
])  # fmt: skip
def test_a_value_that_is_doubtful_says_why(told: Any, problem: str | None, value: float | None, said: str) -> None:
    assert read(figure(), Outcome(Program("program", "tests.none"), told, problem)) == (value, said)


@pytest.mark.parametrize(
    ("value", "is_more_better", "is_reached", "is_worse"),
    [(0.81, True, True, False), (0.79, True, False, True), (1.19, False, False, False), (1.21, False, False, True),
     (0.8, False, True, False), (5.0, True, True, False)],
)  # fmt: skip
def test_ratios_have_a_limit_and_worsen(value: float, is_more_better: bool, is_reached: bool, is_worse: bool) -> None:
    line = Line(figure(must=0.8, is_more_better=is_more_better), value, 1.0)
    assert (line.is_reached, line.is_worse) == (is_reached, is_worse)
    assert not Line(figure(is_more_better=is_more_better, is_ratio=False), value, 1.0).is_worse
    assert Line(figure(), value, 1.0).is_reached is Line(figure(must=1.0), None, 1.0).is_reached is None


def test_what_is_committed_keeps_the_figures_of_what_was_not_run() -> None:
    before = {"figures": {"stored": 5.0, "worker": 1.0}, "commits": {"stored": "aaa", "worker": "aaa"}}
    before |= {"problems": {"worker": "failed", "idle": "not there"}}
    found = merged(before, [Outcome(WORKER, TOLD)], {"cores": 2}, "bbb")
    assert (found["figures"]["stored"], found["figures"]["worker"]) == (5.0, 2.0)
    assert (found["commits"]["stored"], found["commits"]["worker"]) == ("aaa", "bbb")
    assert found["problems"] == {"idle": "not there"}
    lines = committed_lines(found)
    assert [line.figure for line in lines] == list(FIGURES)
    problems = {line.figure.program: line.problem for line in lines}
    assert (problems["idle"], problems["agent"]) == ("not there", "not measured")


def test_a_run_stands_beside_what_was_committed() -> None:
    rate = Figure("rate", "worker", "M operators/s", "worker", float, None, True)
    delay = Figure("delay", "alert", "s", "alerts", float, 2.0)
    lines = [Line(rate, 2.0, 4.0), Line(figure(must=0.6), 0.3, 0.65), Line(delay, None, 1.5, "not there (x)")]
    assert against_committed(lines).splitlines()[2:] == [
        "| worker | 2.00 | M operators/s |  |  | 4.00 | (-50%) |",
        "| of Faust | 0.300 | ratio | ≥ 0.6 | **no**, **54% worse** | 0.650 | -54% |",
        "| alert | - | s | ≤ 2 |  | 1.50 |  |",
        "",
        "* alerts: not there (x)",
        "* 2 of 3 figures; 1 are not what they must be.",
        "* Worse than the committed ratio by more than 20%: of Faust.",
    ]
    found = committed_table({"machine": read_committed()["machine"], "commits": {"ratio": "abc1234"}}, lines[1:])
    assert found.splitlines()[-2:] == [
        "| of Faust | 0.300 | ratio | ≥ 0.6 | **no**, **54% worse** | abc1234 |",
        "| alert | - | s | ≤ 2 |  | not there (x) |",
    ]


def test_ctrl_c_prints_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(programs: Sequence[Program], folder: Path) -> Iterator[Outcome]:
        yield Outcome(programs[0], {"help": {"took_s": 0.2, "cpu_s": 0.1}, "analyze": {"took_s": 0.5, "cpu_s": 0.4}})
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_all", interrupted)
    assert command.main(["--only", "command-line", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "| `irregulars --help` | 0.200 | s | ≤ 0.25 | yes |" in out
    assert "4 of 4 figures; 0 are not what they must be." in out


# --- processes ------------------------------------------------------------------------------------------------------


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
    (programs / "bad.json").write_text("{}")  # of an earlier run: not taken for this one's
    names = ["bad", "missing", "wrong", "good"]
    found = {one.program.name: one for one in run_all([program(name) for name in names], programs)}
    assert {name: (one.told, one.problem) for name, one in found.items()} == {
        "bad": (None, "failed, status 1: it broke"),
        "missing": (None, "not there (bench_of_ours_missing)"),
        "wrong": ([1], "failed, status 1: it said nothing"),
        "good": ({"value": 2}, None),
    }
    assert (programs / "good.log").read_text() == "a table\n"
    again = list(running.kept([program(name) for name in names], programs))
    assert again == [found["wrong"], found["good"]]


def test_what_takes_too_long_is_ended(programs: Path) -> None:
    began_s = time.monotonic()
    assert run(program("slow", 1.0), programs).problem == "ended after 1 s"
    assert time.monotonic() - began_s < 45  # it would sleep for 60


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
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    while not (programs / "slow.log").exists() or not (programs / "slow.log").read_text():
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    # A benchmark that a signal reaches just before it sleeps is killed, 20 s later
    assert process.communicate(timeout=45)[0] == "interrupted\n"


# --- the plot -------------------------------------------------------------------------------------------------------


def test_the_picture_can_be_drawn_of_the_committed_sizes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sizes = json.loads(growth.SIZES.read_text())
    assert growth.taken_in(sizes[::2], sizes[1:]) == sizes
    growth.draw(sizes, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes()[:4] == growth.PICTURE.read_bytes()[:4] == b"\x89PNG"
    assert re.search(rf"!\[[^\]]+\]\({growth.PICTURE.name}\)", (growth.DOCS / "benchmarks.md").read_text())


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_a_worked_example() -> None:
    figures = {
        "worker_core": 2.0, "rank_cost_8192": 50.0, "rank_second": 100.0, "operator_compressed": 8.0,
        "evidence_bytes": 80.0, "read_share": 1.0, "stored_bytes": 16.0, "idle": 256.0, "rank_state": 10.0,
        "rank_open": 40.0, "memory_100000": 1.0,
    }  # fmt: skip
    site = Site(operators_per_s=200.0, iteration_s=2.0, nic_period_ms=100.0, used_ratio=0.5, replicas=3)
    found = size(10_000, site, figures)
    assert found.cores == pytest.approx(10_000 * (200 / 2e6 + 50e-6 / 2 + 100e-6 + 10 * SAMPLE_US * 1e-6))  # 2.29
    assert (found.workers, found.partitions) == (5, 16)
    assert found.rows_per_s == pytest.approx(10_000 * (1 / 2 + 200 * 0.01 + 10 + GPU_ROWS_PER_S))
    on_kafka = (200 * 8 + 10 * SAMPLE_KAFKA_BYTES) * 2 + 80 / 2 * 7
    assert found.kafka_gib * 2**30 == pytest.approx(3 * DAY_S * 10_000 * on_kafka)
    stored = (1 / 2 + 2) * 30 + (10 + GPU_ROWS_PER_S) * 7
    assert found.clickhouse_gib * 2**30 == pytest.approx(DAY_S * 10_000 * 16 * stored)
    assert found.memory_gib == pytest.approx(256 / 1024 + 1.5 * 2_000 * 50 / 2**20 + 0.1)
    assert size(8, site, figures).workers == 2  # so that one may be lost


def test_there_are_two_partitions_for_each_worker_or_more() -> None:
    for workers in range(1, 70):
        assert 2 * workers <= partitions_for(workers) <= max(8, 4 * workers)


def test_the_pages_say_the_same() -> None:
    figures = read_committed()["figures"]
    shipped = size(8_192, Site(), figures)
    guide, operating = ((growth.DOCS / name).read_text() for name in ("install.md", "operating.md"))
    (daily,) = re.findall(r"^\| `bandwidth` \|.* ([\d,]+) \|$", operating, re.MULTILINE)
    per_day = DAY_S * Site().samples_per_s * figures["stored_bytes"]
    assert float(daily.replace(",", "")) == pytest.approx(per_day, rel=0.02)
    (workers,) = re.findall(r"8,192 GPUs.*\| (\w+) workers", guide)
    assert (workers, shipped.workers) == ("thirteen", 13)
    assert shipped.memory_gib < 1.0, "half of the kit's limit"
    assert "| 100,000 |" in page_part()
    agent = tomllib.loads((ROOT / "infra" / "node" / "agent.toml").read_text())
    assert Site().nic_period_ms == NicsTable().period_ms == agent["nics"]["period_ms"]
