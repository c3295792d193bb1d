"""What operators, bandwidth, and both can tell, as `infra/docs/judgement.md` says."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.producers.trace.directory import read_trace

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "infra" / "docs" / "judgement.md"
WITHOUT = ("bandwidth", "commops", None)
"""What is left aside in each column."""

ROW = re.compile(r"^\| `([\w-]+)` \([^|]+\) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
CELLS = [
    (name, without, cell)
    for name, *cells in ROW.findall(PAGE.read_text())
    for without, cell in zip(WITHOUT, cells, strict=True)
]


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


def test_the_table_holds_both_recordings_of_a_slow_network_and_two_where_samples_must_stay_silent() -> None:
    assert {name for name, _, _ in CELLS} == {"gloo-slow-nic", "gloo-slow-link", "gloo-slow-rank", "gloo-clean"}


@pytest.mark.parametrize(("name", "without", "cell"), CELLS, ids=lambda value: str(value))
def test_the_recording_tells_what_the_page_says(name: str, without: str | None, cell: str) -> None:
    what, chance = split(cell)
    found, probability = split(told(judged(name, without)))
    assert found == what
    assert abs(probability - chance) <= 5, "the page must say what is found now"


def test_bandwidth_alone_knows_which_iterations_of_the_slow_link_were_irregular() -> None:
    assert (60, 80) in judged("gloo-slow-link", "commops").irregular_ranges


def test_the_verdict_says_the_capped_rate() -> None:
    for without in ("commops", None):
        (verdict,) = judged("gloo-slow-nic", without).verdicts
        said = re.search(r"rank 1 sent ([\d.]+) Mbit/s meanwhile, ± ", verdict.evidence)
        assert said is not None
        assert float(said[1]) == pytest.approx(80, rel=0.05)  # what `tc` let through
