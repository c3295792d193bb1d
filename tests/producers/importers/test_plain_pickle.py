"""Pickles of plain data read as Python would; whatever would run something is refused, and runs nothing."""

from __future__ import annotations

import contextlib
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.producers.importers.flight_recorder import load_plain

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text() | st.binary()
)
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(plain, st.sampled_from([3, 4, 5]))
def test_plain_data_reads_as_it_was_written(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == value


class Evil:
    """Would make a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    value = pickle.dumps({"version": "2.9", "entries": [Evil(tmp_path / "made")]}, protocol)
    with pytest.raises(InputError, match="which builds more than plain data"):
        load_plain(value)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("value", [Path("a"), {1, 2}, 1j, bytearray(b"a"), Evil(Path("a"))])
def test_everything_else_than_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(InputError):
        load_plain(pickle.dumps(value, 5))


@pytest.mark.parametrize(
    "value",
    [b"", b"\x80", b"\x80\x02", b"\x80\x02.", b"\x80\x02}", b"(.", b"0.", b"\x80\x02h\x05.",
     b"\x80\x02}(X\x01\x00\x00\x00au.", b"\x80\x02]}e.",
     b"N" * 5 + b".", b"\x80\x02(K\x01r\xff\xff\xff\xffN.", b"\x8a\xff" + b"\x01" * 255 + b"."],
)  # fmt: skip
def test_broken_pickles_are_refused(value: bytes) -> None:
    with pytest.raises(InputError, match="must be a complete pickle of plain data"):
        load_plain(value)


@pytest.mark.parametrize(
    "value",
    [
        b"\x80\x02Nr\xff\xff\xff\xff.",  # a place in memory far out
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",  # bytes that are not there
        b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",  # a bytearray of a tebibyte
    ],
)
def test_a_few_bytes_never_take_much_memory(value: bytes) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(InputError):
            assert load_plain(value) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(value: bytes) -> None:
    with contextlib.suppress(InputError):
        load_plain(b"\x80\x02" + value)
