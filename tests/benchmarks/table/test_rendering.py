"""The table as Markdown."""

from __future__ import annotations

from tests.benchmarks.table.comparing import Line
from tests.benchmarks.table.figures import Figure
from tests.benchmarks.table.machine import describe
from tests.benchmarks.table.rendering import against_committed, committed_table, machine_line

RATIO = Figure("ratio", "of Faust", "", "worker", float, 0.6, True, True)
RATE = Figure("rate", "worker", "M operators/s", "worker", float, None, True)
DELAY = Figure("delay", "alert", "s", "alerts", float, 2.0)


def test_a_run_stands_beside_what_was_committed() -> None:
    lines = [Line(RATE, 2.0, 4.0), Line(RATIO, 0.3, 0.65), Line(DELAY, None, 1.5, "not there (x)")]
    assert against_committed(lines).splitlines()[2:] == [
        "| worker | 2.00 | M operators/s |  |  | 4.00 | (-50%) |",
        "| of Faust | 0.300 | ratio | ≥ 0.6 | **no**, **54% worse** | 0.650 | -54% |",
        "| alert | - | s | ≤ 2 |  | 1.50 |  |",
        "",
        "* alerts: not there (x)",
        "* 2 of 3 figures; 1 are not what they must be.",
        "* Worse than the committed ratio by more than 20%: of Faust.",
    ]


def test_a_problem_of_a_benchmark_is_told_once() -> None:
    lines = [Line(RATE, None, None, "failed"), Line(RATIO, None, None, "failed")]
    assert against_committed(lines).count("failed") == 1


def test_the_page_says_on_which_commit_each_was_measured() -> None:
    machine = {
        "cores": 2, "cpu": "EPYC", "memory_gib": 23.5, "kernel": "Linux 6.1", "versions": {"Python": "3.11.7"},
        "load": 0.5, "python_loop_s": 0.1, "numpy_loop_s": 0.1,
    }  # fmt: skip
    lines = [Line(RATIO, 0.7, None), Line(DELAY, None, None, "not measured")]
    found = committed_table({"machine": machine, "commits": {"ratio": "abc1234"}}, lines)
    assert "2 cores (EPYC), 24 GiB, Linux 6.1; Python 3.11.7." in found
    assert found.splitlines()[-2:] == [
        "| of Faust | 0.700 | ratio | ≥ 0.6 | yes | abc1234 |",
        "| alert | - | s | ≤ 2 |  | not measured |",
    ]


def test_this_machine_can_be_described() -> None:
    found = describe()
    assert found["cores"] >= 1
    assert found["versions"]["Apache Kafka"] != "unknown"
    assert str(found["versions"]["numpy"]) in machine_line(found)
