from __future__ import annotations

from irregulars.infra.doctor.checks.findings import GROUPS, finding, ok, status_of
from irregulars.infra.doctor.report import coloured, lines_of, summary

LONG = "a job with a long name " * 10
FOUND = [
    ok("machine", "release", "irregulars 0.1.0"),
    finding("problem", "topics", "retention", LONG, "topic_config", topic="t" * 60, config="retention.ms=172800000"),
    finding("warning", "jobs", "job \x1b[31mred", "x", "dead_letters"),
]


def test_it_fits_into_80_columns_and_obeys_no_name() -> None:
    lines = [line for line, _ in lines_of(FOUND)]
    assert max(map(len, lines)) <= 80 or any("t" * 60 in line for line in lines if len(line) > 80)
    assert not any("\x1b" in line for line in lines)
    assert [line for line in lines if line in GROUPS.values()] == ["This machine", "Topics", "Producers and jobs"]


def test_what_to_do_stands_beneath_what_is_not_well_only() -> None:
    lines = [line for line, _ in lines_of(FOUND)]
    assert sum("-> " in line for line in lines) == 2
    assert lines[1] == "  ok       release: irregulars 0.1.0"


def test_the_level_alone_bears_the_colour() -> None:
    line, style = next((line, style) for line, style in lines_of(FOUND) if "PROBLEM" in line)
    (span,) = [one for one in coloured(line, style).spans if one.style]
    assert line[span.start : span.end].strip() == "PROBLEM"


def test_status_and_summary_count_problems() -> None:
    assert status_of(FOUND) == 1
    assert status_of(FOUND[2:]) == 0
    assert summary(FOUND, 2.0) == "1 problem, 1 warning, 0 not known, 1 ok, in 2 s"
