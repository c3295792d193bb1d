from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.infra.checking.changed import Changed, Delivery, Naming
from irregulars.infra.checking.judged import Charge, accused_ranks, charges_of, differences, judge
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.streams.monitor_settings import MonitorSettings
from tests.infra.checking.recordings import recorded, simulated


def verdict(kind: str, *suspects: Suspect, communicator: str | None = None) -> Verdict:
    return Verdict("v", 1, "closed", "j", kind, (60, 80), math.nan, 1.0, communicator, suspects, "")


def gpu(*ranks: int) -> Suspect:
    return Suspect("gpu", ranks[0], ranks, 0.9)


def test_ranks_are_told_by_their_old_numbers() -> None:
    naming = Naming(ranks={7: 2, 3: 5})
    (charge,) = charges_of([verdict("hang", gpu(3, 7))], naming)
    assert charge == Charge("hang", (60, 80), "gpu", (2, 5))


def test_the_sender_of_a_link_stays_first() -> None:
    link = Suspect("link", 3, (3, 7), 0.9, peer=7)
    (charge,) = charges_of([verdict("slow_link", link)], Naming(ranks={7: 2, 3: 5}))
    assert charge.ranks == (5, 2)


def test_added_ranks_of_an_old_device_are_left_out_and_those_of_a_new_one_stay() -> None:
    naming = Naming(added=frozenset({8, 9}))
    found = charges_of(
        [verdict("slow_stage", Suspect("stage", 0, (0, 1, 8), 1.0)), verdict("slow_rank", gpu(9))], naming
    )
    assert [charge.ranks for charge in found] == [(0, 1), (9,)]


def test_the_communicator_counts_where_nobody_is_accused() -> None:
    naming = Naming(communicators={"new": "old"})
    found = charges_of(
        [verdict("imbalance", communicator="new"), verdict("slow_rank", gpu(1), communicator="new")], naming
    )
    assert [charge.communicator for charge in found] == ["old", None]


@given(window=st.tuples(st.integers(0, 200), st.integers(1, 50)), first=st.integers(0, 200), count=st.integers(1, 9))
def test_windows_lose_inserted_iterations(window: tuple[int, int], first: int, count: int) -> None:
    begin, past = window[0], window[0] + window[1]

    def new(number: int) -> int:
        return number + 1_000 + (count if number >= first else 0)

    naming = Naming(iterations_later=1_000, inserted=(first, first + count))
    assert naming.old_window((new(begin), new(past - 1) + 1)) == (begin, past)


def test_differences_are_of_sets_and_count_copies() -> None:
    one, two = Charge("imbalance", (0, 5)), Charge("hang", (5, 6), "gpu", (1,))
    assert differences([one, two], [two, one]) == ([], [])
    assert differences([one, two], [two, two]) == ([one], [two])


def test_whom_a_verdict_names_is_accused_and_a_stage_or_the_world_is_nobody() -> None:
    recording = simulated("three")
    stage = verdict("slow_stage", Suspect("stage", 0, (0, 1, 2, 3, 4, 5), 1.0))
    verdicts = [stage, verdict("slow_rank", gpu(4)), verdict("slow_communicator", communicator="world")]
    assert accused_ranks(verdicts, recording) == {4}
    inside = next(one for one in recording.job.communicators if one.kind == "tp")
    assert accused_ranks([verdict("slow_communicator", communicator=inside.id)], recording) == set(inside.ranks)


def test_a_charge_reads_as_a_sentence() -> None:
    assert str(Charge("slow_link", (60, 80), "link", (1, 3))) == "slow_link, link of rank 1, 3, iterations 60 to 79"
    assert str(Charge("slow_communicator", (6, 8), communicator="dp1")) == (
        "slow_communicator, nobody accused on dp1, iterations 6 to 7"
    )


@pytest.mark.parametrize("name", ["gloo-slow-link", "gloo-slow-nic"])
def test_a_stream_gives_the_verdicts_of_the_file(name: str) -> None:
    whole = judge(Changed(recorded(name)), MonitorSettings())
    streamed = judge(Changed(recorded(name), delivery=Delivery(100, 0.5)), MonitorSettings())
    assert streamed == whole
    assert len(whole) == 1
