from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from irregulars.detectors.plugins.sample_frames import sample_frame
from tests.conftest import ROOT
from tests.infra.conftest import Run, refused


@pytest.fixture(autouse=True)
def _modules_of_the_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of the working directory are found by way of ``sys.path``; what came from there goes with the test."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if name.startswith("made_up"):
            del sys.modules[name]


@pytest.mark.parametrize("level", ["rank", "operator"])
def test_a_new_package_passes_its_check(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    status, out, err = run("plugins", "new", f"made_up_{level}", "--level", level)
    assert (status, err) == (0, "")
    folder = tmp_path / f"made_up_{level}"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.md", f"made_up_{level}.py", "pyproject.toml", f"test_made_up_{level}.py"]
    target = out.rsplit(maxsplit=1)[-1]
    monkeypatch.chdir(folder)
    status, out, err = run("plugins", "check", target)
    assert (status, err) == (0, "")
    assert f"{target} passes 17 checks: scores {level}s against past" in out


@pytest.mark.slow
def test_a_new_package_passes_its_own_test(run: Run, tmp_path: Path) -> None:
    run("plugins", "new", "made_up")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path / "made_up",
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("level", ["rank", "operator"])
def test_a_new_detector_goes_on_from_its_state(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: Literal["rank", "operator"]
) -> None:
    run("plugins", "new", f"made_up_state_{level}", "--level", level)
    monkeypatch.syspath_prepend(tmp_path / f"made_up_state_{level}")
    kind = getattr(importlib.import_module(f"made_up_state_{level}"), f"MadeUpState{level.capitalize()}")
    first, second = kind(), kind()
    for iteration in range(40):
        first.learn(sample_frame(level, iteration))
    second.restore(first.state())
    slow = sample_frame(level, 50, is_faulty=True)
    for _ in range(3):
        assert second.score(slow).tolist() == first.score(slow).tolist()
        assert second.explain(slow, 1) == first.explain(slow, 1)
        first.learn(slow)
        second.learn(slow)
    assert "ms, usual" in first.explain(slow, 1)
    cold = kind()
    cold.restore(kind().state())
    assert np.isnan(cold.score(slow)).all()


def test_a_new_package_has_an_entry_point_and_an_existing_folder_is_left_as_it_is(run: Run, tmp_path: Path) -> None:
    import tomllib

    run("plugins", "new", "made_up_nic")
    project = tomllib.loads((tmp_path / "made_up_nic" / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["irregulars.detectors"] == {"made_up_nic": "made_up_nic:MadeUpNic"}
    (tmp_path / "made_up").mkdir()
    message = "folder of the new detector must not be there yet; got made_up"
    assert message in refused(run, "plugins", "new", "made_up")
    assert list((tmp_path / "made_up").iterdir()) == []


@pytest.mark.parametrize(("rule", "names"), [
    ("be small letters", ["Made", "1made", "made-up", "../made", "class", "made_", "m" * 41, ""]),
    ("not be that of another module; got", ["json", "numpy", "irregulars"]),
    ("not be that of an installed detector; got", ["peers"]),
])  # fmt: skip
def test_a_name_that_is_none_or_taken_is_refused(run: Run, tmp_path: Path, rule: str, names: list[str]) -> None:
    for name in names:
        assert f"name must {rule}" in refused(run, "plugins", "new", name)
    assert list(tmp_path.iterdir()) == []


def test_the_list_says_what_each_detector_does_and_an_unknown_one_is_answered_with_the_nearest(run: Run) -> None:
    status, out, _ = run("plugins", "list")
    assert status == 0
    assert "peers            rank, peers      Robust z-score of a rank's work within its stage" in out
    listed = {one["name"]: one for one in json.loads(run("plugins", "list", "--json")[1])}
    assert listed["baseline"]["level"] == "operator"
    assert listed["baseline"]["target"] == "irregulars.detectors.plugins.baseline:RobustBaseline"
    assert "did you mean peers?" in refused(run, "plugins", "check", "peerz")
