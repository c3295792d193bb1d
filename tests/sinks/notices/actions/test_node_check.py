from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.judgements import Verdict
from irregulars.sinks.notices.actions.feed import MOST_CHARACTERS, check_host, short_line
from tests.sinks.notices.made_up_notices import GPU, VERDICT
from tests.sinks.verdicts import verdicts


def test_an_open_verdict_on_the_host_is_a_problem() -> None:
    assert check_host([VERDICT], "node-1") == (
        1, "slow rank 95%: GPU 0 on node-1 (rank 8, NIC mlx5_1), job llama",
    )  # fmt: skip
    assert check_host([VERDICT], "node-2") == (0, "no open verdict accuses node-2")
    assert check_host([], "node-1")[0] == 0


@pytest.mark.parametrize("kind", ["slow_rank", "hang"])
@pytest.mark.parametrize("change", [
    {"state": "closed", "close_reason": "recovered"}, {"state": "closed", "close_reason": "restarted"},
    {"suspects": (replace(GPU, host="node-2"), replace(GPU, probability=0.1))},
    {"suspects": (replace(GPU, probability=0.4),)}, {"suspects": ()},
    {"kind": "slow_stage"}, {"severity": "note"},
])  # fmt: skip
def test_the_newest_revision_counts_in_whatever_order_they_come(kind: str, change: dict[str, Any]) -> None:
    first = replace(VERDICT, kind=kind, severity="page")
    other = replace(first, revision=2, **change)
    assert check_host([first], "node-1")[0] == 1
    assert check_host([first, other], "node-1")[0] == check_host([other, first], "node-1")[0] == 0
    assert check_host([other], "node-1")[0] == 0


def test_the_surest_of_several_is_named_the_others_are_counted_and_a_cut_is_shown() -> None:
    others = [replace(VERDICT, verdict_id=f"v{n}", suspects=(replace(GPU, probability=0.6),)) for n in (1, 2)]
    status, line = check_host([*others, VERDICT], "node-1")
    assert (status, line[:14], line[-13:]) == (1, "slow rank 95%:", " (and 2 more)")
    assert short_line("x" * 81) == "x" * 77 + "..."
    assert short_line("x" * 80) == "x" * 80


@given(st.lists(verdicts(events=("opened", "changed", "closed")), max_size=4), st.text(max_size=300))
def test_any_answer_is_one_line_that_a_condition_holds(found: list[Verdict], host: str) -> None:
    names = {suspect.host for one in found for suspect in one.suspects if suspect.host} | {host}
    for name in names:
        status, line = check_host(found, name)
        assert status in (0, 1)
        assert len(line) <= MOST_CHARACTERS
        assert line.isascii()
        assert line.isprintable()
