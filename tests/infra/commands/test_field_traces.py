"""Traces and logs as people have them (`traces/field`), one row a case: what the right answer must hold."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from tests.conftest import find_shared_trace
from tests.infra.test_cli import Run, run

__all__ = ["run"]  # the fixture


@dataclass(frozen=True)
class Right:
    """The right answer of a case."""

    rank: int | None = None  # of the one verdict, a slow_rank; None: there is no verdict
    first: int | None = None  # iteration with which that begins
    iterations: int | None = None
    says: tuple[str, ...] = ()  # words of what it says of the files
    words: tuple[str, ...] = ()  # words of why nothing can be judged, and of what was counted all the same


CASES = {
    # marks of the CPU lead the kernels
    "trace-01-marks-lead-30ms/in": Right(2, 27, 24),
    "trace-02-marks-lead-12ms/in": Right(5, 27, 24),
    # collectives of other libraries
    "trace-11-rccl-name-allreduce/in": Right(2, 27, 24),
    "trace-12-rccl-name-all/in": Right(2, 27, 24),
    "trace-14-hccl-left-out/in": Right(says=("not used: 4 × hccl:allgather",)),
    # whose trace is it, and who is missing
    "trace-15-steps-repeat/in": Right(2, 13, 24, ("8 Kineto traces: 4 ranks of 4",)),
    "trace-17-local-ranks-of-two-nodes/in": Right(6, 27, 24, ("8 ranks of 8",)),
    "trace-19-unnamed-groups-one-of-8/in": Right(
        iterations=24, says=("1 rank of 8; nothing of ranks 1-7",), words=("of 8 ranks only rank 0 is logged",)
    ),
    "trace-21-late-rank-not-traced/in": Right(
        iterations=24, says=("7 ranks of 8; nothing of rank 5",), words=("rank 5 is not logged", "its log is needed")
    ),
    "trace-25-one-cut-off/in": Right(
        iterations=24, says=("3 ranks of 4; nothing of rank 3", "left out rank3_trace.json: must be a complete trace")
    ),
    "trace-30-four-of-eight/in": Right(2, 27, 24, ("4 ranks of 8; nothing of ranks 4-7",)),
    # too few for a verdict, and yet what was counted
    "trace-28-few-steps/in": Right(
        iterations=3, words=("3 training iterations are too few", "rank 2 was last in all 3 of the 2nd all_reduces")
    ),
    "hang-21-inspector-gaps/logs": Right(words=("rank 3 lacks 6, rank 1 lacks 4",)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_right(run: Run, case: str) -> None:
    name, _, inside = case.partition("/")
    source, right = str(find_shared_trace(f"field/{name}") / inside), CASES[case]
    status, out, err = run("analyze", source, "--json")
    found = json.loads(out)
    assert status == 0
    for word in right.says:
        assert word in err
    if right.iterations is not None:
        assert found["iterations"] == right.iterations
    accused = [(one["kind"], one["suspects"][0]["ranks"], one["iterations"][0]) for one in found["verdicts"]]
    assert accused == ([] if right.rank is None else [("slow_rank", [right.rank], right.first)])
    if right.words:
        _, text, _ = run("analyze", source)
        for word in right.words:
            assert word in text


def test_a_trace_of_another_tool_is_refused_by_the_name_of_that(run: Run) -> None:
    source = find_shared_trace("field/trace-26-chrome-list-form") / "in"
    for arguments in (("analyze", str(source)), ("import", "kineto", str(source), "out")):
        status, out, err = run(*arguments)
        assert (status, out) == (2, "")
        assert "got a trace of NCCL's example profiler plugin" in err
