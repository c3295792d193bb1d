"""The runbook's commands, as they stand there: each kind's on a stored verdict of that kind."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from string import Template

import pytest

from irregulars.infra import cli
from irregulars.infra.settings import Settings
from irregulars.sinks.advice import runbook_of
from irregulars.sinks.connection import DatabaseSettings, connected
from tests.conftest import ClickHouseAddress
from tests.integration.guide_reader import blocks_of
from tests.integration.pipelines import own_database
from tests.integration.worker_runs import ROOT
from tests.sinks.recorded_jobs import TOKENS, rows_of_recording

pytestmark = pytest.mark.integration

PAGE = (ROOT / "infra" / "docs" / "runbook.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
KINDS = {
    "slow_rank": "gloo-slow-compute", "slow_nic": "gloo-slow-nic", "slow_link": "gloo-slow-link",
    "slow_communicator": "bench/tp2pp2dp2-spine", "slow_stage": "bench/tp2pp2dp2-stage",
    "imbalance": "bench/tp2pp2dp2-imbalance", "hang": "bench/pp4dp2-hang-inside",
    "corruption": "numerics/weight-exponent-fp32", "loss_spike": "numerics/batch-of-all-fp32",
    "mismatch": "made/other-call", "slow_checkpoint": "made/slow-writer",
    "custom": f"made/few-tokens {TOKENS}",
}  # fmt: skip
"""Kinds of verdicts, and a job of each; behind its name detectors with a say."""


@pytest.fixture(scope="module")
def recorded(clickhouse: ClickHouseAddress) -> Iterator[DatabaseSettings]:
    """A database that holds a verdict of each kind."""
    with own_database(clickhouse, *(rows_of_recording(*name.split()) for name in KINDS.values())) as settings:
        yield settings


def commands_of(section: str) -> list[str]:
    """The commands of ours in a section's blocks."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def run(command: str, values: Mapping[str, str], database: DatabaseSettings, patch: pytest.MonkeyPatch) -> str:
    """Run a command in this process as a shell would; it must succeed. Return what it prints."""
    settings = Settings(clickhouse_url=database.url, clickhouse_user=database.user,
                        clickhouse_password=database.password, clickhouse_database=database.database)  # fmt: skip
    for name, value in settings.to_environment().items():
        patch.setenv(name, value)
    patch.setattr(sys, "argv", shlex.split(Template(command).substitute(values)))
    said, complaints = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaints), contextlib.suppress(SystemExit):
        cli.main()
    assert not re.search(r"^irregulars: .* must ", complaints.getvalue(), re.MULTILINE), complaints.getvalue()
    return said.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_the_runbook_is_true(recorded: DatabaseSettings, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(recorded) as client:
        sql = (
            "SELECT verdict_id, job, ifNull(min(rank), 0) FROM verdicts FINAL LEFT JOIN newest_suspects AS named "
            "USING (verdict_id) WHERE kind = {kind:String} GROUP BY verdict_id, job LIMIT 1"
        )
        [[verdict_id, job, rank]] = client.query(sql, parameters={"kind": kind}).result_rows
    values = {"V": verdict_id, "JOB": job, "RANK": str(rank)}
    answers = {command: run(command, values, recorded, monkeypatch) for command in commands_of(kind)}
    assert answers
    assert [command for command, text in answers.items() if not text.strip()] == []
    shown = run('irregulars show "$V"', values, recorded, monkeypatch)
    assert f"Runbook   {runbook_of(kind)}" in shown


def test_what_to_do_first_serves_every_kind(recorded: DatabaseSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in commands_of("First, whatever the kind"):
        assert run(command, {"V": "gloo-slow-nic:0:60:0"}, recorded, monkeypatch)


def test_each_kind_has_a_section_that_says_the_same_things() -> None:
    assert {*KINDS, "First, whatever the kind"} == SECTIONS.keys()
    parts = ("**How sure.**", "**Look first.**", "**It may be**", "**Confirm.**", "**Do.**", "**It was wrong")
    assert [(kind, part) for kind in KINDS for part in parts if part not in SECTIONS[kind]] == []


def test_what_is_to_be_typed_on_a_node_is_what_a_shell_takes() -> None:
    blocks = [text for kind, text in blocks_of("runbook.md") if kind == "sh node"]
    assert len(blocks) == 5
    for text in blocks:
        done = subprocess.run(["bash", "-n"], input=text, env=os.environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
