"""The two lines: what they refuse, and that everything else is harmless before them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from irregulars import torch_comms
from irregulars.errors import InputError
from tests.waiting import DEADLINE_S


@pytest.mark.parametrize(("call", "text"), [
    (torch_comms.start, "exactly one of trace_dir, agent and bootstrap must be given; got 0"),
    (partial(torch_comms.start, trace_dir="a", agent="b"),
     "exactly one of trace_dir, agent and bootstrap must be given; got 2"),
    (partial(torch_comms.start, trace_dir="a", hook="magic"),
     "hook must be one of auto, native, python, dispatcher; got 'magic'"),
    (partial(torch_comms.start, trace_dir="a", iterations="all"),
     "iterations must be one of steps, marks, inferred; got 'all'"),
    (partial(torch_comms.watch_numerics, None, None, every=0), "every must be at least 1; got 0"),
    (partial(torch_comms.watch_numerics, None, None, checksum_steps=-1), "checksum_steps must be at least 0; got -1"),
    (partial(torch_comms.audit, None, print, every=1), "every must be at least 2; got 1"),
])  # fmt: skip
def test_a_wrong_call_is_told_in_one_line(call: Callable[[], object], text: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == text


def test_marks_without_a_start_do_nothing() -> None:
    with torch_comms.iteration(3), torch_comms.phase("eval"):
        torch_comms.report(loss=1.0)
    torch_comms.watch_numerics(None, None)
    torch_comms.audit(None, print)({})
    torch_comms.follow(object())
    torch_comms.name_group(object(), "dp")
    torch_comms.stop()
    assert torch_comms.lost_rows() == 0


def test_a_signal_handler_may_stop_in_the_midst_of_a_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The job that was to end waited for itself for ever, and was killed without its last checkpoint."""

    def interrupted(*_: object, **__: object) -> object:
        torch_comms.stop()
        raise RuntimeError("no torch here")

    monkeypatch.setattr(torch_comms, "identity_of", interrupted)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(torch_comms.start(trace_dir=tmp_path)), daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert found == ["none"]
