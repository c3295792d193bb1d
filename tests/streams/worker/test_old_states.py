"""A state of any version loads and goes on to the same verdicts, or is refused with a line that says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.errors import RecordError
from irregulars.state_codec import decode_state, encode_state
from irregulars.streams.job_hop.job_monitor import JobMonitor, JobMonitorState
from irregulars.streams.rank_hop.rank_monitor import RankMonitor, RankMonitorState
from irregulars.streams.snapshots.records import (
    STATE_VERSION,
    WHOLE_VERSION,
    EncodedState,
    MonitorRecord,
    decode_monitor,
)
from tests.streams.judged_streams import Outcome, found
from tests.streams.worker.recorded_states import STATES, cut

READ = (
    3,
    "3-without-lessons",
    "3-without-lasted",
    "3-without-say",
    "3-without-starts",
    2,
    "2-unpacked",
    "2-without-groups",
    "2-without-peers",
)
REFUSED = (1,)


def record(version: int | str, name: str) -> MonitorRecord:
    return decode_state((STATES / f"{version}-{name}.bin").read_bytes(), MonitorRecord, WHOLE_VERSION)


def state_of(version: int | str, name: str) -> EncodedState:
    return EncodedState(record(version, name).state)


def test_each_version_has_its_states() -> None:
    names = {f"{version}-{name}.bin" for version in (*READ, *REFUSED) for name in ("rank", "job")}
    assert {path.name for path in STATES.glob("*.bin")} == names
    assert STATE_VERSION in READ


@pytest.mark.parametrize("version", REFUSED)
@pytest.mark.parametrize("name", ["rank", "job"])
def test_a_state_that_is_read_no_more_is_refused(version: int, name: str) -> None:
    with pytest.raises(RecordError, match=rf"^version of a state must be \d+; got {version} \(.*older"):
        decode_monitor(state_of(version, name), JobMonitorState if name == "job" else RankMonitorState)


@pytest.mark.parametrize("version", READ)
def test_a_state_goes_on_to_the_same_verdicts(version: int | str) -> None:
    whole, rest = cut()
    restored, _ = cut()
    kept = record(version, "rank")
    assert (kept.epoch, kept.seen) == (3, {"commops": 17})
    rank, job = (
        decode_monitor(EncodedState(kept.state), RankMonitorState),
        decode_monitor(state_of(version, "job"), JobMonitorState),
    )
    restored.ranks[2] = RankMonitor.from_state(rank, restored.settings)
    restored.monitor = JobMonitor.from_state(job, restored.settings)
    assert [verdict.state for verdict in whole.outcome.revisions][-1] == "open"
    goes_on, wanted = restored.feed(rest), whole.feed(rest)
    if version != STATE_VERSION:  # how long the cause lasted was not counted: until then it is reckoned
        for one, other in zip(goes_on.revisions, wanted.revisions[-len(goes_on.revisions) :], strict=True):
            assert one.lasted_s == pytest.approx(other.lasted_s, rel=0.03)
        goes_on, wanted = _without_lasted(goes_on), _without_lasted(wanted)
    assert found(goes_on) == found(wanted)
    assert [verdict.state for verdict in whole.outcome.revisions][-1] == "closed"


def _without_lasted(outcome: Outcome) -> Outcome:
    parts = [replace(part, verdicts=[replace(one, lasted_s=None) for one in part.verdicts]) for part in outcome.parts]
    return replace(outcome, parts=parts)


@pytest.mark.parametrize("version", READ)
def test_a_state_is_written_again_as_it_was_read(version: int | str) -> None:
    for name, kind in (("rank", RankMonitorState), ("job", JobMonitorState)):
        value = encode_state(decode_monitor(state_of(version, name), kind), STATE_VERSION)
        assert encode_state(decode_monitor(EncodedState(value), kind), STATE_VERSION) == value


def test_todays_code_writes_what_stands_there() -> None:
    """Else a class of the state has changed, and `STATE_VERSION` is to be raised or the files are to be made anew."""
    job, _ = cut()
    for name, monitor in (("rank", job.ranks[2]), ("job", job.monitor)):
        assert encode_state(monitor.state(), STATE_VERSION) == record(STATE_VERSION, name).state
