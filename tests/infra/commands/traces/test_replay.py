from __future__ import annotations

from pathlib import Path

from irregulars.infra.commands.traces.replay import rename_job
from irregulars.producers.trace.directory import read_trace
from irregulars.streams.messages.records import SCHEMAS
from tests.infra.test_cli import Run, run

__all__ = ["run"]  # the fixture

RECORDING = Path(__file__).resolve().parents[3] / "recordings" / "gloo-clean"


def test_a_renamed_job_has_its_name_in_every_record() -> None:
    trace = rename_job(read_trace(RECORDING), "other", 3)
    batches = [batch.header for schema in SCHEMAS for batch in trace.batches(schema).values()]
    assert batches
    assert {(one.job, one.attempt) for one in [trace, *trace.announcements, *batches]} == {("other", 3)}


def test_without_a_name_the_job_keeps_its_own() -> None:
    trace = read_trace(RECORDING)
    assert rename_job(trace, None, None).job == trace.job


def test_a_speed_below_zero_is_one_line(run: Run) -> None:
    status, _, err = run("replay", str(RECORDING), "--speed", "-1")
    assert status == 2
    assert "speed must be a number of at least 0; got -1" in err
