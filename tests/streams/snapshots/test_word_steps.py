"""From which evidence on which words hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from irregulars.state_codec import encode_state
from irregulars.streams.snapshots.records import (
    POSITION_KEY,
    WHOLE_VERSION,
    PositionRecord,
    decode_record,
    encode_record,
)
from irregulars.streams.snapshots.word_steps import KEPT, Step, WordSteps

OFFSETS = st.lists(st.integers(0, 1000), min_size=1, max_size=20).map(sorted)


@given(OFFSETS)
def test_what_was_judged_before_a_change_stays_as_it_was(offsets: list[int]) -> None:
    steps = WordSteps()
    for revision, offset in enumerate(offsets, start=1):
        before, steps = steps, steps.begin(offset, revision)
        assert all(steps.revision_at(at) == before.revision_at(at) for at in range(offset))
        assert {steps.revision_at(at) for at in range(offset, 1001)} == {revision} == {steps.newest}


def test_the_steps_are_bounded_and_the_newest_stay_exact() -> None:
    steps = WordSteps()
    for number in range(1, 3 * KEPT):
        steps = steps.begin(10 * number, number)
    assert len(steps.steps) == KEPT
    assert [steps.revision_at(10 * number) for number in range(2 * KEPT, 3 * KEPT)] == [*range(2 * KEPT, 3 * KEPT)]
    assert steps.revision_at(0) == steps.steps[0].revision > 0


def test_where_evidence_was_made_anew_what_holds_goes_on_to_hold() -> None:
    steps = WordSteps().begin(5, 1).begin(900, 2)
    assert steps.bounded(900) == steps
    assert steps.bounded(3).steps == (Step(0, 2),)


def test_they_stand_in_the_record_of_a_partition() -> None:
    record = PositionRecord(3, {"evidence": 12}, thresholds=WordSteps().begin(7, 2), opinions=WordSteps().begin(9, 1))
    assert decode_record(POSITION_KEY, encode_record(record)) == record


def test_a_record_from_before_has_none() -> None:
    old = encode_state({"epoch": 3, "positions": {"evidence": 12}}, WHOLE_VERSION)
    found = decode_record(POSITION_KEY, old)
    assert isinstance(found, PositionRecord)
    assert found.thresholds.newest == found.opinions.newest == 0
