from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest
import typer

from irregulars.errors import InputError
from irregulars.infra import cli
from tests.conftest import ROOT
from tests.infra.conftest import Run, refused


def test_without_a_command_it_helps_and_its_version_is_the_distribution_s(run: Run) -> None:
    status, out, _ = run()
    assert status == 0
    assert "  analyze " in out
    assert "names it." in out
    assert run("--version")[1].startswith("irregulars 0.")
    assert isinstance(cli.app, typer.Typer)
    from importlib.metadata import entry_points

    (script,) = {point.value for point in entry_points(group="console_scripts", name="irregulars")}
    assert script == "irregulars.__main__:main"


def test_every_command_stands_in_one_group_and_daily_ones_come_first(run: Run) -> None:
    named = [name for names in cli.GROUPS.values() for name in names]
    known = [one.name or str(getattr(one.callback, "__name__", "")) for one in cli.app.registered_commands]
    assert sorted(named) == sorted([*known, *(str(one.name) for one in cli.app.registered_groups)])
    out = run("--help")[1]
    places = [out.index(f"\n{title}:\n") for title in cli.GROUPS]
    assert places == sorted(places)
    assert places[0] < out.index("\n  demo ") < out.index("\n  doctor ") < places[1]


@pytest.mark.parametrize(("arguments", "message"), [
    (["no-such-command"], "irregulars: No such command 'no-such-command'. See: irregulars --help"),
    (["analyze"], "Missing argument 'SRC'. See: irregulars analyze --help"),
    (["analyze", "/nowhere"], "/nowhere: must be a file or a directory of files; got nothing"),
    (["analyze", "--delta", "1", "/nowhere"], "delta must be a number above 1; got 1.0 (flag for delta)"),
    (["--set", "delta", "settings"], "flag --set must be key=value; got 'delta'"),
    (["--set", "detla=2", "settings"], "got 'detla' (flag for detla); did you mean delta?"),
    (["--config", "/nowhere.toml", "settings"], "must be readable; got No such file or directory (/nowhere.toml)"),
    (["plugins", "check", "not_there:X"], "must be importable; got ModuleNotFoundError"),
    (["sql"], "question must be SQL or the name of a question; got none"),
    (["sql", " "], "question must be SQL or the name of a question; got an empty text"),
    (["sql", "no_such_question"], "question must be one of"),
    (["sql", "blamed", "job"], "parameter must be key=value; got 'job'"),
    (["topics", "check", "--bootstrap", "nobody"], "kafka_bootstrap must be host:port"),
])  # fmt: skip
def test_an_unusable_call_is_one_line_and_status_2(run: Run, arguments: list[str], message: str) -> None:
    assert message in refused(run, *arguments)


def test_an_error_is_one_line_a_missing_extra_is_named_and_a_bug_keeps_its_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: BaseException) -> None:
        monkeypatch.setattr("irregulars.infra.settings.load_settings", Mock(side_effect=error))

    fail(InputError("first\nsecond"))
    assert run("settings") == (2, "", "irregulars: first second\n")
    fail(ModuleNotFoundError("No module named 'faust.app'", name="faust.app"))
    status, _, err = run("settings")
    assert status == 2
    assert err.startswith("irregulars: package faust.app must be installed; got none. Run in a checkout")
    assert "pip install '.[worker]'" in err
    assert "'irregulars[" not in err  # no index has us: somebody else might take the name
    fail(ZeroDivisionError("a bug"))
    monkeypatch.setattr(sys, "argv", ["irregulars", "settings"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize(
    ("words", "number", "status"),
    [("settings", signal.SIGINT, 130), ("settings", signal.SIGTERM, 143), ("worker", signal.SIGINT, 0)],
)
@pytest.mark.parametrize("imported", ["typer", "irregulars.infra.settings"])
def test_a_signal_in_an_import_ends_a_command_without_a_complaint(
    words: str, number: int, status: int, imported: str
) -> None:
    code = (
        "import os, sys\n"
        "class Sender:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{imported}':\n            os.kill(os.getpid(), {number:d})\n"
        "sys.meta_path.insert(0, Sender())\n"
        "from irregulars.__main__ import main\n"
        "main()"
    )
    command = [sys.executable, "-c", code, words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    complaints = [line for line in done.stderr.splitlines() if not line.endswith("event=stop status=0")]  # a worker's
    assert (done.returncode, complaints) == (status, [])
    assert done.stdout == "" or imported != "typer"  # later it may be done before it is asked again


@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize("arguments", [["settings"], ["sql", "--list"]])
def test_output_that_finds_no_room_is_one_line(arguments: list[str], is_buffered: bool) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": "" if is_buffered else "1"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "irregulars", *arguments], stdout=full, stderr=subprocess.PIPE, env=environment,
            text=True, check=False, timeout=120,
        )  # fmt: skip
    told = "irregulars: what is printed or written must find room; got No space left on device\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_a_pipe_that_nobody_reads_any_more_ends_without_a_word() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "irregulars", "settings"], stdout=write_end, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": ""}, check=False, timeout=120,
    )  # fmt: skip
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_settings_shows_what_is_in_force_and_hides_passwords(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRREGULARS_CLICKHOUSE_PASSWORD", "hush")
    status, out, _ = run("--set", "window=60", "settings", "--json")
    assert status == 0
    values = json.loads(out)
    assert (values["window"], values["clickhouse_password"], values["kafka_password"]) == (60, "hidden", None)
    assert "hush" not in run("settings")[1]


@pytest.mark.parametrize(("arguments", "heavy"), [
    (
        ["--help"],
        "numpy pyarrow faust river sklearn clickhouse_connect confluent_kafka chdb torch pandas scipy "
        "rich.table rich.console msgspec logging.config pydantic",
    ),
    # Pyarrow imports pandas unasked.
    (
        ["analyze", "tests/recordings/gloo-slow-link"],
        "pandas sklearn scipy faust aiokafka river torch clickhouse_connect confluent_kafka chdb "
        "logging.config rich.table rich.markdown pydantic pyarrow.compute tomllib "
        "irregulars.producers.iteration_inference.inference irregulars.detectors.plugins.loading",
    ),
])  # fmt: skip
def test_a_command_imports_nothing_heavy_that_it_does_without(arguments: list[str], heavy: str) -> None:
    code = (
        "import sys\nfrom irregulars.infra import cli\n"
        f"sys.argv = ['irregulars', *{arguments!r}]\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert not end.code, end\n"
        f"loaded = [name for name in {heavy.split()!r} if name in sys.modules]\n"
        "sys.exit(', '.join(loaded) or 0)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, check=False, timeout=120, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_command_is_made_and_all_where_none_is_named() -> None:
    alone = cli._with_alone("analyze")
    assert [one.callback.__name__ for one in alone.registered_commands if one.callback] == ["analyze"]
    assert [one.name for one in cli._with_alone("topics").registered_groups] == ["topics"]
    assert cli._with_alone("no-such-command") is cli._with_alone("") is cli.app


def test_analyze_leaves_the_pace_of_collections_as_it_was(run: Run) -> None:
    before = gc.get_threshold()
    assert run("analyze", str(ROOT / "tests" / "recordings" / "gloo-clean"), "--json")[0] == 0
    assert gc.get_threshold() == before
    assert run("analyze", "/nowhere")[0] == 2
    assert gc.get_threshold() == before


@pytest.mark.parametrize(
    "command", [c.name or c.callback.__name__ for c in cli.app.registered_commands if c.callback]
)
def test_every_command_helps_with_an_example(run: Run, command: str) -> None:
    status, out, _ = run(command, "--help")
    assert status == 0
    assert "Example" in out
