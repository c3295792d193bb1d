"""Events are found exactly, whatever is written in them and wherever blocks end."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.producers.importers.kineto_trace import EventReader

WANTED = (b"nccl", b"Step#")

# Texts that look like structure: quotes, brackets, backslashes, the names that are looked for.
tricky = st.text(alphabet='{}[]",:\\ abc\n_Yy\x7fé', max_size=12) | st.sampled_from(
    ["nccl", '"},{"nccl', "traceEvents", '"traceEvents": [', "\\", '\\"', "Step#4"]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | tricky,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tricky, inner, max_size=3),
    max_leaves=8,
)
events = st.lists(st.dictionaries(tricky, values, max_size=4), max_size=6)
properties = st.dictionaries(tricky.filter(lambda key: key != "traceEvents"), values, max_size=3)


def written(before: dict[str, Any], listed: list[Any], after: dict[str, Any], indent: int | None) -> bytes:
    whole = {**before, "traceEvents": listed}
    whole |= {key: value for key, value in after.items() if key not in whole}
    return json.dumps(whole, indent=indent, ensure_ascii=False).encode()


def read(value: bytes, block_bytes: int = 1 << 20) -> tuple[list[Any], dict[str, Any], int]:
    reader = EventReader(io.BytesIO(value), WANTED, block_bytes)
    found = list(reader.read())
    return found, reader.properties(), reader.events


def is_wanted(event: Any) -> bool:
    return any(text in json.dumps(event, ensure_ascii=False).encode() for text in WANTED)


@settings(max_examples=50)
@given(properties, events, properties, st.sampled_from([None, 0, 2]), st.integers(1, 200))
def test_exactly_the_wanted_events_are_found(
    before: dict[str, Any], listed: list[Any], after: dict[str, Any], indent: int | None, block_bytes: int
) -> None:
    value = written(before, listed, after, indent)
    found, rest, count = read(value, block_bytes)
    assert found == [event for event in listed if is_wanted(event)]
    assert count == len(listed)
    assert rest == json.loads(value) | {"traceEvents": []}


@settings(max_examples=40)
@given(events.filter(bool), st.data())
def test_a_file_that_was_cut_off_anywhere_is_refused(listed: list[Any], data: st.DataObject) -> None:
    value = written({"a": 1}, listed, {"b": [2]}, None)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(InputError):
        read(value[:cut], data.draw(st.integers(1, 50)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "must be a JSON object with a list 'traceEvents'"),
        (b"[]", "must be a JSON object with a list 'traceEvents'"),
        (b'{"a": {"traceEvents": [1]}}', "must be a JSON object with a list 'traceEvents'"),
        (b'{"traceEvents": {"nccl": 1}}', "must be a JSON object with a list 'traceEvents'"),
        (b'{"traceEvents": [{"nccl": }]}', "event 1 must be JSON"),
        (b'{"traceEvents": [{"a": 1}, {"nccl": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "event 2 must be JSON"),
        (b'{"traceEvents": [] "a": 1}', "must be a complete JSON object"),
    ],
)
def test_what_is_no_trace_is_refused(value: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(value)


def test_an_event_or_a_head_without_end_is_refused_before_it_fills_the_memory() -> None:
    class Endless(io.RawIOBase):
        def __init__(self, begin: bytes, fill: bytes) -> None:
            self.begin, self.fill = begin, fill

        def read(self, size: int = -1) -> bytes:
            begin, self.begin = self.begin, b""
            return begin or self.fill * (size // len(self.fill))

    for begin, fill, most in (
        (b"{", b" ", 8 << 20),
        (b'{"traceEvents": [', b" ", 4 << 20),
        (b'{"traceEvents": [{"a": "', b"x", 4 << 20),
    ):
        reader = EventReader(Endless(begin, fill), WANTED)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"must be at most {most} bytes"):
            list(reader.read())
    reader = EventReader(Endless(b'{"traceEvents": []', b" "), WANTED)  # type: ignore[arg-type]
    list(reader.read())
    with pytest.raises(InputError, match="must be at most 8388608 bytes"):
        reader.properties()
