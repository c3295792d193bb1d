"""What to do is a command that exists, or a place in the docs that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from irregulars.infra import cli
from irregulars.infra.doctor.blocking import BLOCKING
from irregulars.infra.doctor.checks.what_to_do import TO_DO

ROOT = Path(__file__).resolve().parents[4]
CHECKS = ROOT / "infra" / "doctor"
PAGE = re.compile(r"(?:infra/docs/[\w-]+|README)\.md(?:#[\w-]+)?")
COMMAND = re.compile(r"\birregulars(?: --set \S+)? ([a-z-]+)(?: ([a-z-]+))?")
OPTION = re.compile(r"(--[a-z-]+)")


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("code", sorted(TO_DO))
def test_it_names_a_command_or_a_place_in_the_docs_that_exists(code: str) -> None:
    pages, commands = PAGE.findall(TO_DO[code]), COMMAND.findall(TO_DO[code])
    for one in pages:
        name, _, anchor = one.partition("#")
        assert (ROOT / name).exists(), one
        assert not anchor or anchor in anchors(ROOT / name), one
    for name, second in commands:
        require_command(name, second, TO_DO[code])
    assert pages or commands or "chmod" in TO_DO[code], TO_DO[code]


def require_command(name: str, second: str, text: str) -> None:
    found = typer.main.get_command(cli.app)
    assert isinstance(found, TyperGroup)
    command = found.commands[name]
    if isinstance(command, TyperGroup):
        command = command.commands[second]
    known = {flag for one in command.params for flag in one.opts} | {"--set"}
    named = OPTION.findall(re.split(r"kafka-configs", text)[0])
    assert set(named) <= known, text


def test_every_case_is_used_and_every_used_case_is_known() -> None:
    text = "".join(path.read_text() for path in CHECKS.rglob("*.py") if path.name != "what_to_do.py")
    used = {code for code in TO_DO if f'"{code}"' in text}
    assert sorted(TO_DO.keys() - used) == []
    assert sorted(BLOCKING - TO_DO.keys()) == []
