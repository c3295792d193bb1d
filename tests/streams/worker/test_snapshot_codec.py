from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from irregulars.errors import RecordError
from irregulars.streams.worker.snapshot_codec import pack, unpack

arrays = hnp.arrays(
    st.sampled_from([np.dtype(name) for name in ("bool", "u1", "i4", "i8", "f4", "f8", "<U3")]),
    hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=4),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
keys = st.text(max_size=4) | st.integers() | st.just("$array") | st.just("$items")
trees = st.recursive(
    scalars | arrays,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.dtype == right.dtype and left.tobytes() == right.tobytes()
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and (left == right or (left != left and right != right))


@given(trees)
def test_unpack_returns_what_was_packed(tree: Any) -> None:
    assert same(tree, unpack(pack(tree)))


@given(trees, st.integers(0, 60))
def test_cut_bytes_are_a_record_error(tree: Any, kept: int) -> None:
    value = pack(tree)
    if kept < len(value):
        with pytest.raises(RecordError):
            unpack(value[:kept])


@given(st.binary(max_size=64))
def test_foreign_bytes_are_a_record_error(value: bytes) -> None:
    with pytest.raises(RecordError):
        unpack(value)


def test_numpy_scalars_become_plain_ones() -> None:
    packed = pack({"a": np.int64(3), "b": np.float64(0.5), "c": np.bool_(True)})
    assert unpack(packed) == {"a": 3, "b": 0.5, "c": True}


def test_views_and_other_orders_of_memory_survive() -> None:
    array = np.arange(12).reshape(3, 4)
    for view in (array[:, ::2], array.T, np.asfortranarray(array)):
        assert np.array_equal(unpack(pack(view)), view)


def test_arrays_read_back_can_be_written() -> None:
    unpack(pack(np.zeros(3)))[0] = 1.0


def test_objects_are_refused_and_named() -> None:
    with pytest.raises(TypeError, match="object"):
        pack(np.array([object()]))
    with pytest.raises(TypeError, match="set"):
        pack({"a": {1, 2}})


def test_a_newer_version_is_named() -> None:
    value = bytearray(pack({}))
    value[3] = 9
    with pytest.raises(RecordError, match="got 9"):
        unpack(bytes(value))


def test_an_object_array_in_the_header_is_never_built() -> None:
    value = pack(np.zeros(1)).replace(b"<f8", b"|O8")
    with pytest.raises(RecordError):
        unpack(value)
