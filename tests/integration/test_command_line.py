"""The commands as people type them, on the embedded broker and database: processes of their own, real services."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import warm
from tests.integration.pipelines import COMMAND, RECORDINGS
from tests.integration.worker_runs import wait_until

pytestmark = pytest.mark.integration


class Terminal:
    """Runs commands with one settings file."""

    def __init__(self, config: Path, directory: Path) -> None:
        self.config, self.directory = config, directory

    def run(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "--config", str(self.config), *arguments]
        return warm.run(command, cwd=self.directory, timeout=timeout_s)

    def output(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def alerts(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.output("alerts", "--from-start", "--end", "--json").splitlines()]


class Up:
    """``irregulars up``, whose broker, database and worker the other commands use."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self.directory, self.console_link = directory, ""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**os.environ, "TMPDIR": str(directory)}
        self.process = subprocess.Popen(
            [*COMMAND, *settings, "up"], cwd=directory, env=environment, text=True, **pipes
        )

    def __enter__(self) -> Up:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def config(self) -> Path:
        """Wait until it is up, and return the file that it names."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if "Ctrl-C stops" in line:
                (named,) = (one for one in lines if "IRREGULARS_CONFIG=" in one)
                self.console_link = next(one for one in lines if one.startswith("console ")).split()[1]
                return Path(named.partition("IRREGULARS_CONFIG=")[2].strip())
        pytest.fail(self.process.communicate()[1])


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("up"), "--set", "partitions=2", "--set", "snapshot_s=1") as running:
        yield running


@pytest.fixture(scope="module")
def terminal(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    config = up.config()
    assert config.stat().st_mode & 0o777 == 0o600
    return Terminal(config, tmp_path_factory.mktemp("terminal"))


@pytest.fixture(scope="module")
def replayed(terminal: Terminal) -> list[dict[str, object]]:
    """The alerts of a replayed recording, once its verdict is closed."""
    done = json.loads(terminal.output("replay", str(RECORDINGS / "gloo-slow-nic"), "--speed", "0", "--json"))
    assert done["reason"] == "finished"
    wait_until(lambda: any(alert["state"] == "closed" for alert in terminal.alerts()), "a closed verdict")
    return terminal.alerts()


def test_a_replayed_job_has_the_verdicts_of_analyze(terminal: Terminal, replayed: list[dict[str, object]]) -> None:
    analysed = json.loads(terminal.output("analyze", str(RECORDINGS / "gloo-slow-nic"), "--json"))
    newest = {alert["verdict_id"]: alert for alert in replayed}
    assert {v["verdict_id"]: v["kind"] for v in analysed["verdicts"]} == {i: a["kind"] for i, a in newest.items()}


def test_the_console_that_up_started_lets_its_link_in(up: Up, terminal: Terminal) -> None:
    url, _, token = up.console_link.partition("/login#")
    waiting = httpx.HTTPTransport(retries=8)  # it is up a little later
    with httpx.Client(base_url=url, transport=waiting, timeout=60) as client:
        assert client.get("/healthz").status_code == 200
        assert client.post("/login", data={"token": token, "name": "ann"}).status_code == 303
        assert client.get("/").status_code == 200


def test_people_read_one_line_an_alert(terminal: Terminal, replayed: list[dict[str, object]]) -> None:
    lines = terminal.output("alerts", "--from-start", "--end").splitlines()
    assert len(lines) == len(replayed)
    assert "OPENED slow NIC in gloo-slow-nic (ticket): NIC eth0 on node-1" in lines[0]
    assert len(terminal.output("alerts", "--from-start", "--limit", "1").splitlines()) == 1


def test_ctrl_c_ends_the_feed_without_a_word(terminal: Terminal, replayed: list[dict[str, object]]) -> None:
    command = [*COMMAND, "--config", str(terminal.config), "alerts", "--from-start"]
    feed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert feed.stdout is not None
        assert "OPENED" in feed.stdout.readline()
        feed.send_signal(signal.SIGINT)
        assert (feed.communicate(timeout=60)[1], feed.returncode) == ("", 130)
    finally:
        feed.kill()


def test_the_database_answers_the_questions_that_ship(terminal: Terminal, replayed: list[dict[str, object]]) -> None:
    (blamed,) = json.loads(terminal.output("sql", "blamed", "job=gloo-slow-nic", "limit=1", "--json"))
    assert (blamed["kind"], blamed["device"], blamed["host"]) == (
        "slow_nic", "NIC eth0 on node-1", "node-1",
    )  # fmt: skip


def test_rows_that_the_limit_left_out_are_told_too(terminal: Terminal, replayed: list[dict[str, object]]) -> None:
    for form, lines in (("--json", None), ("--csv", 3), ("--table", 3)):
        done = terminal.run("sql", "slowest_iterations", "job=gloo-slow-nic", "limit=2", form)
        assert done.stderr == "irregulars: the first 2 rows, there are more: limit=… shows them\n"
        assert len(json.loads(done.stdout)) == 2 if lines is None else len(done.stdout.splitlines()) == lines


def test_a_detector_is_tried_on_a_job_of_the_database(terminal: Terminal, replayed: list[dict[str, object]]) -> None:
    """The rows of ranks are those of the recording, and what was blamed in it is the truth."""
    found = json.loads(terminal.output("backtest", "river_gaussian", "--job", "gloo-slow-nic", "--json"))
    assert found["truth"] == "verdicts"
    results = {one["detector"]: one for one in found["results"]}
    assert set(results) == {"peers", "river_gaussian"}
    assert results["peers"]["iterations"] == 160
    assert results["peers"]["rows"] == 640
    assert results["peers"]["faults"] == 1
    assert "Truth: what Irregulars judged" in terminal.output("backtest", "peers", "--job", "gloo-slow-nic")
    wrong = terminal.run("backtest", "peers", "--job", "nowhere")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "job must have judged iterations in the database; got none of 'nowhere'" in wrong.stderr


def test_any_sql_runs_with_parameters_as_csv(terminal: Terminal, replayed: list[dict[str, object]]) -> None:
    query = "SELECT count() AS iterations FROM iterations FINAL WHERE job = {job:String}"
    rows = list(csv.reader(io.StringIO(terminal.output("sql", query, "job=gloo-slow-nic", "--csv"))))
    assert rows == [["iterations"], ["160"]]


def test_wrong_sql_and_a_wrong_password_are_one_line(terminal: Terminal) -> None:
    for arguments in (["sql", "SELEC 1"], ["--set", "clickhouse_password=wrong", "sql", "SELECT 1"]):
        done = terminal.run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert "Traceback" not in done.stderr


def test_topics_are_there_and_fit_together(terminal: Terminal) -> None:
    assert json.loads(terminal.output("topics", "check", "--json"))["commops"] == 2
    assert json.loads(terminal.output("topics", "create", "--json"))["created"] == []


def test_ctrl_c_ends_up_which_leaves_nothing(up: Up, terminal: Terminal) -> None:
    """The last one that needs it."""
    up.process.send_signal(signal.SIGINT)
    up.process.communicate(timeout=60)
    assert up.process.returncode == 0
    assert list(up.directory.iterdir()) == []


def demo(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(directory), "NO_COLOR": "1"}
    command = [*COMMAND, "demo", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=directory, env=environment, stdout=pipe, stderr=pipe, text=True)


def test_the_demo_names_what_was_broken_and_leaves_nothing(tmp_path: Path) -> None:
    run = demo(tmp_path, "--iterations", "45", "--fault", "slow_nic:rank=17,from=25,factor=12")
    try:
        out, err = run.communicate(timeout=300)
    finally:
        run.kill()
    assert (run.returncode, err) == (0, ""), out
    assert "Put in: slow_nic:rank=17,from=25,factor=12\n" in out
    assert "Verdict   slow NIC in demo (closed" in out
    assert "Since     iterations 25 to 44, " in out
    assert "rank 17" in out
    line = r"^NIC mlx5_1 on node-2 +nic +node-2 +- +mlx5_1 +- +1 +1 +0 "
    assert re.search(line, out, re.MULTILINE), "one verdict, stored as closed"
    assert "\x1b" not in out, "NO_COLOR and a pipe: no escape sequences"
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_demo_cleanly(tmp_path: Path) -> None:
    run = demo(tmp_path)
    try:
        assert run.stdout is not None
        for line in run.stdout:
            if "GPUs train" in line:
                break
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert (run.returncode, err) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_up_tells_that_its_worker_has_ended_and_ends(tmp_path: Path) -> None:
    with Up(tmp_path) as run:
        run.config()
        os.kill(worker_of(run.process.pid), signal.SIGKILL)
        _, err = run.process.communicate(timeout=60)
    assert run.process.returncode == 2
    told = err.splitlines()[-1]
    assert told.startswith("irregulars: worker must run; it ended by SIGKILL: ")
    log = Path(told.rpartition("(log: ")[2].rstrip(")"))
    assert "event=" in log.read_text(), "the log stays where the message says"
    assert list(tmp_path.iterdir()) == [log]


def test_up_names_no_log_where_the_message_is_all_of_it(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*COMMAND, "--set", "detectors=not_there:X", "up"], cwd=tmp_path, env=environment, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    told = done.stderr.splitlines()[-1]
    assert (done.returncode, "detector not_there:X must be importable" in told) == (2, True)
    assert "worker.log" not in told
    assert list(tmp_path.iterdir()) == []


def worker_of(parent: int) -> int:
    """Process id of the worker that a process has started."""
    children = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [int(pid) for found in children for pid in found.read_text().split()]
    return next(pid for pid in pids if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
