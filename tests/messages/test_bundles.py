"""Bundles hold what their batches held, and what can't be one is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from irregulars.errors import RecordError
from irregulars.messages.bundles import (
    MAX_GROUP_RANKS,
    Bundle,
    bundle_of,
    decode_batches,
    decode_rows,
    encode_bundle,
    group_of,
)
from irregulars.messages.records import Batch, decode_batch, encode_batch
from tests.streams.lockstep_job import operator_batch

T0 = 1_800_000_000_000_000_000


def batch(rank: int, *communicators: str, **header: Any) -> Batch:
    rows = [
        {"iteration": 4, "sequence": rank, "start_ns": T0 + n, "elapsed_ns": 2.0, "communicator": name}
        for n, name in enumerate(communicators)
    ]
    return operator_batch(rank, rows, group="node-1/0", **header)


def named(one: Batch) -> list[str]:
    return [one.header.names[code] for code in one.columns["communicator"].tolist()]


def bundle() -> Bundle:
    return bundle_of([batch(5, "tp", "dp", rows_before=7, watermark_ns=None), batch(3, "world", watermark_ns=T0)])


def test_the_batches_of_a_bundle_are_those_that_went_in() -> None:
    first, second = decode_batches(encode_bundle(bundle()), "commops")
    assert (first.header.rank, first.header.rows_before, first.header.watermark_ns) == (3, 0, T0)
    assert (second.header.rank, second.header.rows_before, second.header.watermark_ns) == (5, 7, None)
    assert (named(first), named(second)) == (["world"], ["tp", "dp"])
    assert second.columns["sequence"].tolist() == [5, 5]
    assert {one.header.group for one in (first, second)} == {"node-1/0"}


def test_a_reader_of_single_batches_says_that_the_producer_is_newer() -> None:
    with pytest.raises(RecordError, match=r"version must be 1 to 1; got 2 \(a newer producer\? upgrade the worker\)"):
        decode_batch(encode_bundle(bundle()), "commops")


@pytest.mark.parametrize(("change", "reason"), [
    ({"rows": (1, 1)}, "rows of the ranks must be 3 together, as many as there are; got 2"),
    ({"rows": (1, 1, 1)}, "rows must have a value for each of 2 ranks; got 3"),
    ({"rows_before": (0,)}, "rows_before must have a value for each of 2 ranks; got 1"),
    ({"watermarks_ns": ()}, "watermarks_ns must have a value for each of 2 ranks; got 0"),
    ({"ranks": (5, 3)}, r"ranks must be ascending; got \[5, 3\]"),
    ({"ranks": (3, 3)}, r"ranks must be ascending; got \[3, 3\]"),
    ({"ranks": tuple(range(MAX_GROUP_RANKS + 1))}, "ranks must be "),
    ({"rows": (1 << 60, 2)}, r"rows\[0\] must be an integer from 0 to "),
    ({"group": ""}, "group must be text that is not empty"),
    ({"names": ("world",)}, "communicator codes must be below 1; got 2"),
])  # fmt: skip
def test_lists_that_do_not_fit_together_are_refused(change: dict[str, Any], reason: str) -> None:
    made = bundle()
    with pytest.raises(RecordError, match=reason):
        decode_rows(encode_bundle(replace(made, header=replace(made.header, **change))), "commops")


def test_a_rank_without_rows_gives_no_batch_and_a_single_batch_is_read_as_one() -> None:
    made = bundle()
    header = replace(
        made.header, ranks=(3, 4, 5), rows=(1, 0, 2), rows_before=(0, 0, 7), watermarks_ns=(T0, None, None)
    )
    assert [one.header.rank for one in Bundle(header, made.columns).batches()] == [3, 5]
    alone = replace(batch(3, "tp"), header=replace(batch(3, "tp").header, group=None))
    assert [one.header for one in decode_batches(encode_batch(alone), "commops")] == [alone.header]


def test_codes_of_all_batches_are_those_of_one_dictionary() -> None:
    made = bundle_of([batch(0, "a", "b"), batch(1, "c"), batch(2, "b", "c")])
    assert made.header.names == ("a", "b", "c")
    assert made.columns["communicator"].tolist() == [0, 1, 2, 1, 2]
    assert made.columns["communicator"].dtype == np.uint16


def test_groups_of_a_host_are_bounded() -> None:
    groups = [group_of("node-1", rank) for rank in range(4 * MAX_GROUP_RANKS)]
    assert {groups.count(group) for group in groups} == {MAX_GROUP_RANKS}
    assert len(group_of("h" * 1024, 0) or "") < 1024
