from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.at_work import HANG_NS
from irregulars.messages.judgements import Verdict
from irregulars.sinks.notices.node_health import MOST_CHARACTERS, check_host, short_line
from tests.sinks.notices.made_up_notices import GPU, VERDICT
from tests.sinks.verdicts import verdicts

NOW_NS = 1_800_000_000_000_000_000


def check(found: Iterable[Verdict], host: str) -> tuple[int, str]:
    """Check a host by verdicts that were told a moment ago."""
    return check_host([(one, NOW_NS - 10**9) for one in found], host, NOW_NS)


def test_an_open_verdict_on_the_host_is_a_problem() -> None:
    assert check([VERDICT], "node-1") == (
        1, "slow rank 95%: GPU 0 on node-1 (rank 8, NIC mlx5_1), job llama",
    )  # fmt: skip
    assert check([VERDICT], "node-2") == (0, "no open verdict accuses node-2")
    assert check([], "node-1")[0] == 0


@pytest.mark.parametrize(
    "other",
    [
        replace(VERDICT, revision=2, state="closed", close_reason="recovered"),
        replace(VERDICT, revision=2, suspects=(replace(GPU, host="node-2"), replace(GPU, probability=0.1))),
        replace(VERDICT, revision=2, suspects=(replace(GPU, probability=0.4),)),
        replace(VERDICT, revision=2, suspects=()),
        replace(VERDICT, revision=2, kind="slow_stage"),
        replace(VERDICT, revision=2, severity="note"),
    ],
)
def test_the_newest_revision_counts_in_whatever_order_they_come(other: Verdict) -> None:
    assert check([VERDICT, other], "node-1")[0] == check([other, VERDICT], "node-1")[0] == 0


def test_the_surest_of_several_is_named_and_the_others_counted() -> None:
    others = [replace(VERDICT, verdict_id=f"v{n}", suspects=(replace(GPU, probability=0.6),)) for n in (1, 2)]
    status, line = check([*others, VERDICT], "node-1")
    assert (status, line[:14], line[-13:]) == (1, "slow rank 95%:", " (and 2 more)")


@given(st.lists(verdicts(events=("opened", "changed", "closed")), max_size=4), st.text(max_size=300))
def test_any_answer_is_one_line_that_a_condition_holds(found: list[Verdict], host: str) -> None:
    names = {suspect.host for one in found for suspect in one.suspects if suspect.host} | {host}
    for name in names:
        status, line = check(found, name)
        assert status in (0, 1)
        assert len(line) <= MOST_CHARACTERS
        assert line.isascii()
        assert line.isprintable()


def test_a_long_text_says_that_it_was_cut() -> None:
    assert short_line("x" * 81) == "x" * 77 + "..."
    assert short_line("x" * 80) == "x" * 80


HANG = replace(VERDICT, kind="hang", state="closed", close_reason="silent", event="opened", severity="page")


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ([(HANG, NOW_NS - 600 * 10**9)], 1),
        ([(HANG, NOW_NS - HANG_NS - 3600 * 10**9)], 0),
        ([(HANG, NOW_NS - HANG_NS - 1), (HANG, NOW_NS)], 0),  # told again, as after a crash: the first time counts
        ([(HANG, NOW_NS - 10**9), (replace(HANG, revision=2, close_reason="restarted"), NOW_NS)], 0),
        ([(HANG, NOW_NS - 10**9), (replace(HANG, revision=2, close_reason="recovered"), NOW_NS)], 0),
        ([(replace(HANG, close_reason="finished"), NOW_NS)], 0),
    ],
)
def test_a_job_that_hangs_accuses_its_host_until_more_is_heard_or_a_day_has_passed(
    told: list[tuple[Verdict, int]], status: int
) -> None:
    assert check_host(told, "node-1", NOW_NS)[0] == check_host(reversed(told), "node-1", NOW_NS)[0] == status
