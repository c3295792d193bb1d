"""Bad input and missing services, at the command line: one clear line and status 2, or the rest goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from irregulars.infra.settings import Settings
from irregulars.sinks.connection import DatabaseSettings
from tests import warm
from tests.integration.pipelines import COMMAND, RECORDINGS, run_command
from tests.integration.worker_runs import ROOT

pytestmark = pytest.mark.integration

NOBODY = Settings(kafka_bootstrap="127.0.0.1:1", clickhouse_url="http://127.0.0.1:1", clickhouse_password="s3cret")
Done = subprocess.CompletedProcess[str]


def run(*arguments: str, settings: Settings = NOBODY, directory: Path = ROOT) -> Done:
    return run_command(*arguments, settings=settings, folder=directory)


def require_refusal(done: Done, *said: str) -> None:
    assert (done.returncode, done.stdout) == (2, ""), done
    *waiting, line = done.stderr.splitlines()
    assert all("_away waits_s=" in one for one in waiting), waiting
    assert len(waiting) < 3
    assert line.startswith("irregulars: ")
    assert all(part in line for part in said), line
    assert "s3cret" not in line


# --- traces ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDINGS / "gloo-slow-nic", tmp_path / "trace"))


def remove_job(trace: Path) -> None:
    (trace / "job.json").unlink()


def spoil_job(trace: Path) -> None:
    (trace / "job.json").write_text('{"job": "x", "world_size": "many"}')


def truncate_parquet(trace: Path) -> None:
    file = trace / "commops.parquet"
    file.write_bytes(file.read_bytes()[:-100])


SPOILS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "no job.json": (remove_job, ("job.json",)),
    "malformed job.json": (spoil_job, ("job.json", "world_size", "'many'")),
    "truncated parquet": (truncate_parquet, ("commops.parquet",)),
}


@pytest.mark.parametrize(("spoil", "said"), SPOILS.values(), ids=SPOILS)
@pytest.mark.parametrize("command", [("analyze", "--json"), ("replay", "--speed", "0")], ids=["analyze", "replay"])
def test_an_unusable_trace_is_one_line_that_names_the_file(
    trace: Path, command: tuple[str, ...], spoil: Callable[[Path], None], said: tuple[str, ...]
) -> None:
    spoil(trace)
    require_refusal(run(*command, str(trace)), *said)


def test_rows_that_cannot_be_used_are_counted_explained_and_left_out(trace: Path) -> None:
    file = trace / "commops.parquet"
    rows = pa.parquet.read_table(file).to_pylist()
    whole = json.loads(run("analyze", "--json", str(RECORDINGS / "gloo-slow-nic")).stdout)
    bad = [{**rows[0], "operator": "all_redude"}, {**rows[0], "rank": 3, "communicator": stranger_to(trace, 3)}]
    pa.parquet.write_table(pa.Table.from_pylist([*bad, *rows]), file)
    done = run("analyze", "--json", str(trace))
    assert (done.returncode, json.loads(done.stdout)) == (0, whole | {"rejected_rows": 2})
    assert "2 rows were left out" in done.stderr.splitlines()[0]
    assert "'all_redude'" in done.stderr
    assert "rank must be a member of its communicator" in done.stderr
    assert "Traceback" not in done.stderr


def stranger_to(trace: Path, rank: int) -> str:
    """A communicator that `rank` is not in."""
    communicators = json.loads((trace / "job.json").read_text())["communicators"]
    return str(next(name for name, one in communicators.items() if rank not in one["ranks"]))


# --- services that do not answer ------------------------------------------------------------------------------------

REFUSED = "Kafka at 127.0.0.1:1 must answer within 2 s; got _TRANSPORT: 127.0.0.1:1/bootstrap: Connect to"
UNREACHABLE = {
    "worker without broker": (
        ("--set", "broker_away_s=5", "worker", "--no-store"),
        "a certificate). A start waits 5 s for it",
    ),
    "topics": (("topics", "check"), REFUSED),
    "alerts": (("alerts",), REFUSED),
    "replay": (("replay", str(RECORDINGS / "gloo-clean")), REFUSED),
    "show": (("show",), "database must answer within 2 s"),
    "sql": (("sql", "--wait", "1", "jobs_now"), "database must answer within 1 s"),
}


@pytest.fixture(scope="module", autouse=True)
def unreachable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All of them at once, begun before the other tests: they do nothing but wait."""
    directory = tmp_path_factory.mktemp("unreachable")
    environment = {**os.environ, **NOBODY.to_environment()}
    pipe = subprocess.PIPE
    started = {
        name: warm.Popen([*COMMAND, *call], cwd=directory, env=environment, stdout=pipe, stderr=pipe, text=True)
        for name, (call, _) in UNREACHABLE.items()
    }
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


# --- services that refuse us ----------------------------------------------------------------------------------------


def test_a_worker_with_a_wrong_password_of_the_database_is_refused(database: DatabaseSettings) -> None:
    settings = Settings(clickhouse_url=database.url, clickhouse_user=database.user, clickhouse_password="s3cret")
    require_refusal(run("worker", settings=settings), "database must accept user 'irregulars'", database.address)


# --- plug-ins -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("detector", "said"), [
    ("not_there.nic:Drift", "must be importable; got ModuleNotFoundError"),
    ("tests.detectors.bad_detectors:HalfPrecision", "score must give one float64 per row"),
    ("baseline(no_such_option=1)", "must be constructible"),
])  # fmt: skip
@pytest.mark.parametrize(
    "call", [("worker",), ("analyze", str(RECORDINGS / "gloo-clean"))], ids=["worker", "analyze"]
)
def test_a_plug_in_that_cannot_be_used_is_one_line_at_once(call: tuple[str, ...], detector: str, said: str) -> None:
    require_refusal(run("--set", f"detectors={detector}", *call), f"detector {detector}", said)


# --- the end of waiting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNREACHABLE)
def test_a_service_that_does_not_answer_is_one_line(unreachable: dict[str, subprocess.Popen[str]], name: str) -> None:
    out, err = unreachable[name].communicate(timeout=60)
    require_refusal(subprocess.CompletedProcess([], unreachable[name].returncode, out, err), UNREACHABLE[name][1])
