"""Hangs as people report them (`traces/field`), one row a case: what the right answer must hold."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from irregulars.messages.judgements import Suspect, Verdict
from irregulars.sinks.advice import advise
from tests.conftest import find_shared_trace
from tests.infra.test_cli import Run, run

__all__ = ["run"]  # the fixture


@dataclass(frozen=True)
class Right:
    """The right answer of a case."""

    kind: str | None  # of the one verdict; None: there is none, and a reason
    ranks: tuple[int, ...] = ()  # of its first suspect; empty: it names nobody
    words: tuple[str, ...] = ()  # that its evidence, or the reason, holds
    place: dict[str, Any] = field(default_factory=dict)  # fields of the suspect
    says: tuple[str, ...] = ()  # words of what it says of the files


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
        says=("took 1 training log: 2 ranks of 4; nothing of ranks 1-2",),
    ),
    "hang-13-ras-text/a": Right("hang", (2,), ("all_gather 641",), {"host": "10.0.0.1", "gpu": 2}),
    "hang-13-ras-text/b": Right("hang", (2,), (), {"host": "10.0.0.1", "gpu": 2}, ("process 102 on 10.0.0.1",)),
    "hang-14-ras-dead-process/answers": Right(
        "hang", (1,), (), {"host": "10.0.0.1", "gpu": 1}, ("GPU 1 of process 1524345 on 10.0.0.1",)
    ),
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
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_right(run: Run, case: str) -> None:
    name, _, inside = case.partition("/")
    status, out, err = run("analyze", str(find_shared_trace(f"field/{name}") / inside), "--json")
    right, found = CASES[case], json.loads(out)
    assert status == 0
    assert err.count("\n") <= 6
    for word in right.says:
        assert word in err
    if right.kind is None:
        assert found["verdicts"] == []
        text = found["unjudged_reason"]
    else:
        (verdict,) = found["verdicts"]
        assert verdict["kind"] == right.kind
        assert tuple(rank for one in verdict["suspects"][:1] for rank in one["ranks"]) == right.ranks
        assert verdict["severity"] == "page"
        assert verdict["time_ns"] is None or verdict["time_ns"] > 0
        for key, value in right.place.items():
            assert verdict["suspects"][0][key] == value
        text = verdict["evidence"]
        if right.kind == "mismatch" or not right.ranks:
            assert not any(one["host"] for one in verdict["suspects"])
            assert "cordon" not in _advice(verdict)
    for word in right.words:
        assert word in text


def _advice(values: dict[str, Any]) -> str:
    suspects = tuple(Suspect(**{**one, "ranks": tuple(one["ranks"])}) for one in values["suspects"])
    verdict = Verdict("v", 1, "open", "j", values["kind"], (0, 1), 1.0, 0.0, None, suspects, "", severity="page")
    return advise(verdict)
