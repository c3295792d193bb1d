"""Signatures of clog: every operator that TorchComms names, its size, its peer."""

from __future__ import annotations

import math

import pytest

from irregulars.messages.records import OPERATORS, UNKNOWN
from irregulars.producers.importers.clog_lines import read_signature

# As the published page lists them: the operator, its parameters, ours, and the payload in bytes.
PUBLISHED = [
    ("all_reduce|in_count=8|out_count=8|dtype=f32|red_op=sum|async_op=f", "all_reduce", 32),
    ("broadcast|in_count=8|out_count=8|dtype=f64|root=0|async_op=f", "broadcast", 64),
    ("reduce|in_count=8|out_count=8|dtype=bf16|red_op=premul_sum|root=1|async_op=f", "reduce", 16),
    ("all_gather_single|in_count=2|out_count=8|dtype=u8|async_op=t", "all_gather", 2),
    ("all_gather|in_count=2|out_counts=2,2|dtype=f16|async_op=t", "all_gather", 4),
    ("all_gather_v|in_count=2|out_counts=2,9|dtype=f16|async_op=t", "all_gather", 4),
    ("reduce_scatter_single|in_count=8|out_count=2|dtype=i64|red_op=avg|async_op=t", "reduce_scatter", 64),
    ("reduce_scatter|in_counts=3,3|out_count=3|dtype=i32|red_op=sum|async_op=t", "reduce_scatter", 24),
    ("reduce_scatter_v|in_counts=3,5|out_count=3|dtype=i8|red_op=sum|async_op=t", "reduce_scatter", 8),
    ("all_to_all_single|in_count=4|out_count=4|dtype=i16|async_op=f", "all_to_all", 8),
    ("all_to_all_v_single|in_splits=1,3|out_splits=2,2|dtype=f32|async_op=f", "all_to_all", math.nan),
    ("all_to_all|in_counts=1,3|out_counts=2,2|dtype=fp8e4m3|async_op=f", "all_to_all", 4),
    ("scatter|in_counts=|out_count=5|dtype=bool|root=3|async_op=f", "scatter", 5),
    ("gather|in_count=5|out_counts=|dtype=fp8e5m2|root=3|async_op=f", "gather", 5),
    ("gather_single|in_count=5|out_count=20|dtype=other|root=3|async_op=f", "gather", math.nan),
    ("barrier|async_op=f", "barrier", math.nan),
    ("send|in_count=4|out_count=0|dtype=f32|peer=3|async_op=f", "send", 16),
    ("recv|in_count=0|out_count=4|dtype=f32|peer=3|async_op=f", "recv", 16),
    ("all_reduce|in_count=8|out_count=8|dtype=f32|red_op=sum|async_op=f|buf=0x7f00", "all_reduce", 32),
]


@pytest.mark.parametrize(("text", "operator", "size_bytes"), PUBLISHED)
def test_every_published_operator_has_its_name_and_size(text: str, operator: str, size_bytes: float) -> None:
    found = read_signature([*text.split("|"), "comm=world"])
    assert found is not None
    assert found.operator is not None
    assert (found.communicator, OPERATORS[found.operator]) == ("world", operator)
    assert found.size_bytes == pytest.approx(size_bytes, nan_ok=True)
    assert found.is_async == ("async_op=t" in text)
    assert found.peer == (3 if operator in ("send", "recv") else UNKNOWN)


def test_an_operator_that_is_new_to_us_is_known_to_be_none_of_ours() -> None:
    """A name that only contains one of ours must not pass for it."""
    found = read_signature(["my_all_reduce", "in_count=1", "dtype=f32", "comm=world"])
    assert found is not None
    assert found.operator is None


@pytest.mark.parametrize(
    "text",
    ["all_reduce|in_count=1", "all_reduce|comm=", "send|dtype=f32|comm=w", "send|peer=-1|comm=w",
     "recv|peer=x|comm=w", "send|peer=99999999|comm=w"],
)  # fmt: skip
def test_without_communicator_or_peer_it_is_none(text: str) -> None:
    assert read_signature(text.split("|")) is None


@pytest.mark.parametrize("count", ["-1", "1e9", "x", "1,,2", "9" * 40, "٣"])
def test_a_count_that_makes_no_sense_is_an_unknown_size(count: str) -> None:
    found = read_signature(["all_reduce", f"in_count={count}", "dtype=f32", "comm=w"])
    assert found is not None
    assert math.isnan(found.size_bytes)
