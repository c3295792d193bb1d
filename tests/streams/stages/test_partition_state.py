from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from irregulars.streams.stages.partition_state import PartitionState, Tracked


def new_state() -> PartitionState[object]:
    return PartitionState(0, generation=1, epoch=1, positions={})


def test_position_stays_at_the_first_message_that_is_in_no_monitor() -> None:
    state = new_state()
    for offset in (4, 5, 6):
        state.take("commops", offset)
        state.begin("commops", offset)
    state.finish("commops", 5)
    assert state.position() == {"commops": 4}
    state.finish("commops", 4)
    assert state.position() == {"commops": 6}
    state.finish("commops", 6)
    assert state.position() == {"commops": 7}


def test_a_topic_read_again_does_not_move_the_position_back() -> None:
    state = new_state()
    for offset in (0, 1, 2, 1):
        state.take("jobs", offset)
    assert state.position() == {"jobs": 3}


def test_a_monitor_is_covered_only_behind_all_it_has_seen() -> None:
    state = new_state()
    tracked = Tracked(b"job/0", object())
    tracked.saw("commops", 7)
    assert not state.is_covered(tracked)
    state.stored_position = {"commops": 7}
    assert not state.is_covered(tracked)
    state.stored_position = {"commops": 8}
    assert state.is_covered(tracked)


@given(st.lists(st.tuples(st.sampled_from(["take", "finish"]), st.integers(0, 9)), max_size=60))
def test_no_position_is_behind_a_message_that_is_in_no_monitor(steps: list[tuple[str, int]]) -> None:
    state = new_state()
    taken, finished = 0, set()
    for step, offset in steps:
        if step == "take":
            state.take("evidence", taken)
            state.begin("evidence", taken)
            taken += 1
        elif offset < taken:
            state.finish("evidence", offset)
            finished.add(offset)
        assert set(range(state.position().get("evidence", 0))) <= finished


def test_what_was_deleted_unread_counts_as_read() -> None:
    state: PartitionState[object] = PartitionState(0, generation=1, epoch=1, positions={"commops": 4})
    state.begin_at("commops", 9)
    assert state.read_to() == state.position() == state.stored_position == {"commops": 9}


def test_reading_that_begins_before_what_was_taken_moves_nothing_back() -> None:
    state = new_state()
    state.take("jobs", 6)
    state.begin_at("jobs", 2)
    assert state.read_to() == {"jobs": 7}


def test_a_gap_moves_what_was_read_and_leaves_what_waits() -> None:
    state = new_state()
    state.take("commops", 4)
    state.begin("commops", 4)
    state.skip_to("commops", 9)
    assert state.read_to() == {"commops": 9}
    assert state.position() == {"commops": 4}
    state.skip_to("commops", 3)
    assert state.read_to() == {"commops": 9}
