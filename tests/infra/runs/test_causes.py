"""Recorded causes of a rank's own delay: `analyze` names rank, layer and cause, or no cause where none is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import layer_of
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.advice import plan_of
from tests.producers.trace_directories import RECORDINGS

pytestmark = pytest.mark.slow

CAUSES = RECORDINGS / "causes"
FAULTS = sorted(path.parent.name for path in CAUSES.glob("*/label.json") if path.parent.name != "clean")


def costliest_accusation(verdicts: Sequence[Verdict]) -> Verdict:
    return max((one for one in verdicts if one.suspects), key=lambda one: one.lost_s)


@pytest.mark.parametrize("name", FAULTS)
def test_a_recorded_cause_is_named(name: str) -> None:
    truth = json.loads((CAUSES / name / "label.json").read_text())
    verdicts = analyze(read_trace(CAUSES / name)).verdicts
    verdict = costliest_accusation(verdicts)
    # The transfers of a rank that is kept off its processor are slow as well, for no cause of their own.
    assert "network" not in {one.layer for one in verdicts if one.severity != "note"}
    assert (verdict.kind, list(verdict.suspects[0].ranks)) == ("slow_rank", truth["ranks"])
    assert (verdict.cause, verdict.layer) == (truth["cause"], layer_of("slow_rank", truth["cause"]))
    assert (verdict.cause_share or 1.0) >= 0.8
    assert not {"cordon", "drain"} & set(plan_of(verdict).actions)


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "compute"])
def test_without_pauses_the_same_rank_is_named_and_no_cause(name: str, tmp_path: Path) -> None:
    for path in (CAUSES / name).glob("*.*"):
        if path.stem not in ("pauses", "label"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    before, after = (costliest_accusation(analyze(read_trace(one)).verdicts) for one in (CAUSES / name, tmp_path))
    assert before.verdict_id == after.verdict_id
    assert (before.kind, before.iterations) == (after.kind, after.iterations)
    assert (after.cause, after.layer) == (None, "unknown")


def test_a_healthy_job_has_no_verdict_above_a_note() -> None:
    assert [one for one in analyze(read_trace(CAUSES / "clean")).verdicts if one.severity != "note"] == []
