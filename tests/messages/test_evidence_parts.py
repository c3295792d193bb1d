"""Evidence of any size travels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from irregulars.kafka.topics import MAX_MESSAGE_BYTES
from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.device_events import DeviceEvent
from irregulars.messages.evidence import CLASS_COLUMNS, Evidence, Membership, concatenate, decode_evidence, no_entries
from irregulars.messages.evidence_parts import MAX_OFFSETS, encode_within_limit
from irregulars.messages.ragged import Ragged
from tests.streams.evidence_rows import evidence_of


def many_rows(rows: int) -> Evidence:
    one = evidence_of(1, {0: 5.0})
    evidence = one.take(np.zeros(rows, dtype=np.int64))
    random = np.random.default_rng(0)
    columns = {**evidence.columns, "iteration": np.arange(rows)}
    columns["work_ns"] = random.random(rows)
    columns["start_ns"] = random.integers(0, 1 << 60, rows)
    return replace(evidence, columns=columns)


def sent(rows: list[Evidence | Membership], most_bytes: int = MAX_MESSAGE_BYTES) -> list[Evidence | Membership]:
    values = encode_within_limit(rows, "j", most_bytes)
    assert len(values) > 1 or len(rows) == 1
    assert max(map(len, values)) <= most_bytes
    return [row for value in values for row in decode_evidence(value)]


def test_closings_of_very_many_rows_are_sent_in_parts_that_a_reader_takes() -> None:
    evidence = many_rows(100_000)
    found = [row for row in sent([evidence]) if isinstance(row, Evidence)]
    assert len(found) > 1
    whole = concatenate(found)
    for name in ("iteration", "start_ns", "work_ns"):
        assert whole.columns[name].tolist() == evidence.columns[name].tolist()
    evidence = evidence_of(1, {0: 5.0}).take(np.zeros(600_000, dtype=np.int64))
    assert sum(len(row) for row in sent([evidence]) if isinstance(row, Evidence)) == 600_000


def test_each_part_names_its_own_communicators() -> None:
    rows = 4000
    names = tuple(f"{'n' * 900}{code}" for code in range(rows))
    codes = np.arange(rows)
    classes = no_entries(CLASS_COLUMNS, rows)
    columns = {name: np.zeros(rows, column.dtype) for name, column in classes.columns.items()}
    classes = Ragged(np.ones(rows, dtype=np.int64), {**columns, "communicator": codes})
    found = [
        row for row in sent([replace(many_rows(rows), names=names, classes=classes)]) if isinstance(row, Evidence)
    ]
    told = [part.names[code] for part in found for code in part.classes["communicator"].tolist()]
    assert told == list(names)
    assert max(len(part.names) for part in found) < rows


def with_communicators(iteration: int, names: tuple[str, ...]) -> Evidence:
    """One row with a class of operators for each of these communicators."""
    one, classes = evidence_of(iteration, {0: 5.0}), no_entries(CLASS_COLUMNS, 1)
    columns = {name: np.zeros(len(names), column.dtype) for name, column in classes.columns.items()}
    columns["communicator"] = np.arange(len(names))
    return replace(one, names=names, classes=Ragged(np.array([len(names)]), columns))


def test_rows_of_more_communicators_than_a_message_can_name_are_sent_in_parts() -> None:
    """The classes of a message hold 16 bits of a communicator; a job of 100,000 ranks has more of them."""
    given = [with_communicators(at, tuple(f"{at}.{code}" for code in range(30_000))) for at in range(3)]
    found = [row for row in sent(given, 32 << 20) if isinstance(row, Evidence)]
    told = [part.names[code] for part in found for code in part.classes["communicator"].tolist()]
    assert told == [name for one in given for name in one.names]


def test_one_row_of_more_communicators_or_offsets_than_a_message_holds_keeps_its_times() -> None:
    row = with_communicators(7, tuple(map(str, range((1 << 16) + 1))))
    (found,) = sent([row], 32 << 20)
    assert isinstance(found, Evidence)
    assert found.columns["elapsed_ns"].tolist() == row.columns["elapsed_ns"].tolist()
    assert found.names == ()
    places = np.random.default_rng(0).integers(0, 1 << 60, 1_000_000)
    evidence = replace(
        evidence_of(1, {7: 5.0}), names=("n" * 1000,), offsets=Ragged(np.array([len(places)]), {"offset": places})
    )
    (found,) = sent([evidence])
    assert isinstance(found, Evidence)
    assert found.columns["elapsed_ns"].tolist() == evidence.columns["elapsed_ns"].tolist()
    assert found.offsets["offset"].tolist() == places[:MAX_OFFSETS].tolist()


def test_memberships_are_split_at_the_size_limit_and_keep_their_order() -> None:
    ranks = tuple(int(rank) for rank in np.random.default_rng(0).permutation(600))
    world = (Communicator("world", "world", ranks),)
    rows: list[Evidence | Membership] = [
        Membership("j", 0, rank, Announcement("j", 0, rank, 600, 600, world)) for rank in range(50)
    ]
    assert sent(rows, MAX_MESSAGE_BYTES // 10) == rows


def test_events_of_one_rank_that_fit_no_message_are_sent_in_parts() -> None:
    """A broken PCIe link writes thousands of lines a second: the worker must not end of them."""
    events = tuple(DeviceEvent(ns, 3, "link_errors", "node1", "mlx5_0", ns, "d" * 200) for ns in range(10_000))
    reported = Membership("j", 0, 3, start="s", since_ns=7, events=events)
    found = [row for row in sent([reported]) if isinstance(row, Membership)]
    assert len(found) > 1
    assert tuple(event for row in found for event in row.events) == events
    assert {replace(row, events=()) for row in found} == {replace(reported, events=())}
