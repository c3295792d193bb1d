from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from irregulars.arrow_numpy import from_numpy, to_numpy


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int64(), pa.float32(), pa.float64(), pa.bool_()])
def test_numbers_of_each_type_keep_it(kind: pa.DataType) -> None:
    array = pa.array([0, 1, 1, 0, 1], pa.int8()).cast(kind)
    assert to_numpy(array).dtype == kind.to_pandas_dtype()
    assert to_numpy(array).tolist() == [0, 1, 1, 0, 1]


def test_slices_chunks_and_nothing_are_read_where_they_begin() -> None:
    whole = pa.array([7, None, 9, None, 11])
    assert to_numpy(whole[1:4], -1).tolist() == [-1, 9, -1]
    assert to_numpy(pa.chunked_array([whole[:2], whole[2:2], whole[2:]]), -1).tolist() == [7, -1, 9, -1, 11]
    assert to_numpy(whole[2:3]).tolist() == [9]
    for empty in (pa.array([], pa.uint8()), pa.chunked_array([], pa.uint8())):
        assert to_numpy(empty).dtype == np.uint8
        assert len(to_numpy(empty)) == 0


def test_a_null_becomes_what_stands_for_it() -> None:
    assert to_numpy(pa.array([True, None]), False).tolist() == [True, False]
    assert math.isnan(to_numpy(pa.array([1.5, None]), math.nan)[1])
    with pytest.raises(ValueError, match="all values must be known; got 1 nulls"):
        to_numpy(pa.array([1, None]))


@pytest.mark.parametrize("values", [np.arange(5), np.arange(10)[::2], np.array([0.5, math.nan]), np.empty(0)])
def test_there_and_back(values: np.ndarray) -> None:
    np.testing.assert_array_equal(to_numpy(from_numpy(values)), values)
