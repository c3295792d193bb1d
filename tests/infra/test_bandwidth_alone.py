"""What operators, bandwidth, and both can tell of a recording."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.producers.trace.directory import read_trace

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = ("bandwidth", "commops", None)
"""What is left aside in each column of `TABLE`."""

NIC, LINK, RANK = "`slow_nic` nic 1, 60 to 80", "`slow_link` link 1 3, 60 to 79", "`slow_rank` gpu 2, 60 to 79"
TABLE = {
    "gloo-slow-nic": (f"{NIC}, 99 %", "`slow_nic` nic 1, 61 to 79, 85 %", f"{NIC}, 99 %"),
    "gloo-slow-link": (f"{LINK}, 97 %", "nobody", f"{LINK}, 97 %"),
    "gloo-slow-rank": (f"{RANK}, 99 %", "nobody", f"{RANK}, 99 %"),
    "gloo-clean": ("nobody", "nobody", "nobody"),
}
CELLS = [(name, without, cell) for name, cells in TABLE.items() for without, cell in zip(WITHOUT, cells, strict=True)]


@cache
def judged(name: str, without: str | None) -> Analysis:
    return analyze(read_trace(ROOT / "tests" / "recordings" / name, without=() if without is None else (without,)))


def told(analysis: Analysis) -> str:
    """Write what was found as the table does."""
    found = []
    for verdict in analysis.verdicts:
        first, past = verdict.iterations
        suspect = verdict.suspects[0]
        ranks = " ".join(map(str, suspect.ranks))
        where = f"{suspect.device} {ranks}, {first} to {past - 1}"
        found.append(f"`{verdict.kind}` {where}, {suspect.probability:.0%}".replace("%", " %"))
    return "; ".join(found) or "nobody"


def split(cell: str) -> tuple[str, int]:
    """What is accused, and how surely, in per cent; nobody with 0."""
    what, comma, chance = cell.rpartition(", ")
    return (what, int(chance.removesuffix(" %"))) if comma else (cell, 0)


@pytest.mark.parametrize(("name", "without", "cell"), CELLS, ids=lambda value: str(value))
def test_what_each_source_tells(name: str, without: str | None, cell: str) -> None:
    what, chance = split(cell)
    found, probability = split(told(judged(name, without)))
    assert found == what
    assert abs(probability - chance) <= 5


def test_bandwidth_alone_knows_which_iterations_of_the_slow_link_were_irregular() -> None:
    assert (60, 80) in judged("gloo-slow-link", "commops").irregular_ranges


def test_the_verdict_says_the_capped_rate() -> None:
    for without in ("commops", None):
        (verdict,) = judged("gloo-slow-nic", without).verdicts
        said = re.search(r"rank 1 sent ([\d.]+) Mbit/s meanwhile, ± ", verdict.evidence)
        assert said is not None
        assert float(said[1]) == pytest.approx(80, rel=0.05)  # what `tc` let through
