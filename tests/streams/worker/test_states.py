"""A state that stands in a snapshot topic goes on to the same verdicts; one of another version is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from irregulars.errors import RecordError
from irregulars.state_codec import encode_state
from irregulars.streams.job_hop.job_monitor import JobMonitor, JobMonitorState
from irregulars.streams.rank_hop.rank_monitor import RankMonitor, RankMonitorState
from irregulars.streams.snapshots.records import (
    STATE_VERSION,
    EncodedState,
    MonitorRecord,
    decode_monitor,
    decode_record,
)
from tests.streams.judged_streams import found
from tests.streams.worker.recorded_states import STATES, cut


def record(name: str) -> MonitorRecord:
    kept = decode_record(b"j", (STATES / f"{name}.bin").read_bytes())
    assert isinstance(kept, MonitorRecord)
    return kept


def test_a_stored_state_goes_on_to_the_same_verdicts() -> None:
    whole, rest = cut()
    restored, _ = cut()
    kept = record("rank")
    assert (kept.epoch, kept.seen) == (3, {"commops": 17})
    rank = decode_monitor(EncodedState(kept.state), RankMonitorState)
    job = decode_monitor(EncodedState(record("job").state), JobMonitorState)
    restored.ranks[2] = RankMonitor.from_state(rank, restored.settings)
    restored.monitor = JobMonitor.from_state(job, restored.settings)
    assert [verdict.state for verdict in whole.outcome.revisions][-1] == "open"
    assert found(restored.feed(rest)) == found(whole.feed(rest))
    assert [verdict.state for verdict in whole.outcome.revisions][-1] == "closed"


def test_a_verdict_that_an_older_worker_opened_goes_on_against_its_mean() -> None:
    restored, rest = cut()
    job = decode_monitor(EncodedState(record("job").state), JobMonitorState)
    assert job.judge is not None
    assert job.judge.healthy_before is not None
    before = job.judge.healthy_before._replace(usual_ns=math.nan)
    restored.monitor = JobMonitor.from_state(
        replace(job, judge=replace(job.judge, healthy_before=before)), restored.settings
    )
    closed = restored.feed(rest).revisions[-1]
    assert closed.delta == pytest.approx(42.04 / 12.1, rel=0.02)
    state = restored.monitor.state().judge
    assert state is not None
    assert state.healthy_before is not None
    assert state.healthy_before.usual_ns == before.mean_ns


def test_todays_code_writes_the_stored_states() -> None:
    """Else a class of the state has changed: raise `STATE_VERSION` after a release, and make the files anew."""
    job, _ = cut()
    for name, monitor in (("rank", job.ranks[2]), ("job", job.monitor)):
        assert encode_state(monitor.state(), STATE_VERSION) == record(name).state


def test_a_state_of_another_version_is_refused() -> None:
    job, _ = cut()
    value = encode_state(job.monitor.state(), STATE_VERSION + 1)
    with pytest.raises(RecordError, match=rf"^version of a state must be {STATE_VERSION}; got {STATE_VERSION + 1}"):
        decode_monitor(EncodedState(value), JobMonitorState)
