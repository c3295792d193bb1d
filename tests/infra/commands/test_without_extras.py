"""Looking at recordings needs the base install alone: what the README promises after ``pip install '.[torch]'``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import RECORDINGS

EXTRAS = (
    "river", "faust", "mode", "aiokafka", "uvloop", "sklearn", "scipy", "clickhouse_connect", "starlette", "uvicorn",
    "jinja2", "markupsafe", "chdb", "tansu",
)  # fmt: skip
WITHOUT = f"""
import sys
class Absent:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from irregulars.__main__ import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    ["analyze", "gloo-slow-nic"],
    ["analyze", "bench/ddp8-hang-before"],
    ["show", "torch-slow-rank"],
    ["explain", "gloo-slow-nic", "--iteration", "70"],
])  # fmt: skip
def test_a_recording_is_judged_and_shown_without_any_extra(words: list[str]) -> None:
    words = [words[0], str(RECORDINGS / words[1]), *words[2:]]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "rank" in done.stdout
