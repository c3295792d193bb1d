from __future__ import annotations

import sys

import pytest
from rich.console import Console

from irregulars.infra.commands.demo import _Standstill, bars_of, progress_line
from tests.infra.conftest import Run, refused


def test_a_live_demo_without_torch_is_refused_before_it_starts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch must be installed for --live; got none. Run in a checkout" in refused(run, "demo", "--live")


@pytest.mark.parametrize(("width", "is_terminal"), [(80, True), (62, True), (400, False)])
def test_a_line_of_progress_fits_its_terminal(width: int, is_terminal: bool) -> None:
    console = Console(width=width, force_terminal=is_terminal)
    line = progress_line([0.25] * 1000, 1000, bars_of(console))
    assert len(line) <= min(width, 100)


@pytest.mark.parametrize(("fault", "said"), [
    ("slow_rank:rank=64,from=60,factor=3", "rank must be below 64; got 64"),
    ("slow_rank:rank=5,from=110,factor=3", "from must be below 110, the iterations of the job; got 110"),
    ("slow_rnak:rank=5,from=60,factor=3", "did you mean slow_rank?"),
    ("slow_rank:rnak=5,from=60,factor=3", "did you mean rank?"),
    ("slow_link:src=0,dst=1,from=60,factor=3", "slow_link must name two ranks on different hosts"),
])  # fmt: skip
def test_an_impossible_fault_is_refused_before_any_service_starts(run: Run, fault: str, said: str) -> None:
    # With services, it would say on standard output that it starts the broker.
    assert said in refused(run, "demo", "--fault", fault)


def test_a_standstill_is_told_with_how_long_it_lasts() -> None:
    still = _Standstill()
    assert [still.remark(ended, now_s) for ended, now_s in ((0, 0.0), (0, 9.0), (60, 20.0), (60, 22.0))] == [""] * 4
    assert still.remark(60, 27.0).startswith(
        "no iteration has ended for 7 s, after 60 of them. A job that hangs is ended"
    )
    assert still.remark(61, 28.0) == ""
