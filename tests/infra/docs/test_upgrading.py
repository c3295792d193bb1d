"""What infra/docs/install.md says of upgrades and commands is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from irregulars.kafka.topics import TOPICS
from irregulars.streams.snapshots.records import STATE_VERSION
from tests.infra.kit.command_lines import parse

PAGE = (Path(__file__).resolve().parents[3] / "infra" / "docs" / "install.md").read_text().split("\n## Upgrade\n")[1]


def test_its_commands_are_ours() -> None:
    calls = re.findall(r"^ {4,8}(irregulars .+)$|`(irregulars [a-z][^`]+)`", PAGE, re.MULTILINE)
    for indented, quoted in calls:
        parse(shlex.split((indented or quoted).replace("ROLE", "worker").replace("NAME", "ada")))
    assert len(calls) >= 6


def test_the_versions_of_states_are_those_of_the_code() -> None:
    assert f"(now {STATE_VERSION})" in PAGE
    assert {"rank_snapshots", "job_snapshots"} <= TOPICS.keys()
