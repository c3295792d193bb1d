"""Hangs, traces and logs as people have them (`traces/field`), one row a case: what the right answer must hold."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from irregulars.messages.judgements import Suspect, Verdict
from irregulars.sinks.advice import advise
from tests.conftest import find_shared_trace
from tests.infra.conftest import Run, refused


@dataclass(frozen=True)
class Right:
    """The right answer of a case."""

    kind: str | None  # of the one verdict; None: there is none
    ranks: tuple[int, ...] = ()  # of its first suspect; empty: it names nobody
    words: tuple[str, ...] = ()  # that its evidence holds; else the reason, and what was counted all the same
    place: dict[str, Any] = field(default_factory=dict)  # fields of the suspect
    says: tuple[str, ...] = ()  # words of what it says of the files
    first: int | None = None  # iteration with which the verdict begins
    iterations: int | None = None


CASES = {
    # the program: sizes, operators, one call more, the order of sends
    "hang-01-size-mismatch/dumps": Right("mismatch", (3,), ("all_gather of 640 B", "576 B", "call 3 on default_pg")),
    "hang-02-operator-mismatch/dumps": Right("mismatch", (2,), ("rank 2 called all_gather", "ranks 0-1, 3 called")),
    "hang-03-extra-collective/dumps": Right("mismatch", (), ("call 3", "which rank 0 made", "rank 1 lacks")),
    "hang-19-sends-to-each-other/dumps": Right("mismatch", (), ("a circle of 2 sends", "order of calls")),
    "trace-06-size-mismatch-8/in": Right("mismatch", (3, 6), ("1.05 MB", "4.1 kB", "call 38")),
    # a rank is missing, whatever the names, folders and numbers
    "hang-04-timed-out-is-retired/dumps": Right("hang", (2,), ("never arrived in all_reduce 3",)),
    "hang-09-worker-in-host-name/a": Right("hang", (1,), ("never arrived in all_reduce 2",)),
    "hang-09-worker-in-host-name/b": Right("hang", (2,), ("never arrived in all_reduce 2",)),
    "hang-12-watchdog-text/log": Right(
        "hang", (0,), ("2 calls behind rank 3", "reduce_scatter 619727", "ranks 1-2 log nothing"),
        says=("took 1 training log: 2 ranks of 4; nothing of ranks 1-2",)),
    "hang-13-ras-text/a": Right("hang", (2,), ("all_gather 641",), {"host": "10.0.0.1", "gpu": 2}),
    "hang-13-ras-text/b": Right("hang", (2,), (), {"host": "10.0.0.1", "gpu": 2}, ("process 102 on 10.0.0.1",)),
    "hang-14-ras-dead-process/answers": Right("hang", (1,), (), {"host": "10.0.0.1", "gpu": 1},
                                              ("GPU 1 of process 1524345 on 10.0.0.1",)),
    "hang-14-ras-dead-process/answers/2.json": Right("hang", (1,), (), {"host": "10.0.0.1", "gpu": 1}),
    "hang-18-ras-time/answers": Right("hang", (0,), ("all_gather 6553",)),
    "hang-22-folders-and-archives/a": Right("hang", (2,), ("all_reduce 2",), says=("4 ranks of 4",)),
    "hang-22-folders-and-archives/b.tar.gz": Right("hang", (2,), ("all_reduce 2",), says=("4 ranks of 4",)),
    "trace-23-two-pods/in": Right("hang", (11,), ("15 ranks wait",)),
    # nobody stands out
    "hang-10-torchcomms-numbers/dumps": Right("hang", (), ("all_reduce 2", "nobody is missing")),
    "hang-17-ras-most-behind/answers": Right("hang", (), ("more ranks than wait for them",)),
    "hang-24-all-inside/dumps": Right("hang", (), ("stand in all_reduce 3", "nobody is missing")),
    "trace-08-ras-most-behind-32/in": Right("hang", (), ("more ranks than wait for them",)),
    "hang-05-nothing-open/dumps": Right(None, (), ("nobody waits in a collective", "all_gather 3", "outside")),
    # marks of the CPU lead the kernels
    "trace-01-marks-lead-30ms/in": Right("slow_rank", (2,), first=27, iterations=24),
    "trace-02-marks-lead-12ms/in": Right("slow_rank", (5,), first=27, iterations=24),
    # collectives of other libraries
    "trace-11-rccl-name-allreduce/in": Right("slow_rank", (2,), first=27, iterations=24),
    "trace-12-rccl-name-all/in": Right("slow_rank", (2,), first=27, iterations=24),
    "trace-14-hccl-left-out/in": Right(None, says=("not used: 4 × hccl:allgather",)),
    # whose trace is it, and who is missing
    "trace-15-steps-repeat/in": Right("slow_rank", (2,), first=13, iterations=24,
                                      says=("8 Kineto traces: 4 ranks of 4",)),
    "trace-17-local-ranks-of-two-nodes/in": Right("slow_rank", (6,), first=27, iterations=24, says=("8 ranks of 8",)),
    "trace-19-unnamed-groups-one-of-8/in": Right(
        None, iterations=24, says=("1 rank of 8; nothing of ranks 1-7",),
        words=("of 8 ranks only rank 0 is logged",)),
    "trace-21-late-rank-not-traced/in": Right(
        None, iterations=24, says=("7 ranks of 8; nothing of rank 5",),
        words=("rank 5 is not logged", "its log is needed")),
    "trace-25-one-cut-off/in": Right(
        None, iterations=24,
        says=("3 ranks of 4; nothing of rank 3", "left out rank3_trace.json: must be a complete trace")),
    "trace-30-four-of-eight/in": Right("slow_rank", (2,), first=27, iterations=24,
                                       says=("4 ranks of 8; nothing of ranks 4-7",)),
    # too few for a verdict, and yet what was counted
    "trace-28-few-steps/in": Right(
        None, iterations=3,
        words=("3 training iterations are too few", "rank 2 was last in all 3 of the 2nd all_reduces")),
    "hang-21-inspector-gaps/logs": Right(None, words=("rank 3 lacks 6, rank 1 lacks 4",)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_right(run: Run, case: str) -> None:
    name, _, inside = case.partition("/")
    source, right = str(find_shared_trace(f"field/{name}") / inside), CASES[case]
    status, out, err = run("analyze", source, "--json")
    found = json.loads(out)
    assert status == 0
    assert err.count("\n") <= 6 or right.iterations is not None
    assert [word for word in right.says if word not in err] == []
    assert right.iterations in (None, found["iterations"])
    if right.kind is None:
        assert found["verdicts"] == []
        text = run("analyze", source)[1] if right.words else ""
    else:
        (verdict,) = found["verdicts"]
        assert (verdict["kind"], tuple(rank for one in verdict["suspects"][:1] for rank in one["ranks"])) == (
            right.kind, right.ranks,
        )  # fmt: skip
        assert right.first in (None, verdict["iterations"][0])
        text = verdict["evidence"]
        for key, value in right.place.items():
            assert verdict["suspects"][0][key] == value
        if right.kind != "slow_rank":
            assert verdict["severity"] == "page"
            assert verdict["time_ns"] is None or verdict["time_ns"] > 0
        if right.kind == "mismatch" or not right.ranks:
            assert not any(one["host"] for one in verdict["suspects"])
            assert "cordon" not in _advice(verdict)
    assert [word for word in right.words if word not in text] == []


def _advice(values: dict[str, Any]) -> str:
    suspects = tuple(Suspect(**{**one, "ranks": tuple(one["ranks"])}) for one in values["suspects"])
    verdict = Verdict("v", 1, "open", "j", values["kind"], (0, 1), 1.0, 0.0, None, suspects, "", severity="page")
    return advise(verdict)


def test_a_trace_of_another_tool_is_refused_by_the_name_of_that(run: Run) -> None:
    source = find_shared_trace("field/trace-26-chrome-list-form") / "in"
    for arguments in (("analyze", str(source)), ("import", "kineto", str(source), "out")):
        assert "got a trace of NCCL's example profiler plugin" in refused(run, *arguments)
