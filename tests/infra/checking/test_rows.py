from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.infra.checking.rows import COPIED_RATIO, LOST_RATIO
from irregulars.messages.records import SCHEMAS
from tests.infra.checking.recordings import apply, recorded, simulated, texts, touched
from tests.producers.trace_directories import assert_same

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=5)
NAMES = ("gloo-slow-nic", "torch-slow-rank")  # the second has no bandwidth


@pytest.mark.parametrize("change", ["row-order", "row-copies"])
@pytest.mark.parametrize("name", NAMES)
@FEW
@given(seed=SEEDS)
def test_order_and_copies_are_gone_once_it_is_read(change: str, name: str, seed: int) -> None:
    before, after = recorded(name), apply(change, recorded(name), seed).recording
    assert touched(before, after) - {one for one in touched(before, after) if one.split(".")[0] in SCHEMAS} == set()
    assert_same(after.to_trace(), before.to_trace())


def test_another_order_has_the_same_rows() -> None:
    before = recorded("gloo-slow-nic")
    after = apply("row-order", before).recording
    for schema in SCHEMAS:
        assert (after.tables[schema]["rank"] != before.tables[schema]["rank"]).any()
        assert texts(after, schema) == texts(before, schema)


def test_copies_are_of_rows_that_are_there() -> None:
    before = simulated("three")
    after = apply("row-copies", before).recording
    for schema in SCHEMAS:
        old, new = Counter(texts(before, schema)), Counter(texts(after, schema))
        assert old.keys() == new.keys()
        assert sum(new.values()) / sum(old.values()) == pytest.approx(1 + COPIED_RATIO, abs=0.006)


@FEW
@given(seed=SEEDS)
def test_loss_takes_rows_and_nothing_else(seed: int) -> None:
    before = simulated("three")
    after = apply("row-loss", before, seed).recording
    assert touched(before, after) <= {*SCHEMAS, "places"}
    for schema in SCHEMAS:
        assert not Counter(texts(after, schema)) - Counter(texts(before, schema))
    kept = len(after.tables["commops"]["rank"]) / len(before.tables["commops"]["rank"])
    assert 1 - kept == pytest.approx(LOST_RATIO, abs=0.004)


def test_who_counts_its_losses_counts_these() -> None:
    before = recorded("torch-slow-rank")
    after = apply("row-loss", before).recording
    lost = sum(len(before.tables[schema]["rank"]) - len(after.tables[schema]["rank"]) for schema in SCHEMAS)
    assert sum(place.lost_rows or 0 for place in after.job.places.values()) == lost > 0


def test_who_counts_no_losses_goes_on_saying_nothing() -> None:
    after = apply("row-loss", recorded("gloo-slow-nic")).recording
    assert {place.lost_rows for place in after.job.places.values()} == {None}
    assert np.unique(after.tables["commops"]["rank"]).tolist() == [0, 1, 2, 3]


def test_rows_that_tell_who_arrived_in_a_hang_are_never_lost() -> None:
    before = simulated("stopped")
    elapsed_ns = before.tables["commops"]["elapsed_ns"]
    unended = before.with_rows("commops", np.flatnonzero(np.isnan(elapsed_ns)).repeat(200))
    assert np.isnan(elapsed_ns).any()
    for seed in range(3):
        after = apply("row-loss", unended, seed).recording
        assert len(after.tables["commops"]["rank"]) == len(unended.tables["commops"]["rank"])
