from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import RECORDINGS
from tests.infra.test_cli import Run, run

__all__ = ["run"]  # the fixture

SLOW_RANK = str(RECORDINGS / "gloo-slow-rank")


def test_a_detector_stands_beside_those_that_ship(run: Run, tmp_path: Path) -> None:
    status, out, err = run("backtest", "peers(least_peers=4)", SLOW_RANK, "--plot", "peers.svg")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[:4]] == [
        "detector",
        "peers(least_peers=4)",
        "peers",
        "river_gaussian",
    ]
    assert max(map(len, out.splitlines())) <= 80
    assert "160 iterations, 1 faults" in out
    assert (tmp_path / "peers.svg").read_text().startswith("<svg")


def test_scripts_get_numbers(run: Run) -> None:
    status, out, _ = run("backtest", "river_gaussian", SLOW_RANK, "--alone", "--json")
    found = json.loads(out)
    assert (status, found["truth"]) == (0, "labels")
    (result,) = found["results"]
    assert (result["detector"], result["found"], result["faults"]) == ("river_gaussian", 1, 1)


def test_a_module_of_the_working_directory_is_found(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "made_up_here.py").write_text(
        "from irregulars.detectors.plugins.peers import PeerDeviation\nclass Here(PeerDeviation): pass\n"
    )
    status, out, _ = run("backtest", "made_up_here:Here", SLOW_RANK, "--alone")
    assert status == 0
    assert out.splitlines()[1].startswith("made_up_here:Here")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["peers"], "backtest must have recordings or --job NAME, one of both; got none"),
        (["peers", SLOW_RANK, "--job", "a"], "one of both; got both"),
        (["peers", SLOW_RANK, "--plot", "x.png"], "plot must be a file that ends in .svg; got 'x.png'"),
        (["peers", "."], "folder must hold recordings, each with a job.json; got none"),
        (["nobody", SLOW_RANK], "must be an installed entry point"),
        (["baseline", "--job", "a"], "detector must score ranks where --job is given"),
        (["peers", "--job", "a", "--clickhouse-url", "http://127.0.0.1:1"], "database must answer within"),
    ],
)
def test_a_call_that_cannot_be_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    status, out, err = run("backtest", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
