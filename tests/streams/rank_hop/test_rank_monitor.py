"""The first hop: when iterations close, what a row of evidence says, and what bad input can't do."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.errors import RecordError
from irregulars.messages.announcements import Announcement, Communicator, Heartbeat, SourceProgress
from irregulars.messages.device_events import DeviceEvent, batch_of
from irregulars.messages.evidence import Evidence, Membership, decode_evidence, encode_evidence
from irregulars.messages.records import (
    BATCH_SCHEMAS,
    OPERATOR_CODES,
    UNKNOWN,
    Batch,
    Header,
    decode_batch,
    encode_batch,
)
from irregulars.settings import JudgeSettings
from irregulars.streams.rank_hop.rank_monitor import MAX_HELD_BATCHES, UNANNOUNCED, RankMonitor
from tests.conftest import examples
from tests.stored_states import stored
from tests.streams.lockstep_job import iteration_batch, operator_batch
from tests.streams.rank_hop.test_nic_samples import batch as sample_batch

MS = 1_000_000
T0 = 1_800_000_000_000_000_000
ANNOUNCED = Announcement(
    "lockstep", 1, 0, 2, 2, (Communicator("world", "world", (0, 1)),), ("commops", "iterations"), clock="shared"
)
OPERATORS_ONLY = replace(ANNOUNCED, sources=("commops",))


def monitor(announcement: Announcement | None = ANNOUNCED, **settings: Any) -> RankMonitor:
    made = RankMonitor("lockstep", 0, JudgeSettings(**settings), partition=3)
    if announcement is not None:
        made.announce(announcement)
        made.drain()
    return made


def operator(number: int, start_ms: float, elapsed_ms: float | None = 4.0, **values: Any) -> dict[str, Any]:
    return {
        "iteration": number, "sequence": int(start_ms * 1000), "start_ns": T0 + int(start_ms * MS),
        "elapsed_ns": np.nan if elapsed_ms is None else elapsed_ms * MS, "size_bytes": 64.0, **values,
    }  # fmt: skip


def turn(number: int, start_ms: float, elapsed_ms: float = 10.0, **values: Any) -> dict[str, Any]:
    return {"iteration": number, "start_ns": T0 + int(start_ms * MS), "elapsed_ns": elapsed_ms * MS, **values}


def operators(*rows: dict[str, Any], **header: Any) -> Batch:
    return operator_batch(0, rows, **header)


def turns(*rows: dict[str, Any], **header: Any) -> Batch:
    return iteration_batch(0, rows, **header)


def samples(*rows: tuple[int, str, float, float], **header: Any) -> Batch:
    """Samples of this rank, at ms after `T0`."""
    made = sample_batch([(T0 // MS + at_ms, device, tx, rx) for at_ms, device, tx, rx in rows])
    return replace(made, header=replace(made.header, job="lockstep", attempt=1, **header))


def beat(attempt: int = 1, state: str = "running", reason: str | None = None, **progress: Any) -> Heartbeat:
    sources = {schema: SourceProgress(*own) for schema, own in progress.items()}
    return Heartbeat("lockstep", attempt, 0, sources, state, reason)


def ended(reason: str | None = "finished", rows: dict[str, int] | None = None, attempt: int = 1) -> Heartbeat:
    return beat(attempt, "ended", reason, **{schema: (count, None) for schema, count in (rows or {}).items()})


def known(value: Any) -> Any:
    """The value, None for NaN: so that rows compare."""
    return None if value != value else value


def feed(monitor: RankMonitor, messages: Iterable[Any]) -> None:
    """Hand over what comes, each batch at the next offset; a number is the wall clock."""
    for offset, one in enumerate(messages):
        match one:
            case Announcement():
                monitor.announce(one)
            case Heartbeat():
                monitor.beat(one)
            case float():
                monitor.tick(one)
            case _:
                monitor.add(one, offset)


def evidence(monitor: RankMonitor) -> list[dict[str, Any]]:
    """Rows of evidence that were drained, each as a dictionary."""
    rows = []
    for piece in monitor.drain():
        if isinstance(piece, Evidence):
            for at, offsets in enumerate(piece.offsets.lists("offset")):
                row: dict[str, Any] = {name: known(column[at].item()) for name, column in piece.columns.items()}
                rows.append(row | {"offsets": offsets})
    return rows


def numbers(monitor: RankMonitor) -> list[int]:
    return [row["iteration"] for row in evidence(monitor)]


# --- when iterations close ------------------------------------------------------------------------------------------


TURNS = turns(turn(0, 0), turn(1, 10))
FAR_AHEAD = turns(turn(0, 0), turn(1, 10), turn(2, 20), watermark_ns=T0 + 25 * 1000 * MS)
Steps = list[tuple[list[Any], list[int]]]  # what comes, and the iterations that close then
# Beside the steps: what differs from a monitor as always, and whether the rank has ended at the end.
CLOSING: dict[str, tuple[Steps, dict[str, Any], bool]] = {
    "when the watermark has passed its end by half its length": (
        [([TURNS, operators(operator(0, 2), operator(0, 8, 6.9))], []),
         ([operators(operator(1, 11), rows_before=2)], [0])], {}, False,
    ),
    "not on the word of its iteration row alone": ([([turns(*[turn(n, 10 * n) for n in range(9)])], [])], {}, False),
    "by the watermark of a source of iterations alone": (
        [([turns(turn(0, 0), turn(1, 10), turn(2, 20))], [0, 1])],
        {"announcement": replace(ANNOUNCED, sources=("iterations",))}, False,
    ),
    "by a heartbeat that moves an idle source, once its rows are there": (
        [([operators(operator(0, 2)), beat(commops=(1, T0 + 90 * MS), iterations=(1, None))], []),
         ([turns(turn(0, 0))], [0])], {}, False,
    ),
    "after the grace, where another source has left it far behind": (
        [([FAR_AHEAD, 0.0, 48.0], [0, 1, 2])], {"grace_s": 24.0}, False,
    ),
    "not where it is not far enough behind": ([([FAR_AHEAD, 0.0, 52.0], [])], {"grace_s": 26.0}, False),
    "not by the wall clock alone while nothing is overdue": (
        [([TURNS, operators(operator(0, 1)), 0.0, 1e3, 1e6], [])], {"grace_s": 30.0}, False,
    ),
    "with the last word, once the rows that it counts are there": (
        [([ended(rows={"commops": 1, "iterations": 1}), operators(operator(0, 2))], []), ([turns(turn(0, 0))], [0])],
        {}, True,
    ),
    "with a last word whose counted rows never come, after the grace": (
        [([operators(operator(0, 2)), ended("stopped", {"commops": 500}), 5.0], []), ([35.0], [0])],
        {"grace_s": 30.0}, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "how", "is_over"), CLOSING.values(), ids=CLOSING)
def test_an_iteration_closes(steps: Steps, how: dict[str, Any], is_over: bool) -> None:
    made = monitor(**how)
    for messages, expected in steps:
        assert not made.is_ended
        feed(made, messages)
        assert numbers(made) == expected
    assert made.is_ended == is_over


def test_without_iteration_rows_the_next_iteration_tells_the_end() -> None:
    made = monitor(OPERATORS_ONLY)
    made.add(operators(operator(0, 1), operator(1, 11)), 0)
    assert numbers(made) == []
    made.add(operators(operator(1, 16), rows_before=2), 1)
    (row,) = evidence(made)
    assert (row["iteration"], row["start_ns"], row["elapsed_ns"]) == (0, T0 + MS, 4 * MS)


def test_the_last_word_of_a_rank_closes_everything() -> None:
    made = monitor()
    made.add(turns(turn(0, 0), turn(1, 10)), 0)
    made.add(operators(operator(0, 2), operator(1, 12), operator(2, 22, None)), 1)
    made.beat(ended("stopped"))
    *rows, last = made.drain()
    assert last == Membership("lockstep", 1, 0, reason="stopped")
    assert [n for row in rows if isinstance(row, Evidence) for n in row.columns["iteration"].tolist()] == [0, 1, 2]
    assert made.is_ended


def test_after_its_last_word_a_rank_is_not_heard() -> None:
    made = monitor()
    made.beat(ended())
    made.drain()
    feed(made, [turns(turn(0, 0)), operators(operator(0, 2)), ended("again"), 1e9])
    assert made.drain() == []


def test_the_wall_clock_gives_up_on_a_source_that_fell_silent() -> None:
    made = monitor(grace_s=30.0)
    feed(made, [turns(*[turn(n, 10 * n) for n in range(4000)]), 100.0, 129.9])
    assert numbers(made) == []
    made.tick(130.0)
    assert numbers(made)[:2] == [0, 1]


def test_after_the_silence_a_rank_that_stands_in_an_operator_gives_all_it_has() -> None:
    made = monitor(grace_s=30.0, silence_s=600.0)
    standing = operator(0, 1), operator(1, 11), operator(UNKNOWN, 21), operator(UNKNOWN, 26, None)
    feed(made, [TURNS, operators(*standing), 0.0, 599.0])
    assert numbers(made) == [0, 1]
    made.tick(600.0)
    assert [(row["iteration"], row["operators"], row["unended"]) for row in evidence(made)] == [(2, 2, 1)]
    assert not made.is_ended


def test_a_rank_that_stops_outside_of_operators_gives_its_last_iteration() -> None:
    """Those that wait for it stand in the next one: told an iteration behind, it would seem to lack two."""
    made = monitor(grace_s=30.0, silence_s=600.0)
    feed(made, [TURNS, operators(operator(0, 1), operator(1, 11)), 0.0, 29.0])
    assert numbers(made) == [0]
    made.tick(31.0)  # it may still have rows on their way: no heartbeat has counted them
    assert numbers(made) == []
    feed(made, [beat(commops=(2, None), iterations=(2, None)), 32.0, 62.0])
    assert numbers(made) == [1]


@pytest.mark.parametrize("schema", ["bandwidth", "gpu_health"])
def test_samples_of_devices_do_not_break_the_silence_of_their_rank(schema: str) -> None:
    made = monitor(replace(ANNOUNCED, sources=("commops", "iterations", "bandwidth"), nic="eth0"), silence_s=600.0)
    made.add(turns(turn(0, 0)), 0)
    made.add(operators(operator(0, 1), operator(1, 11, None)), 1)
    dtypes = dict.fromkeys(BATCH_SCHEMAS["gpu_health"].names, np.float64) | {"time_ns": np.int64}
    states = Batch(Header("gpu_health", "lockstep", 1, 0), {n: np.zeros(1, t) for n, t in dtypes.items()})
    for now_s in (0, 300, 600):
        made.add(states if schema == "gpu_health" else samples((11 + now_s, "eth0", 1.0, 1.0)), 2)
        made.tick(now_s)
    assert numbers(made)[-1:] == [1]


# --- what evidence says ---------------------------------------------------------------------------------------------


def closed(
    *rows: dict[str, Any], given: Iterable[dict[str, Any]] = (turn(0, 0), turn(1, 10))
) -> list[dict[str, Any]]:
    made = monitor()
    made.add(turns(*given), 0)
    made.add(operators(*rows), 7)
    made.beat(ended())
    return evidence(made)


def test_work_is_what_lies_between_operators_and_communication_what_lies_in_them() -> None:
    first, second = closed(operator(0, 1, 2), operator(0, 5, 1), operator(1, 13, 2))
    assert (first["work_ns"], first["communication_ns"], first["operators"]) == (3 * MS, 3 * MS, 2)
    assert (second["work_ns"], second["entry_ns"]) == (7 * MS, T0 + 6 * MS)
    assert first["offsets"] == second["offsets"] == [7]
    assert first["partition"] == 3


EVIDENCE: dict[str, tuple[list[dict[str, Any]], str, list[tuple[Any, ...]]]] = {
    "overlapping operators leave no gap between them": (
        [operator(0, 1, 6), operator(0, 2, 1), operator(0, 5, 1), operator(0, 8, 1)], "work_ns", [(2 * MS,)],
    ),
    "operators of one start are not the same operator": (
        [operator(0, 1, 2), operator(0, 1, 2, sequence=99), operator(0, 1, 2, operator=5)], "operators", [(3,)],
    ),
    "an operator that never ended is counted and has no time": (
        [operator(0, 1, 2), operator(0, 5, None)], "operators communication_ns", [(2, 2 * MS)],
    ),
    "an operator that was sent before and after its end counts once as ended": (
        [operator(0, 1, None, sequence=7), operator(0, 2, 3.0, sequence=7), operator(0, 6, 2.0, sequence=8)],
        "operators unended communication_ns", [(2, 0, 5 * MS)],
    ),
    "an iteration without operators still takes its time": (
        [operator(1, 12)], "operators elapsed_ns offsets", [(0, 10 * MS, []), (1, 10 * MS, [7])],
    ),
    "operators without an iteration belong to the one in which they start": (
        [operator(UNKNOWN, 1), operator(UNKNOWN, 9.5), operator(UNKNOWN, 10), operator(1, 15)],
        "operators", [(2,), (2,)],
    ),
    "operators outside of any iteration are left out": (
        [operator(UNKNOWN, -5), operator(0, 1), operator(UNKNOWN, 25)], "iteration operators", [(0, 1), (1, 0)],
    ),
    "operators that never ended are an iteration that has no row yet": (
        [operator(UNKNOWN, 1), operator(UNKNOWN, 21), operator(UNKNOWN, 26, None)],
        "iteration operators unended", [(0, 1, 0), (1, 0, 0), (2, 2, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "expected"), EVIDENCE.values(), ids=EVIDENCE)
def test_evidence_of_operators(rows: list[dict[str, Any]], columns: str, expected: list[tuple[Any, ...]]) -> None:
    found = [tuple(row[name] for name in columns.split()) for row in closed(*rows)]
    assert found[: len(expected)] == expected
    assert len(found) == max(len(expected), 2)


def test_iterations_that_were_not_logged_leave_no_row() -> None:
    rows = closed(operator(3, 1), operator(90, 12), given=(turn(3, 0), turn(90, 10)))
    assert [row["iteration"] for row in rows] == [3, 90]
    assert rows[1]["entry_ns"] == UNKNOWN


# --- what was late, lost, or sent again -----------------------------------------------------------------------------


def test_rows_of_closed_iterations_are_counted_as_late() -> None:
    made = monitor()
    first = operators(operator(0, 2), operator(1, 12), operator(2, 21, 3))
    feed(made, [turns(turn(0, 0), turn(1, 10), turn(2, 20)), first])
    assert numbers(made) == [0]
    late = operators(operator(0, 3), operator(0, 4), rows_before=3, watermark_ns=T0)
    feed(made, [late, turns(turn(0, 0), rows_before=3), ended()])
    assert [(row["iteration"], row["late_rows"]) for row in evidence(made)] == [(1, 3), (2, 0)]


def test_rows_that_end_after_their_iteration_has_closed_are_late_whatever_the_borders_of_batches() -> None:
    rows = [operator(0, 2), operator(0, 3, 40), operator(1, 12), operator(4, 45)]
    given = [turn(n, 10 * n) for n in range(6)]
    one, two = monitor(), monitor()
    one.add(turns(*given), 0)
    two.add(turns(*given), 0)
    one.add(operators(*rows), 1)
    ordered = sorted(rows, key=lambda row: row["start_ns"] + row["elapsed_ns"])
    for at, row in enumerate(ordered):
        two.add(operators(row, rows_before=at), 1 + at)
    for made in (one, two):
        made.beat(ended())
    kept = [[(row["iteration"], row["operators"]) for row in evidence(made)] for made in (one, two)]
    assert kept[0] == kept[1]
    assert kept[0][0] == (0, 1)


def test_a_batch_that_comes_twice_changes_nothing() -> None:
    once, twice = monitor(), monitor()
    for made, count in ((once, 1), (twice, 2)):
        made.add(TURNS, 0)
        for _ in range(count):
            made.add(operators(operator(0, 2), operator(0, 8, 1)), 1)
        made.beat(ended())
    assert evidence(once) == evidence(twice)


def test_more_lost_rows_than_an_int32_holds_travel() -> None:
    """A worker that begins in the middle of a long attempt finds that all rows before are not its own."""
    made = monitor()
    made.add(operators(operator(0, 2), rows_before=5_000_000_000), 0)
    made.beat(ended())
    (message, _) = encode_evidence(made.drain(), "lockstep")
    (row,) = decode_evidence(message)
    assert isinstance(row, Evidence)
    assert row.columns["lost_rows"].tolist() == [5_000_000_000]


# --- attempts -------------------------------------------------------------------------------------------------------


def test_held_batches_are_bounded_and_given_back_oldest_first() -> None:
    made = monitor(None)
    batch = operators(operator(0, 2))
    for offset in range(MAX_HELD_BATCHES + 3):
        made.add(batch, offset)
    assert [(one.offset, one.reason) for one in made.take_refused()] == [(at, UNANNOUNCED) for at in range(3)]
    assert made.take_refused() == []


def test_a_held_batch_that_can_not_be_true_is_given_back_with_the_reason() -> None:
    made = monitor()
    made.add(operators(operator(0, 2), start="b", watermark_ns=1 << 62), 7)
    made.add(operators(operator(0, 3), start="b", rows_before=1), 8)
    made.announce(replace(ANNOUNCED, start="b"))
    (refused,) = made.take_refused()
    assert refused.offset == 7
    assert refused.reason.startswith("watermark must be plausible")
    made.beat(replace(ended(), start="b"))
    assert [(row["iteration"], row["operators"], row["lost_rows"]) for row in evidence(made)] == [(0, 1, 1)]


def test_a_second_announcement_of_one_start_changes_nothing_and_is_told_once_where_it_contradicts() -> None:
    made = monitor()
    made.add(turns(turn(0, 0)), 0)
    made.announce(replace(ANNOUNCED, sources=("commops",)))
    assert made.drain() == []
    elsewhere = replace(ANNOUNCED, host="elsewhere", sources=("commops",), world_size=900)
    made.announce(elsewhere)
    made.announce(elsewhere)
    assert made.drain() == [Membership("lockstep", 1, 0, elsewhere)]
    made.add(operators(operator(0, 2)), 1)
    made.beat(ended())
    assert numbers(made) == [0]


def test_a_restart_ends_the_attempt_before_and_begins_anew() -> None:
    made = monitor()
    made.add(operators(operator(0, 2)), 0)
    made.add(operators(operator(0, 5, attempt=2), attempt=2), 1)
    made.announce(replace(ANNOUNCED, attempt=2))
    first, end, begin = made.drain()
    assert isinstance(first, Evidence)
    assert first.columns["attempt"].tolist() == [1]
    assert end == Membership("lockstep", 1, 0, reason="restarted")
    assert isinstance(begin, Membership)
    assert begin.attempt == 2
    made.beat(ended(attempt=2))
    (row,) = evidence(made)
    assert (row["attempt"], row["offsets"], row["lost_rows"]) == (2, [1], 0)


def test_rows_and_words_of_an_older_attempt_are_not_heard() -> None:
    made = monitor(replace(ANNOUNCED, attempt=2))
    made.add(operators(operator(0, 2)), 0)
    made.beat(ended())
    made.announce(ANNOUNCED)
    assert made.drain() == []
    assert not made.is_ended


def test_a_rank_that_ended_by_itself_is_not_ended_again_by_the_next_attempt() -> None:
    made = monitor()
    made.beat(ended("finished"))
    made.drain()
    made.announce(replace(ANNOUNCED, attempt=2))
    assert [(row.attempt, row.reason) for row in made.drain() if isinstance(row, Membership)] == [(2, None)]


def test_a_rank_that_will_not_log_ends_at_once() -> None:
    made = RankMonitor("lockstep", 0, JudgeSettings())
    made.announce(replace(ANNOUNCED, is_logged=False))
    came, went = made.drain()
    assert isinstance(came, Membership)
    assert isinstance(went, Membership)
    assert (came.reason, went.reason) == (None, "not logged")


# --- any way of delivery --------------------------------------------------------------------------------------------


def messages(random: Random, count: int) -> list[Any]:
    """A rank's life in small batches: jitter, overlaps, rows without iteration, batches of any size."""
    rows, given = [], []
    for number in range(count):
        given.append(turn(number, 10 * number, 9.5, tokens=float(number)))
        for start in sorted(random.uniform(0, 9) for _ in range(random.randrange(4))):
            label = UNKNOWN if random.random() < 0.2 else number
            length = random.choice([0.0, 0.3, 2.0, 7.0])
            rows.append(operator(label, 10 * number + start, length, sequence=len(rows)))
    rows.sort(key=lambda row: row["start_ns"] + row["elapsed_ns"])
    sent: list[Any] = [ANNOUNCED]
    for make, all_rows in ((operators, rows), (turns, given)):
        at = 0
        while at < len(all_rows):
            size = random.randrange(1, 9)
            sent.append(make(*all_rows[at : at + size], rows_before=at))
            at += size
    sent.append(ended(rows={"commops": len(rows), "iterations": len(given)}))
    return sent


def reduced(sent: Iterable[Any], restore_at: frozenset[int] = frozenset()) -> list[dict[str, Any]]:
    made = RankMonitor("lockstep", 0, JudgeSettings())
    rows = []
    for step, message in enumerate(sent):
        feed(made, [message])
        rows += evidence(made)
        if step in restore_at:
            made = RankMonitor.from_state(stored(made.state()), JudgeSettings())
    assert made.is_ended
    # A row that outlasts its iteration is late; its place among the batches decides which evidence row says so.
    return [{name: value for name, value in row.items() if name != "late_rows"} for row in rows]


def interleave(sent: list[Any], random: Random) -> list[Any]:
    def topic(one: Any) -> str:
        return one.header.schema if isinstance(one, Batch) else type(one).__name__

    iterators = {key: iter([one for one in sent if topic(one) == key]) for key in map(topic, sent)}
    turns_ = [topic(one) for one in sent]
    random.shuffle(turns_)
    return [next(iterators[key]) for key in turns_]


@settings(max_examples=examples(60))
@given(random=st.randoms(use_true_random=False), count=st.integers(1, 12))
def test_no_interleaving_of_topics_shows_in_the_evidence(random: Random, count: int) -> None:
    sent = messages(random, count)
    assert reduced(interleave(sent, random)) == reduced(sent)


@settings(max_examples=examples(60))
@given(random=st.randoms(use_true_random=False), count=st.integers(1, 12), steps=st.frozensets(st.integers(0, 40)))
def test_no_restored_snapshot_shows_in_the_evidence(random: Random, count: int, steps: frozenset[int]) -> None:
    sent = interleave(messages(random, count), random)
    assert reduced(sent, steps) == reduced(sent)


# --- bad input ------------------------------------------------------------------------------------------------------

EXTREME = st.sampled_from([UNKNOWN, UNKNOWN + 1, -1, 0, 1, 2**31, 2**53, 2**62, 2**63 - 1, T0])
SMALL = st.one_of(EXTREME, st.integers(-5, 50).map(lambda n: T0 + n * MS))


@st.composite
def hostile_batch(draw: st.DrawFn) -> Batch:
    header = {"rows_before": draw(st.sampled_from([0, 1, 7, 2**40])), "watermark_ns": draw(st.none() | SMALL)}
    size = draw(st.integers(0, 4))
    if draw(st.booleans()):
        given = [
            {
                "iteration": draw(EXTREME | st.integers(-2, 5)),
                "start_ns": draw(SMALL),
                "elapsed_ns": float(draw(EXTREME | st.integers(0, 10 * MS))),
                "phase": draw(st.sampled_from([0, 1, 2, 255])),
            }
            for _ in range(size)
        ]
        return turns(*given, **header)
    rows = [
        {
            "iteration": draw(EXTREME | st.integers(-2, 5)),
            "start_ns": draw(SMALL),
            "sequence": draw(st.integers(0, 9)),
            "elapsed_ns": draw(st.just(np.nan) | EXTREME.map(float) | st.floats(0, 1e8)),
            "operator": draw(st.sampled_from([0, 9, 10])),
            "peer": draw(st.sampled_from([UNKNOWN, -5, -1, 0, 1, 2**31 - 1])),
            "communicator": draw(st.sampled_from(["world", "never announced"])),
        }
        for _ in range(size)
    ]
    return operators(*rows, sort=False, **header)


@settings(max_examples=examples(200))
@given(batches=st.lists(hostile_batch(), max_size=5), is_operators_only=st.booleans())
def test_no_batch_that_can_be_decoded_stops_a_monitor(batches: list[Batch], is_operators_only: bool) -> None:
    made = monitor(OPERATORS_ONLY if is_operators_only else ANNOUNCED)
    for offset, batch in enumerate(batches):
        with suppress(RecordError):  # it can't be true, and was not taken in
            made.add(batch, offset)
        made.tick(float(offset * 100))
        made = RankMonitor.from_state(stored(made.state()), JudgeSettings())
    for offset, batch in enumerate((turns(turn(3, 0), turn(4, 10)), operators(operator(3, 1), operator(4, 11)))):
        with suppress(RecordError):
            made.add(batch, 90 + offset)
    made.beat(ended())
    for message in encode_evidence(made.drain(), "lockstep"):
        decode_evidence(message)


def test_bad_rows_cost_themselves_and_not_their_neighbours() -> None:
    made = monitor()
    endless = {"iteration": 1, "start_ns": 2**63 - 5, "elapsed_ns": 1e6}
    given = turns(turn(0, 0), endless, turn(2, 20, -3.0), turn(3, 30))
    feed(made, [given, operators(operator(0, 1), operator(0, 5, -2.0), operator(3, 31)), ended()])
    rows = evidence(made)
    assert [(row["iteration"], row["operators"]) for row in rows] == [(0, 1), (3, 1)]
    assert rows[-1]["lost_rows"] == 3


def test_rates_that_no_device_has_are_left_out_and_counted() -> None:
    made = monitor(replace(ANNOUNCED, sources=("commops", "iterations", "bandwidth"), nic="eth0"))
    rates = [(0, 1.0, 1.0), (2, 5.0, 7.0), (4, 1e300, 9.0), (6, -3.0, 9.0), (8, 4.0, 3.0)]
    sampled = samples(*[(at_ms, "eth0", tx, rx) for at_ms, tx, rx in rates], watermark_ns=T0 + 50 * MS)
    feed(made, [TURNS, operators(operator(0, 1), operator(1, 11)), sampled, ended()])
    row, _ = evidence(made)
    assert (row["nic_tx_peak"], row["nic_rx_peak"], row["lost_rows"]) == (5.0, 7.0, 2)


def test_an_event_that_the_second_hop_would_refuse_is_left_out_and_counted() -> None:
    """It refuses a whole message: the announcements of other ranks in it would be lost with the event."""
    made = monitor()
    events = [DeviceEvent(T0 + at, 0, "link_errors", "n1", "mlx5_0", code) for at, code in enumerate((7, 2**62 + 1))]
    made.add(batch_of(events, Header("events", "lockstep", 1, 0)), 0)
    made.add(turns(turn(0, 0)), 1)
    made.beat(ended())
    drained = made.drain()
    found = [row for message in encode_evidence(drained, "lockstep") for row in decode_evidence(message)]
    assert [event for row in found if isinstance(row, Membership) for event in row.events] == events[:1]
    assert [row.columns["lost_rows"].tolist() for row in found if isinstance(row, Evidence)] == [[1]]


def test_events_alone_that_can_not_be_used_give_no_message() -> None:
    made = monitor()
    made.add(batch_of([DeviceEvent(T0, 0, "xid", code=2**62 + 1)], Header("events", "lockstep", 1, 0)), 0)
    assert made.drain() == []


@pytest.mark.parametrize("sources", [(), ("bandwidth",)])
def test_a_rank_that_announced_no_times_is_not_in_the_way(sources: tuple[str, ...]) -> None:
    made = monitor(replace(ANNOUNCED, sources=sources))
    made.beat(ended())
    made.drain()
    assert made.is_ended


def test_announced_iteration_rows_that_never_come_do_not_hold_the_operators_for_ever() -> None:
    made = monitor(grace_s=30.0)
    for number in range(100):
        made.add(operators(operator(number, 1000.0 * number), rows_before=number), number)
    for now_s in (0.0, 31.0, 62.0):
        made.tick(now_s)
    assert numbers(made)


def test_a_send_to_nobody_is_left_out() -> None:
    made, send = monitor(), OPERATOR_CODES["send"]
    sends = [operator(0, 1.0 + n, 0.1, operator=send, peer=peer) for n, peer in enumerate((UNKNOWN, -3, 1))]
    feed(made, [turns(turn(0, 0)), operators(*sends), ended()])
    (row,) = evidence(made)
    assert (row["operators"], row["lost_rows"]) == (1, 2)


def test_a_phase_that_we_do_not_know_is_refused_at_the_edge() -> None:
    """It would stop the job's monitor, which names it."""
    with pytest.raises(RecordError, match="phase codes must be below 4 or null"):
        decode_batch(encode_batch(turns(turn(0, 0, phase=7))), "iterations")
    for phase in (0, 2, 255):
        decode_batch(encode_batch(turns(turn(0, 0, phase=phase))), "iterations")


def test_a_restart_read_before_the_last_rows_of_the_attempt_loses_none_of_them() -> None:
    """Topics interleave as they like: `jobs` may be ahead of `commops`."""
    counts = []
    last, restart = operators(operator(1, 12), rows_before=1), replace(ANNOUNCED, attempt=2)
    for order in ((last, restart), (restart, last)):
        made, rows = monitor(), list[dict[str, Any]]()
        feed(made, [TURNS, operators(operator(0, 2))])
        for message in order:
            feed(made, [message])
            rows += evidence(made)
        counts.append([(row["iteration"], row["operators"]) for row in rows])
    assert counts[0] == counts[1]
