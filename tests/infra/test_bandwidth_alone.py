"""What operators, bandwidth, and both can tell of a recording."""

from __future__ import annotations

import re
from functools import cache

import pytest

from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.producers.trace.directory import read_trace
from tests.conftest import RECORDINGS

WITHOUT = ("bandwidth", "commops", None)
"""What is left aside in each column of `TABLE`."""

NIC, LINK, RANK = "slow_nic nic (1,), 60 to 80", "slow_link link (1, 3), 60 to 79", "slow_rank gpu (2,), 60 to 79"
TABLE = {
    "gloo-slow-nic": (f"{NIC}, 0.99", "slow_nic nic (1,), 61 to 79, 0.85", f"{NIC}, 0.99"),
    "gloo-slow-link": (f"{LINK}, 0.97", "nobody", f"{LINK}, 0.97"),
    "gloo-slow-rank": (f"{RANK}, 0.99", "nobody", f"{RANK}, 0.99"),
    "gloo-clean": ("nobody", "nobody", "nobody"),
}
CELLS = [(name, without, cell) for name, cells in TABLE.items() for without, cell in zip(WITHOUT, cells, strict=True)]


@cache
def judged(name: str, without: str | None) -> Analysis:
    return analyze(read_trace(RECORDINGS / name, without=() if without is None else (without,)))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "without", "cell"), CELLS, ids=lambda value: str(value))
def test_what_each_source_tells(name: str, without: str | None, cell: str) -> None:
    found = []
    for verdict in judged(name, without).verdicts:
        suspect, (first, past) = verdict.suspects[0], verdict.iterations
        found.append(f"{verdict.kind} {suspect.device} {suspect.ranks}, {first} to {past - 1}")
        assert suspect.probability == pytest.approx(float(cell.rpartition(", ")[2]), abs=0.05)
    assert found == ([] if cell == "nobody" else [cell.rpartition(", ")[0]])


def test_bandwidth_alone_knows_which_iterations_of_the_slow_link_were_irregular() -> None:
    assert (60, 80) in judged("gloo-slow-link", "commops").irregular_ranges


def test_the_verdict_says_the_capped_rate() -> None:
    for without in ("commops", None):
        (verdict,) = judged("gloo-slow-nic", without).verdicts
        said = re.search(r"rank 1 sent ([\d.]+) Mbit/s meanwhile, ± ", verdict.evidence)
        assert said is not None
        assert float(said[1]) == pytest.approx(80, rel=0.05)  # what `tc` let through
