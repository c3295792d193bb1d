"""States come back equal, and what is no state of ours is refused with a line that says so."""

from __future__ import annotations

import struct
import zlib
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from irregulars.detectors.job.lanes import Lane, LaneExcess
from irregulars.detectors.nics.steadiness import Swing
from irregulars.detectors.path.critical_path import Attribution, Piece
from irregulars.errors import RecordError
from irregulars.state_codec import decode_state, encode_state
from tests.stored_states import stored

NAN = float("nan")
WORK, PAIR, GROUP = Lane("work", 3), Lane("pair", 1, 2), Lane("collective", 0)
FULL = Attribution(
    iteration=2**40,
    path_excess_ns={WORK: 1.5, PAIR: -2.25, GROUP: 0.0},
    pieces={WORK: Piece(WORK, 3, 0, 4, 10.0, 8.5), PAIR: Piece(PAIR, 2, 10, 1, 7.0, 9.25)},
    lanes={GROUP: LaneExcess(1.0, 2.0, 0.5, 64.0), PAIR: LaneExcess(3.0, 4.0, 0.0, 128.0)},
    work_excess_ns={0: 1.0, 3: -4.0},
    incomplete=frozenset({1, 2}),
    rates={7: (0.5, 1.0)},
    swings=(Swing(0, 1, 0.1, 0.2, 1e9, 2e9, 0.5, 0.25),),
)


@dataclass(frozen=True, slots=True)
class Watch:
    name: str
    lane: Lane
    times: tuple[float, ...] = ()
    ranks: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Columns:
    rank: NDArray[np.int64]
    score: NDArray[np.float64]


@dataclass
class Recent:
    kept: deque[Watch] = field(default_factory=deque)


arrays = hnp.arrays(
    st.sampled_from([np.dtype(name) for name in ("bool", "u1", "i4", "i8", ">i8", "f4", "f8", "<U3", "S2")]),
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)
integers = st.integers(-(1 << 62), 1 << 62)
watches = st.builds(
    Watch,
    texts,
    st.builds(Lane, texts, integers, integers),
    st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
    st.frozensets(integers, max_size=4),
)


@given(st.dictionaries(texts | integers, watches | st.none(), max_size=4))
def test_a_state_comes_back_equal(state: dict[str | int, Watch | None]) -> None:
    assert stored(state, dict[str | int, Watch | None]) == state


@given(arrays)
def test_an_array_comes_back_equal_and_can_be_written(array: np.ndarray) -> None:
    again = stored([array], list[np.ndarray])[0]
    assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert again.flags.writeable


def test_an_attribution_comes_back_equal_without_what_was_computed_from_it() -> None:
    empty = Attribution(0, {}, {}, {}, {})
    assert [stored(FULL), stored(empty)] == [FULL, empty]
    one = stored(Attribution(1, {}, {}, {GROUP: LaneExcess(1.0, 2.0, 0.5, NAN)}, {}))
    assert np.isnan(one.lanes[GROUP].size_bytes)
    assert one.excess_ns is None
    one = replace(FULL)
    before = encode_state(one, 1)
    assert (len(one.lane_columns.keys), len(one.work_columns[0])) == (2, 2)
    assert encode_state(one, 1) == before
    assert stored(one) == one


def test_deques_scalars_and_views_come_back_as_plain_values() -> None:
    kept = deque([Watch("a", WORK), Watch("b", PAIR)])
    assert stored(Recent(kept)).kept == kept
    assert stored({"a": np.int64(3), "b": np.float64(0.5), "c": np.bool_(True)}, dict[str, Any]) == {
        "a": 3, "b": 0.5, "c": True,
    }  # fmt: skip
    array = np.arange(12).reshape(3, 4)
    for view in (array[:, ::2], array.T, np.asfortranarray(array)):
        assert np.array_equal(stored([view], list[np.ndarray])[0], view)


def test_a_field_that_is_new_has_its_default_where_older_bytes_lack_it() -> None:
    older = encode_state({"name": "a", "lane": ["work", 1]}, 1)
    assert decode_state(older, Watch, 1) == Watch("a", Lane("work", 1))


@given(watches, st.integers(0, 60))
def test_cut_bytes_are_refused(state: Watch, kept: int) -> None:
    value = encode_state(state, 1)
    if kept < len(value):
        with pytest.raises(RecordError, match="state must"):
            decode_state(value[:kept], Watch, 1)


@given(st.binary(max_size=64), st.booleans())
def test_foreign_bytes_are_refused(body: bytes, has_prefix: bool) -> None:
    with pytest.raises(RecordError, match="state must"):
        decode_state(sealed(body) if has_prefix else body, Watch, 1)


def sealed(body: bytes) -> bytes:
    """Bytes of somebody who knows the format."""
    return struct.pack("<3sBI", b"IRS", 1, zlib.crc32(body)) + body


def test_no_bytes_and_damage_are_refused_and_named() -> None:
    for value in (None, b""):
        with pytest.raises(RecordError, match=r"state must begin with b'IRS'.*got b''"):
            decode_state(value, Watch, 1)
    value = bytearray(encode_state(Watch("a", WORK), 1))
    value[-1] ^= 1
    with pytest.raises(RecordError, match="checksum"):
        decode_state(bytes(value), Watch, 1)


@pytest.mark.parametrize(("tree", "said"), [
    ({"lane": ["work", 1]}, "Watch; got another one: Object missing required field `name`"),
    ({"name": 3, "lane": ["work", 1]}, r"Expected `str`, got `int` - at `\$.name`"),
    ({"name": "a", "lane": ["work"]}, r"length 2 to 3, got 1 - at `\$.lane`"),
    ([], "Expected `object`, got `array`"),
])  # fmt: skip
def test_what_is_missing_or_of_another_type_is_named(tree: Any, said: str) -> None:
    with pytest.raises(RecordError, match=said):
        decode_state(encode_state(tree, 1), Watch, 1)


@pytest.mark.parametrize(("version", "advice"), [(1, "older"), (3, "newer.*upgrade")])
def test_another_version_is_named(version: int, advice: str) -> None:
    with pytest.raises(RecordError, match=rf"version of a state must be 2; got {version} \(Watch; an? {advice}"):
        decode_state(encode_state(Watch("a", WORK), version), Watch, 2)


@pytest.mark.parametrize("array", [
    ["|O8", [1], bytes(8)], ["i8,i8", [1], bytes(16)], ["<M8[ns]", [1], bytes(8)], ["<f3", [1], bytes(3)],
    ["<U0", [1 << 60], b""], ["<i8", [1 << 62], bytes(8)], ["<i8", [-1, -1], bytes(8)], ["<i8", [2], bytes(8)],
    ["<i8", [], bytes(7)], ["<i8", [1]], "<i8",
])  # fmt: skip
def test_arrays_that_nobody_wrote_are_never_made(array: Any) -> None:
    with pytest.raises(RecordError, match="state must be"):
        decode_state(sealed(msgspec.msgpack.encode({"a": array})), dict[str, np.ndarray], 1)


@pytest.mark.parametrize("body", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x91" * 100_000])
def test_what_claims_to_be_large_or_deep_is_refused(body: bytes) -> None:
    for kind in (dict[str, Any], list[Any]):
        with pytest.raises(RecordError, match="state must be"):
            decode_state(sealed(body), kind, 1)


def test_an_array_has_the_dtype_that_its_annotation_says() -> None:
    whole, parts = np.arange(3), np.arange(3.0)
    assert np.array_equal(stored(Columns(whole, parts)).score, parts)
    with pytest.raises(RecordError, match=r"array must hold float64; got int64 - at `\$.score`"):
        stored(Columns(whole, whole))  # type: ignore[arg-type]


class Odd(NamedTuple):
    what: object


@pytest.mark.parametrize("inside", [np.array([object()]), object(), {1, 2}.__iter__()])
def test_what_is_no_state_is_a_programming_error(inside: Any) -> None:
    with pytest.raises(TypeError, match="must"):
        encode_state(Odd(inside), 1)


@pytest.mark.parametrize("array", [
    np.arange(3000), np.zeros((40, 50)), np.arange(5000, dtype=np.uint8), np.array(["abc", "d"] * 600),
    np.arange(128), np.arange(9),  # a column of a job of 128 ranks, and of one of few
])  # fmt: skip
def test_a_large_array_is_packed_and_comes_back_equal(array: np.ndarray) -> None:
    value = encode_state({"a": array}, 1)
    found = decode_state(value, dict[str, np.ndarray], 1)["a"]
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape, found.flags.writeable) == (array.dtype, array.shape, True)
    assert len(value) < array.nbytes / 3 or array.nbytes < 1024


def test_numbers_without_an_order_are_written_as_they_are_and_arrays_of_before_are_read() -> None:
    noise = np.frombuffer(np.random.default_rng(1).bytes(80_000), np.int64)
    assert len(encode_state({"a": noise}, 1)) == pytest.approx(noise.nbytes, rel=0.01)
    body = msgspec.msgpack.encode({"a": ["<i8", [3], np.arange(3).tobytes()]})
    np.testing.assert_array_equal(decode_state(sealed(body), dict[str, np.ndarray], 1)["a"], np.arange(3))


@pytest.mark.parametrize(("shape", "packed", "packing"), [
    ([3], b"\0" * 24, "zstd bytes by place"),
    ([1 << 40], b"(\xb5/\xfd", "zstd bytes by place"),
    ([0], b"", "zstd bytes by place"),
    ([3], b"\0" * 24, "of another kind"),
])  # fmt: skip
def test_an_array_that_is_not_packed_as_it_says_is_refused(shape: list[int], packed: bytes, packing: str) -> None:
    body = msgspec.msgpack.encode({"a": ["<i8", shape, packed, packing]})
    with pytest.raises(RecordError, match=r"packed|packing"):
        decode_state(sealed(body), dict[str, np.ndarray], 1)


@pytest.mark.parametrize("content", [b"", b"\1\0\0\0", struct.pack("<Q", 1 << 50), struct.pack("<Q", 9) + b"garbage"])
def test_a_state_that_is_not_compressed_as_it_says_is_refused(content: bytes) -> None:
    value = struct.pack("<3sBI", b"IRZ", 1, zlib.crc32(content)) + content
    with pytest.raises(RecordError, match="state must be a dict; got another one"):
        decode_state(value, dict[str, int], 1)
