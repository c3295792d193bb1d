"""The command behind `make bench`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.benchmarks.table import __main__ as command
from tests.benchmarks.table.figures import PROGRAMS, Program
from tests.benchmarks.table.running import Outcome


def test_the_quick_set_is_part_of_all_and_some_can_be_named() -> None:
    quick, everything = command.chosen(None, False), command.chosen(None, True)
    assert everything == list(PROGRAMS)
    assert 0 < len(quick) < len(everything)
    assert [one.name for one in command.chosen(["scale-out", "worker"], False)] == ["worker", "scale-out"]


def test_ctrl_c_prints_what_is_done_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(programs: Sequence[Program], folder: Path) -> Iterator[Outcome]:
        yield Outcome(programs[0], {"help": {"took_s": 0.2, "cpu_s": 0.1}, "analyze": {"took_s": 0.5, "cpu_s": 0.4}})
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_all", interrupted)
    assert command.main(["--only", "command-line", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "| `irregulars --help` | 0.200 | s | ≤ 0.25 | yes |" in out
    assert "4 of 4 figures; 0 are not what they must be." in out


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "nothing"])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err
