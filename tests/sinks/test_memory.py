from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.sinks.memory import MemorySink
from irregulars.sinks.tables import sort_by_key, tables_of
from tests.sinks import made_up_job

ROWS = tables_of(made_up_job.judgements())


def test_the_newest_revision_of_a_verdict_stays_whatever_comes_after() -> None:
    sink = MemorySink()
    for first in (2, 0, 1):
        sink.write({"verdicts": ROWS["verdicts"].slice(first, 1)})
    assert sink.read("verdicts").column("revision").to_pylist() == [3]


@settings(max_examples=20)
@given(st.lists(st.integers(0, 40), max_size=4))
def test_any_borders_of_batches_give_the_same_rows(borders: list[int]) -> None:
    sink, table = MemorySink(), ROWS["iterations"]
    edges = [0, *sorted(borders), table.num_rows]
    for first, past in itertools.pairwise(edges):
        sink.write({"iterations": table.slice(max(0, first - 3), past - first + 3)})
    assert sort_by_key("iterations", sink.read("iterations")).equals(sort_by_key("iterations", table))
