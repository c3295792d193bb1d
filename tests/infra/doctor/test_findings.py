"""What to do is a command or a place in the docs that exists, and the report fits its screen."""

from __future__ import annotations

import re
from pathlib import Path

import typer
from typer.core import TyperGroup

from irregulars.infra import cli
from irregulars.infra.doctor.diagnosis import BLOCKING
from irregulars.infra.doctor.findings import GROUPS, TO_DO, coloured, finding, lines_of, ok, status_of, summary
from tests.conftest import ROOT

CHECKS = ROOT / "infra" / "doctor"
PAGE = re.compile(r"(?:infra/docs/[\w-]+|README)\.md(?:#[\w-]+)?")
COMMAND = re.compile(r"\birregulars(?: --set \S+)? ([a-z-]+)(?: ([a-z-]+))?")
OPTION = re.compile(r"(--[a-z-]+)")


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


def test_each_names_a_command_or_a_place_in_the_docs_that_exists() -> None:
    for text in TO_DO.values():
        pages, commands = PAGE.findall(text), COMMAND.findall(text)
        for one in pages:
            name, _, anchor = one.partition("#")
            assert (ROOT / name).exists(), one
            assert not anchor or anchor in anchors(ROOT / name), one
        for name, second in commands:
            found = typer.main.get_command(cli.app)
            assert isinstance(found, TyperGroup)
            command = found.commands[name]
            if isinstance(command, TyperGroup):
                command = command.commands[second]
            known = {flag for one in command.params for flag in one.opts} | {"--set"}
            named = OPTION.findall(re.split(r"kafka-configs", text)[0])
            assert set(named) <= known, text
        assert pages or commands or "chmod" in text, text


def test_every_case_is_used_and_every_used_case_is_known() -> None:
    text = "".join(path.read_text() for path in CHECKS.rglob("*.py"))
    used = {code for code in TO_DO if text.replace(f'"{code}": ', "").count(f'"{code}"')}
    assert sorted(TO_DO.keys() - used) == []
    assert sorted(BLOCKING - TO_DO.keys()) == []


LONG = "a job with a long name " * 10
FOUND = [
    ok("machine", "release", "irregulars 0.1.0"),
    finding("problem", "topics", "retention", LONG, "topic_config", topic="t" * 60, config="retention.ms=172800000"),
    finding("warning", "jobs", "job \x1b[31mred", "x", "dead_letters"),
]


def test_a_report_fits_into_80_columns_obeys_no_name_and_colours_the_level_alone() -> None:
    lines = [line for line, _ in lines_of(FOUND)]
    assert max(map(len, lines)) <= 80 or any("t" * 60 in line for line in lines if len(line) > 80)
    assert not any("\x1b" in line for line in lines)
    assert [line for line in lines if line in GROUPS.values()] == ["This machine", "Topics", "Producers and jobs"]
    lines = [line for line, _ in lines_of(FOUND)]
    assert sum("-> " in line for line in lines) == 2
    assert lines[1] == "  ok       release: irregulars 0.1.0"
    line, style = next((line, style) for line, style in lines_of(FOUND) if "PROBLEM" in line)
    (span,) = [one for one in coloured(line, style).spans if one.style]
    assert line[span.start : span.end].strip() == "PROBLEM"
    assert status_of(FOUND) == 1
    assert status_of(FOUND[2:]) == 0
    assert summary(FOUND, 2.0) == "1 problem, 1 warning, 0 not known, 1 ok, in 2 s"
