"""What ``irregulars thresholds`` refuses before it asks a broker."""

from __future__ import annotations

import pytest

from tests.infra.conftest import Run, refused

NOWHERE = ("--reason", "a test", "--bootstrap", "127.0.0.1:1")
PATIENCE = "silence_s must be 60 or more, since jobs pause for a checkpoint; got 1. If you mean it: --force"


@pytest.mark.parametrize(
    ("assignment", "complaint"), [("silence_s=1", PATIENCE), ("window=5", "window"), ("delta=0.9", "delta must be")]
)
def test_what_would_report_every_job_or_cannot_change_is_refused(run: Run, assignment: str, complaint: str) -> None:
    assert complaint in refused(run, "thresholds", "set", assignment, *NOWHERE)


def test_a_short_silence_that_is_meant_goes_on_to_the_broker(run: Run) -> None:
    status, _, said = run("thresholds", "set", "silence_s=1", "--force", *NOWHERE)
    assert (status, said.partition(" must answer")[0]) == (2, "irregulars: Kafka at 127.0.0.1:1")
