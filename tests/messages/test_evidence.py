"""Evidence on the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.errors import RecordError
from irregulars.messages.announcements import Announcement, Communicator
from irregulars.messages.bounds import BOUNDS
from irregulars.messages.evidence import (
    CLASS_COLUMNS,
    COLUMNS,
    PATTERN_COLUMNS,
    Evidence,
    Membership,
    concatenate,
    decode_evidence,
    encode_evidence,
)
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import PAUSES, UNKNOWN
from tests.streams.evidence_rows import came, evidence_of, went

SINGLE = frozenset({"score", "nic_tx_peak", "nic_rx_peak"})
FLOATS = frozenset({"work_ns", "communication_ns", "tokens"}) | SINGLE


@st.composite
def any_evidence(draw: st.DrawFn, job: str = "j") -> Evidence:
    size = draw(st.integers(0, 5))
    columns = {}
    for name in COLUMNS:
        if name in FLOATS:
            values: Any = st.floats(0, 2.0**49, width=32 if name in SINGLE else 64)
            values = values if name in ("work_ns", "communication_ns") else values | st.just(np.nan)
            columns[name] = np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype=np.float64)
        elif name == "phase":
            columns[name] = np.array(
                draw(st.lists(st.sampled_from([0, 1, 2, 255]), min_size=size, max_size=size)), np.uint8
            )
        else:
            bound, info = BOUNDS["evidence"][name], np.iinfo(COLUMNS[name].to_pandas_dtype())
            values = st.integers(max(int(bound.least), int(info.min)), min(int(bound.most), int(info.max)))
            values = st.just(UNKNOWN) | values if name.endswith("_ns") else values
            columns[name] = np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype=np.int64)
    counts = [
        np.array(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)), dtype=np.int64) for _ in range(3)
    ]
    names = tuple(draw(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=3, unique=True)))
    offsets, total = int(counts[0].sum()), int(counts[1].sum())
    classes = {
        name: np.array(draw(st.lists(st.integers(0, 10), min_size=total, max_size=total)),
                       dtype=np.float64 if name.endswith("_ns") else np.int64)
        for name in CLASS_COLUMNS
    }  # fmt: skip
    classes["communicator"] %= len(names)
    values = st.lists(st.integers(0, 2**62), min_size=offsets, max_size=offsets)
    patterns = draw(any_patterns(int(counts[2].sum()), len(names)))
    return Evidence(
        names=names,
        columns=columns,
        offsets=Ragged(counts[0], {"offset": np.array(draw(values), dtype=np.int64)}),
        classes=Ragged(counts[1], classes),
        patterns=Ragged(counts[2], patterns),
        pauses=draw(any_pauses(size)),
        job=job,
    )


@st.composite
def any_pauses(draw: st.DrawFn, rows: int) -> Ragged | None:
    counts = np.array(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)), dtype=np.int64)
    if not counts.any():
        return None
    bounds = {"cause": len(PAUSES) - 1, "start_ns": 2**62, "elapsed_ns": 2**53}
    size = int(counts.sum())
    own = {name: draw(st.lists(st.integers(0, most), min_size=size, max_size=size)) for name, most in bounds.items()}
    return Ragged(counts, {name: np.array(values, dtype=np.int64) for name, values in own.items()})


@st.composite
def any_patterns(draw: st.DrawFn, size: int, names: int) -> dict[str, np.ndarray]:
    def column(name: str) -> np.ndarray:
        if name in ("communicator", "operator"):
            most = names - 1 if name == "communicator" else 10
            return np.array(draw(st.lists(st.integers(-1, most), min_size=size, max_size=size)), dtype=np.int64)
        values = st.floats(0, 2.0**15, width=16) | st.just(np.nan)
        return np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype=np.float64)

    return {name: column(name) for name in PATTERN_COLUMNS}


def assert_same(one: Evidence, other: Evidence) -> None:
    assert (one.job, one.names) == (other.job, other.names)
    for name in COLUMNS:
        np.testing.assert_array_equal(one.columns[name], other.columns[name], err_msg=name)
        assert one.columns[name].dtype == other.columns[name].dtype, name
    for own, of_other in ((one.offsets, other.offsets), (one.classes, other.classes), (one.patterns, other.patterns)):
        np.testing.assert_array_equal(own.counts, of_other.counts)
        assert own.columns.keys() == of_other.columns.keys()
        for name, column in own.columns.items():
            np.testing.assert_array_equal(column, of_other[name], err_msg=name)


@given(evidence=any_evidence())
def test_evidence_comes_back_as_it_went(evidence: Evidence) -> None:
    messages = encode_evidence([evidence], evidence.job)
    assert len(messages) == (1 if len(evidence) else 0)
    for message in messages:
        (back,) = decode_evidence(message)
        assert isinstance(back, Evidence)
        assert_same(back, evidence)


@given(pieces=st.lists(any_evidence(), min_size=1, max_size=4))
def test_pieces_joined_are_their_rows_one_after_the_other(pieces: list[Evidence]) -> None:
    joined = concatenate(pieces)
    assert len(joined) == sum(map(len, pieces))
    for name in COLUMNS:
        np.testing.assert_array_equal(joined.columns[name], np.concatenate([p.columns[name] for p in pieces]))
    named = [joined.names[code] for code in joined.classes["communicator"].tolist()]
    assert named == [p.names[code] for p in pieces for code in p.classes["communicator"].tolist()]
    assert list(joined.offsets.lists("offset")) == [own for p in pieces for own in p.offsets.lists("offset")]
    assert named_patterns(joined) == [row for p in pieces for row in named_patterns(p)]


def named_patterns(evidence: Evidence) -> list[tuple[str | None, float]]:
    codes = evidence.patterns["communicator"].tolist()
    names = [None if code < 0 else evidence.names[code] for code in codes]
    return list(zip(names, np.nan_to_num(evidence.patterns["share"], nan=-1.0).tolist(), strict=True))


@given(evidence=any_evidence(), data=st.data())
def test_what_is_selected_and_what_is_not_is_all(evidence: Evidence, data: st.DataObject) -> None:
    size = len(evidence)
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=bool)
    one, other = evidence.take(chosen), evidence.take(~chosen)
    assert len(one) + len(other) == size
    back = np.argsort(np.concatenate([np.flatnonzero(chosen), np.flatnonzero(~chosen)]))
    assert_same(concatenate([one, other]).take(back), evidence)
    assert_same(evidence.take(np.ones(size, dtype=bool)), evidence)


def test_members_come_before_evidence_and_go_after_it() -> None:
    rows = [evidence_of(0, {1: 10}), went(0, "stopped"), came(3), evidence_of(3, {1: 10})]
    came_first, evidence, went_last = [decode_evidence(message) for message in encode_evidence(rows, "j")]
    assert came_first == [rows[2]]
    assert isinstance(evidence[0], Evidence)
    assert evidence[0].columns["rank"].tolist() == [0, 3]
    assert went_last == [rows[1]]


def test_an_announcement_travels_whole() -> None:
    announcement = Announcement(
        "j", 7, 3, 64, 32, (Communicator("δ", "tp", (3, 1, 2)), Communicator("w", "world", tuple(range(64)))),
        ("commops", "bandwidth"), True, "shared", "host", 5, "mlx5_0", "leaf", 9, 2**60,
    )  # fmt: skip
    member = Membership("j", 7, 3, announcement)
    (message,) = encode_evidence([member], "j")
    assert decode_evidence(message) == [member]


def test_unknown_stays_unknown_and_nothing_is_no_message() -> None:
    (message,) = encode_evidence([evidence_of(0, {4: 10}, entry_ns=UNKNOWN, tokens=np.nan)], "j")
    (back,) = decode_evidence(message)
    assert isinstance(back, Evidence)
    assert back.columns["entry_ns"].tolist() == [UNKNOWN]
    assert np.isnan(back.columns["tokens"]).all()
    assert back.columns["phase"].tolist() == [255]
    assert encode_evidence([], "j") == []
    assert encode_evidence([evidence_of(0, {})], "j") == []


GOOD = encode_evidence([evidence_of(0, {1: 10, 2: 11})], "j")[0]
MEMBER = encode_evidence([came(0)], "j")[0]


@pytest.mark.parametrize("value", [
    None, b"", b"{", b"{}", b"[]", b"null", b'{"schema":"membership"}', b'{"schema":"membership","version":99}',
    b'{"schema":"membership","version":1,"job":"j","members":[{}]}',
    b'{"schema":"membership","version":1,"job":"j","members":[7]}',
    b'{"schema":"membership","version":1,"job":"j","members":7}',
    MEMBER.replace(b'"world_size":2', b'"world_size":"two"'), MEMBER[:-3], GOOD[:-40], GOOD[:100], b"x" + GOOD,
    GOOD.replace(b'"version":1', b'"version":2'), GOOD.replace(b'"schema":"evidence"', b'"schema":"evidencf"'),
    GOOD.replace(b"lost_rows", b"lost_cows"),
])  # fmt: skip
def test_what_is_no_evidence_is_a_record_error(value: bytes | None) -> None:
    with pytest.raises(RecordError):
        decode_evidence(value)


@pytest.mark.parametrize("value", [11, -2])
def test_a_pattern_of_an_operator_that_is_not_there_is_a_record_error(value: int) -> None:
    columns = {
        one: np.zeros(1, np.int64 if one in ("communicator", "operator") else float) for one in PATTERN_COLUMNS
    }
    good = replace(evidence_of(0, {1: 10}), names=("world",), patterns=Ragged(np.ones(1, np.int64), columns))
    (back,) = decode_evidence(encode_evidence([good], "j")[0])
    assert isinstance(back, Evidence)
    assert_same(back, good)
    bad = replace(good, patterns=good.patterns.replaced("operator", np.array([value])))
    with pytest.raises(RecordError, match="operator of a pattern must be from -1 to 10"):
        decode_evidence(encode_evidence([bad], "j")[0])


@given(at=st.integers(0, len(GOOD) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_a_record_error_or_another_value(at: int, bit: int) -> None:
    value = bytearray(GOOD)
    value[at] ^= 1 << bit
    try:
        (back,) = decode_evidence(bytes(value))
    except RecordError:
        return
    assert isinstance(back, Evidence | Membership)


def test_scores_of_detectors_travel_by_name_and_cost_nothing_where_there_are_none() -> None:
    plain = evidence_of(3, {1: 10.0, 2: 20.0})
    scored = replace(plain, columns={**plain.columns, "score:odd": np.array([2.5, np.nan])})
    (value,) = encode_evidence([scored], "j")
    (found,) = decode_evidence(value)
    assert isinstance(found, Evidence)
    np.testing.assert_array_equal(found.columns["score:odd"], [2.5, np.nan])
    assert b"score:" not in encode_evidence([plain], "j")[0]
    plain = evidence_of(3, {1: 10.0})
    scored = replace(plain, columns={**plain.columns, "score:odd": np.array([2.5])})
    for parts, wanted in (([plain, scored], [np.nan, 2.5]), ([scored, plain], [2.5, np.nan])):
        np.testing.assert_array_equal(concatenate(parts).columns["score:odd"], wanted)


@pytest.mark.parametrize(("names", "value", "said"), [
    (["score:two words"], 1.0, "of a detector whose name matches"),
    (["score:odd"], np.inf, "must be finite or NaN; got infinity"),
    ([f"score:d{n}" for n in range(17)], 1.0, "at most 16, each once; got 17"),
])  # fmt: skip
def test_columns_of_detectors_that_can_not_be_are_refused(names: list[str], value: float, said: str) -> None:
    plain = evidence_of(3, {1: 10.0})
    scored = replace(plain, columns={**plain.columns, **{name: np.array([value]) for name in names}})
    with pytest.raises(RecordError, match=said):
        decode_evidence(encode_evidence([scored], "j")[0])
