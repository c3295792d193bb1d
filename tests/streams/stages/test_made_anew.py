"""Places in topics that are other ones now: what is forgotten, and what stays."""

from __future__ import annotations

import pytest

from irregulars.streams.snapshots.published_verdicts import Told
from irregulars.streams.snapshots.records import POSITION_KEY, PositionRecord, decode_record, encode_record
from irregulars.streams.stages import made_anew
from irregulars.streams.stages.made_anew import LogEnds, Logs, TopicsNow, without_topics
from irregulars.streams.stages.partition_state import PartitionState, Tracked

STORED = PositionRecord(
    4,
    {"evidence": 90, "commops": 40},
    {"verdicts": {0: 12}, "alerts": {0: 7}},
    told=Told(anew=(b"job",), before=80),
    topic_ids={"evidence": "a", "commops": "b"},
)


def topics_now(logs: Logs, end: int = 0) -> TopicsNow:
    """Topics of which messages before `end` can be fetched."""
    rests_on = frozenset({"evidence", "commops", "job_snapshots"})
    return TopicsNow(logs, rests_on, lambda topic, partition, offset: offset < end)


def test_places_of_other_topics_stay() -> None:
    assert without_topics(STORED, {"jobs"}) == STORED


def test_of_evidence_made_anew_all_is_read_from_its_beginning() -> None:
    found = without_topics(STORED, {"evidence"})
    assert found.positions == {"commops": 40}
    assert (found.told.before, found.told.anew) == (0, (b"job",))
    assert found.ends == STORED.ends


def test_results_made_anew_are_read_from_their_beginning() -> None:
    found = without_topics(STORED, {"alerts"})
    assert found.ends == {"verdicts": {0: 12}, "alerts": {0: 0}}


def test_a_record_keeps_the_ids_of_its_topics_and_one_of_before_has_none() -> None:
    assert decode_record(POSITION_KEY, encode_record(STORED)) == STORED
    assert topics_now(Logs({"evidence": "a"})).gone(0, PositionRecord(4, {"evidence": 3}), ()) == set()


def test_a_topic_with_another_id_is_gone_and_one_that_is_away_is_not() -> None:
    now = topics_now(Logs({"evidence": "z", "job_snapshots": "s"}))
    assert now.gone(2, STORED, ()) == {"evidence"}
    assert now.made_anew == {"evidence": {2}}
    assert now.is_other("evidence", STORED)
    assert not now.is_other("commops", STORED)


@pytest.mark.parametrize(("end", "gone"), [(39, {"commops"}), (40, set())])
def test_a_log_that_ends_before_what_was_read_for_a_while_is_gone(
    end: int, gone: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made_anew, "END_S", 0.05)
    monkeypatch.setattr(made_anew, "_END_AGAIN_S", 0.01)
    logs = Logs(STORED.topic_ids, {0: {"commops": 39, "evidence": 90}})
    assert topics_now(logs, end).gone(0, STORED, ()) == gone


def test_what_a_monitor_has_seen_behind_the_end_tells_of_it_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_anew, "END_S", 0.0)
    seen = Tracked(b"job", None, {"evidence": 5})
    assert topics_now(Logs({}, {0: {"evidence": 5}})).gone(0, PositionRecord(4), [seen]) == {"evidence"}
    assert topics_now(Logs({}, {0: {"evidence": 6}})).gone(0, PositionRecord(4), [seen]) == set()


def test_an_end_that_comes_back_is_no_cut() -> None:
    state: PartitionState[None] = PartitionState(0, 1, 1, {"commops": 9})
    ends = LogEnds(looks=2)
    assert ends.look([state], {0: {"commops": 2}}) == set()
    assert ends.look([state], {0: {"commops": 9}}) == set()
    assert ends.look([state], {0: {"commops": 2}}) == set()
    assert ends.look([state], {0: {"commops": 2}}) == {("commops", 0, 8)}
