"""The live demonstration: what its training job leaves behind names the rank that was slow."""

from __future__ import annotations

import json
from pathlib import Path

from irregulars.infra.runs.analysis import analyze
from irregulars.infra.runs.published_run import RANKS, LivePlan
from irregulars.producers.trace.directory import Trace, read_trace

NAME = "torch-slow-rank"
PLAN = LivePlan()


def recorded(recordings: Path) -> Trace:
    return read_trace(recordings / NAME)


def test_the_label_says_what_the_plan_says(recordings: Path) -> None:
    label = json.loads((recordings / NAME / "label.json").read_text())
    assert (label["kind"], label["rank"], label["iterations"]) == ("slow_rank", PLAN.rank, [PLAN.first, PLAN.past])


def test_the_recording_is_whole(recordings: Path) -> None:
    trace = recorded(recordings)
    assert (trace.world_size, trace.rejected.count, trace.copies) == (RANKS, 0, 0)
    assert [one.lost_rows for one in trace.announcements] == [0] * RANKS
    assert all(len(rows) == PLAN.iterations for rows in trace.iterations.values())


def test_the_slow_rank_is_found_and_nobody_else_is_accused(recordings: Path) -> None:
    verdicts = analyze(recorded(recordings)).verdicts
    first, past = verdicts[0].iterations
    assert verdicts[0].kind == "slow_rank"
    assert [suspect.ranks for suspect in verdicts[0].suspects[:1]] == [(PLAN.rank,)]
    assert first <= PLAN.first + 2
    assert past >= PLAN.past - 2
    others = {rank for verdict in verdicts for suspect in verdict.suspects for rank in suspect.ranks} - {PLAN.rank}
    assert others == set()
