from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from irregulars.infra import wiring
from tests.conftest import RECORDINGS
from tests.infra.conftest import Run, refused

pytestmark = pytest.mark.slow


SLOW_RANK = str(RECORDINGS / "gloo-slow-rank")


def test_a_detector_stands_beside_those_that_ship(run: Run, tmp_path: Path) -> None:
    status, out, err = run("backtest", "peers(least_peers=4)", SLOW_RANK, "--plot", "peers.svg")
    assert (status, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()[:4]]
    assert names == ["detector", "peers(least_peers=4)", "peers", "river_gaussian"]
    assert max(map(len, out.splitlines())) <= 80
    assert "160 iterations, 1 fault." in out
    assert (tmp_path / "peers.svg").read_text().startswith("<svg")


def test_scripts_get_numbers(run: Run) -> None:
    status, out, _ = run("backtest", "river_gaussian", SLOW_RANK, "--alone", "--json")
    found = json.loads(out)
    assert (status, found["truth"]) == (0, "labels")
    (result,) = found["results"]
    assert (result["detector"], result["found"], result["faults"]) == ("river_gaussian", 1, 1)
    (own,) = result["jobs"]
    assert (own["job"], own["found"], own["faults"]) == ("gloo-slow-rank", 1, 1)


def test_a_module_of_the_working_folder_is_found(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "made_up_here.py").write_text(
        "from irregulars.detectors.plugins.peers import PeerDeviation\nclass Here(PeerDeviation): pass\n"
    )
    status, out, _ = run("backtest", "made_up_here:Here", SLOW_RANK, "--alone")
    assert status == 0
    assert out.splitlines()[1].startswith("made_up_here:Here")


_BAD = """
import numpy as np
from irregulars.detectors.plugins.peers import PeerDeviation
class Raises(PeerDeviation):
    def score(self, frame): return 1 / 0
class Shape(PeerDeviation):
    def score(self, frame): return np.zeros(1)
class Infinite(PeerDeviation):
    def score(self, frame): return super().score(frame) + np.inf
class Silent(PeerDeviation):
    def explain(self, frame, row): raise KeyError("row")
class Leaves(PeerDeviation):
    def score(self, frame): raise SystemExit(3)
class Later(PeerDeviation):  # passes all checks: their frames have other numbers of rows
    def score(self, frame):
        return 1 / 0 if len(frame["rank"]) == 4 else super().score(frame)
class LaterShape(PeerDeviation):
    def score(self, frame):
        return np.zeros(1) if len(frame["rank"]) == 4 else super().score(frame)
"""


@pytest.mark.parametrize(("kind", "message"), [
    ("Raises", "detector must not raise; got ZeroDivisionError: division by zero (check one_float64_per_row)"),
    ("Shape", "score must give one float64 per row; got float64 of shape (1,) for 48 rows"),
    ("Infinite", "scores must be finite or NaN"),
    ("Silent", "detector must not raise; got KeyError: 'row' (check explanation)"),
    ("Leaves", "detector must not raise; got SystemExit: 3 (check one_float64_per_row)"),
    ("Later", "made_up_bad:Later: detector must not raise; got ZeroDivisionError: division by zero (iteration"),
    ("LaterShape", "LaterShape: score must give one float64 per row; got shape (1,) for 4 rows (iteration"),
])  # fmt: skip
def test_a_detector_that_breaks_its_promises_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, message: str
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "made_up_bad", raising=False)
    (tmp_path / "made_up_bad.py").write_text(_BAD)
    assert message in refused(run, "backtest", f"made_up_bad:{kind}", SLOW_RANK, "--alone")


def test_a_module_that_leaves_is_no_end_of_the_command(run: Run, tmp_path: Path) -> None:
    (tmp_path / "made_up_leaving.py").write_text("raise SystemExit(3)\n")
    for command in (["plugins", "check"], ["backtest"]):
        status, _, err = run(*command, "made_up_leaving:Any", *([SLOW_RANK] if command == ["backtest"] else []))
        assert (status, "must be importable; got SystemExit: 3" in err) == (2, True)


@pytest.mark.parametrize(("arguments", "message"), [
    (["peers"], "backtest must have recordings or --job NAME, one of both; got none"),
    (["peers", SLOW_RANK, "--job", "a"], "one of both; got both"),
    (["peers", SLOW_RANK, "--plot", "x.png"], "plot must be a file that ends in .svg; got 'x.png'"),
    (["peers", SLOW_RANK, "--plot", "/nowhere/x.svg"], "got No such file or directory (/nowhere/x.svg)"),
    (["peers", SLOW_RANK, "--plot", "/proc/x.svg"], "plot must be a file that can be written; got "),
    (["peers", "."], "folder must hold recordings, each with a job.json; got none"),
    (["nobody", SLOW_RANK], "must be an installed entry point"),
    (["baseline", "--job", "a"], "detector must score ranks where --job is given"),
    (["peers", "--job", "a", "--clickhouse-url", "http://127.0.0.1:1"], "database must answer within"),
])  # fmt: skip
def test_a_bad_call_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(wiring.database_settings, "__defaults__", (0.3,))  # seconds that it waits for the database
    assert message in refused(run, "backtest", *arguments)
