"""Jobs of torch that come to stand, or slow: kind, ranks and words are right, and so is where the culprit stands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from irregulars.infra.console.incident import Look, read_looks
from irregulars.infra.runs.local_services import LocalServices
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import database_settings
from irregulars.messages.judgements import Verdict
from irregulars.sinks.connection import connected
from irregulars.sinks.investigations import run
from tests.conftest import ROOT
from tests.gloo_ranks import needs_torch, reading, training
from tests.integration.worker_runs import wait_until
from tests.looking_into import refusal

pytestmark = [pytest.mark.integration, needs_torch]


@pytest.fixture(scope="module", params=[6.0])
def services(request: pytest.FixtureRequest) -> Iterator[LocalServices]:
    if reason := refusal():
        pytest.skip(reason)
    # Gloo has no source that tells of a standstill: a job's silence does, usually after ten minutes. Four processes
    # lose no night's rest either: what is a page is said here.
    short = {"silence_s": request.param, "grace_s": 3.0, "alert_page_gpu_hours": 0.001, "alert_page_after_s": 1.0}
    with LocalServices(Settings(snapshot_s=1.0, partitions=4, **short)) as running:
        yield running


@pytest.fixture(scope="module")
def socket(services: LocalServices, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    own, folder = services.settings, tmp_path_factory.mktemp("agent")
    file, socket = folder / "agent.toml", folder / "agent.sock"
    file.write_text(
        f'kafka_bootstrap = "{own.kafka_bootstrap}"\ntopic_prefix = "{own.topic_prefix}"\n[agent]\nhost = "here"\n'
        f'[gpus]\nenabled = false\n[metrics]\nenabled = false\n[spool]\ndirectory = "{folder / "spool"}"\n'
        f'[[sources]]\nkind = "torch"\npath = "{socket}"\n'
    )
    with subprocess.Popen([sys.executable, "-m", "irregulars", "agent", str(file)], cwd=ROOT) as agent:
        try:
            wait_until(socket.exists, "the agent's socket")
            yield socket
        finally:
            agent.terminate()


CIRCLE = "a circle of 2 recvs on world: rank 0 in recv from rank 1, rank 1 in recv from rank 0"


@pytest.mark.parametrize(("way", "kind", "ranks", "words", "frame"), [
    ("sleep", "hang", (2,), "rank 2 never arrived in all_reduce 61 on world", "fall_asleep (standing_ranks.py"),
    ("other_operator", "mismatch", (2,), " called all_gather", "call_another (standing_ranks.py"),
    # Gloo ends the processes that are sent too much.
    ("other_size", "mismatch", (2,), " called all_reduce of 32.8 kB where ranks", ""),
    ("circle_of_sends", "mismatch", (), CIRCLE, "recv (torch/distributed"),
])  # fmt: skip
def test_who_keeps_a_job_waiting_is_told_and_where_its_process_stands(
    services: LocalServices, socket: Path, way: str, kind: str, ranks: tuple[int, ...], words: str, frame: str
) -> None:
    with (
        training("tests.faults.standing_ranks", str(socket), way, way),
        reading(services, "alerts") as read,
        connected(database_settings(services.settings, 10.0, is_reading=True)) as client,
    ):

        def alerts() -> list[Verdict]:
            return [one for one in read() if one.job == way and one.kind == kind and words in one.evidence]

        wait_until(lambda: bool(alerts()), "an alert with the right sentence")
        verdict = alerts()[0]
        assert verdict.layer in ("software", "unknown")
        assert tuple(rank for one in verdict.suspects[:1] for rank in one.ranks) == ranks
        began_ns = (verdict.time_ns or 0) - 10**9

        def looks() -> list[Look]:
            return read_looks(client, verdict, began_ns, began_ns + 600 * 10**9)

        if not frame:
            return
        wait_until(lambda: len(looks()) >= 2 + len(ranks), "the stacks of culprit and peers in the database")
        first = looks()[0]
        assert (first.is_accused, first.host) == (bool(ranks), "here")
        assert any(frame in line for name, lines in first.threads if name == "MainThread" for line in lines)
        answer = run(client, "stacks_of_job", {"job": way})
        assert any(frame in str(row[answer.columns.index("lines")]) for row in answer.rows)


# The profiler's start may take longer than six seconds where others compute too: silence would close the verdict.
@pytest.mark.parametrize("services", [120.0], indirect=True)
def test_the_function_and_the_operator_in_which_a_slow_rank_spends_its_time_are_named(
    services: LocalServices, socket: Path
) -> None:
    with (
        training("tests.faults.standing_ranks", str(socket), "slow", "slow"),
        reading(services, "verdicts") as read,
    ):

        def sentences() -> list[str]:
            return [one.evidence for one in read() if (one.job, one.kind) == ("slow", "slow_rank")]

        for spent_in in ("decode_jpeg (standing_ranks.py", "aten::sort"):
            told = re.compile(rf"rank 2 spends (\d+)% of its time in {re.escape(spent_in)}[^;]*, ranks [^;]* (\d+)%")
            wait_until(lambda told=told: any(map(told.search, sentences())), f"a revision that names {spent_in}")
            share, usual = next(filter(None, map(told.search, sentences()))).groups()
            assert int(usual) < 20 < int(share)  # by how much more: as others let it compute
