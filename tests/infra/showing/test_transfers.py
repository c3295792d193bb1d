from __future__ import annotations

import re

import pytest

from irregulars.infra.runs.analysis import judge_trace
from irregulars.infra.showing.found import Found, Iteration, Standing, gather
from irregulars.infra.showing.from_database import found_in_recording
from irregulars.infra.showing.html_page import page_of, small_line, times_chart, ways_chart
from irregulars.infra.showing.text_page import headline, lines_of
from irregulars.infra.showing.transfers import communicators_of, matrix_of, ways_of
from irregulars.messages.judgements import Suspect
from irregulars.producers.trace.directory import read_trace
from irregulars.words import name_kind
from tests.infra.showing.made_up_verdicts import RECORDINGS, found_in, verdict_of

MS = 1e6
MEMBERS = {"dp0": ("dp", (0,)), "dp1": ("dp", ()), "tp0": ("tp", (0,)), "pp0": ("pp", (0,)), "pp1": ("pp", ())}
NIC = Suspect("nic", 0, (0,), 0.9)


def transfers() -> list[tuple[int, str, int | None, int | None, float]]:
    """Two iterations: what rank 0 sends or reduces with other hosts is slow."""
    return [
        (at, *way, took_ns)
        for at in (7, 8)
        for way, took_ns in (
            (("dp0", None, None), 30 * MS), (("dp1", None, None), 3 * MS), (("tp0", None, None), 1 * MS),
            (("pp0", 0, 2), 5 * MS), (("pp1", 1, 3), 1 * MS), (("pp1", 3, 1), 1 * MS),
        )
    ]  # fmt: skip


def test_accused_ways_stand_first_and_are_held_against_those_of_their_kind() -> None:
    found = ways_of(transfers(), MEMBERS, NIC)
    assert [(one.name, one.is_accused) for one in found] == [
        ("dp0", True), ("rank 0 to 2", True), ("dp1", False), ("rank 1 to 3", False), ("rank 3 to 1", False),
    ]  # fmt: skip
    assert [round(one.ratio, 2) for one in found] == [10.0, 5.0, 1.0, 1.0, 1.0]
    assert found[0].took_ns == {7: 30 * MS, 8: 30 * MS}


def test_a_matrix_has_a_row_for_each_sender_and_of_a_large_job_the_slowest_ranks() -> None:
    cells = [
        {"sender": one, "receiver": one + 1, "latency_ms": 9.0 if one == 70 else 1.0 + one / 100,
         "median_gbytes_per_s": 0.5 if one == 40 else 2.0}
        for one in range(100)
    ]  # fmt: skip
    cells.append({"sender": 0, "receiver": 5, "latency_ms": 1.0, "median_gbytes_per_s": 0.0})  # too little to round
    latencies, rates = (matrix_of(cells, is_rate=is_rate) for is_rate in (False, True))
    assert {"rank 70", "rank 99"} <= {one.name for one in latencies}
    assert len({rank for one in latencies for rank in one.took_ns}) <= 32
    assert next(one for one in latencies if one.name == "rank 70").ratio == pytest.approx(9 / 1.49, rel=0.01)
    assert next(one for one in rates if one.name == "rank 40").took_ns == {41: 2e9}
    assert matrix_of(cells[-1:], is_rate=True) == matrix_of([], is_rate=False) == []


def test_communicators_over_time_are_held_against_their_like() -> None:
    slices = [
        {
            "communicator": name,
            "operator": "all_reduce",
            "from_iteration": at,
            "median_ms": ms,
            "times_its_like": ms / 2,
        }
        for name, at, ms in (("dp1", 30, 8.0), ("dp1", 0, 2.0), ("dp0", 0, 2.0), ("dp0", 30, 2.0))
    ]
    slow, usual = communicators_of([*slices, slices[0] | {"communicator": "dp2", "times_its_like": 0.0}])
    assert (slow.name, slow.usual_ns, slow.took_ns) == ("dp1 all_reduce", 2 * MS, {30: 8 * MS, 0: 2 * MS})
    assert usual.ratio == 1.0
    chart = ways_chart([slow, usual], "Communicators", "iterations from")
    assert "dp1 all_reduce, iterations from 30: 8 ms (usual 2 ms)" in chart


def test_a_link_accuses_one_direction_of_one_pair_and_a_map_of_one_colour_is_left_out() -> None:
    found = ways_of(transfers(), MEMBERS, Suspect("link", 1, (1, 3), 0.9, peer=3))
    assert [one.name for one in found if one.is_accused] == ["rank 1 to 3"]
    assert ways_of(transfers()[:1], MEMBERS, NIC) == []  # nothing to compare it with
    everybody = {name: (kind, (0,)) for name, (kind, _) in MEMBERS.items()}
    assert ways_of(transfers()[:2], everybody, NIC) == []


def test_slow_ways_stand_out_though_half_of_all_are_slow_and_one_transfer_stalled() -> None:
    switch = Suspect("switch", 0, (0, 1), 0.9, switch="leaf-0")
    members = {f"dp{at}": ("dp", (at,) if at < 2 else ()) for at in range(4)}
    slow = [(at, f"dp{own}", None, None, (30 if own < 2 else 3) * MS) for at in range(9) for own in range(4)]
    ways = ways_of([*slow, (9, "dp3", None, None, 900 * MS)], members, switch)
    assert [(one.name, one.ratio) for one in ways] == [("dp0", 10.0), ("dp1", 10.0), ("dp2", 1.0), ("dp3", 1.0)]
    drawn = re.findall(r'class="heat(\d)"><title>(dp\d), iteration (\d)', ways_chart(ways))
    assert {level for level, name, _ in drawn if name in ("dp0", "dp1")} == {"5"}
    assert [one[1:] for one in drawn if one[0] != "0" and one[1] > "dp1"] == [("dp3", "9")]


def test_a_page_draws_transfers_for_a_link_and_work_for_a_slow_rank_alone() -> None:
    trace = read_trace(RECORDINGS / "bench" / "tp2pp2dp2-nic-send")
    judgements, _ = judge_trace(trace, fills_columns=True)
    told = [one for one in judgements.verdicts if one.suspects][-1]
    found = found_in_recording("nic", trace, judgements, told)
    suspect = told.suspects[0]
    assert found.cells == ()
    assert {one.is_accused for one in found.ways} == {True, False}
    slowest = max(found.ways, key=lambda one: one.ratio)
    assert slowest.is_accused
    page = page_of(gather(found))
    assert "Transfers, way by iteration" in page
    assert f"▸ {slowest.name}" in page
    assert headline(gather(found)).endswith(f": {gather(found).device}")
    assert suspect.nic is None or suspect.nic in page.partition("</h1>")[0]
    slow = found_in("torch-slow-rank")
    assert slow.cells
    assert slow.ways == ()


@pytest.mark.parametrize("cause", ["checkpoint_write", "cpu_throttled"])
def test_a_page_draws_what_the_accused_rank_paused_for_with_the_known_cause_first(cause: str) -> None:
    trace = read_trace(RECORDINGS / "causes" / cause.replace("_", "-"))
    judgements, _ = judge_trace(trace, fills_columns=True)
    told = next(one for one in reversed(judgements.verdicts) if one.cause == cause)
    found = found_in_recording("causes", trace, judgements, told)
    first, *others = found.pauses
    assert first.name == name_kind(cause)
    assert any(one.usual_ns > 0 for one in others), "they are usual here"
    page = page_of(gather(found))
    assert page.index("Time between operators") < page.index("Own time, cause by iteration")
    assert re.search(rf'class="heat5"><title>{first.name}, iteration \d+: .* \(usual 0 ms\)', page)


def test_a_hang_shows_who_stands_where_and_no_map() -> None:
    hang = verdict_of(kind="hang", iterations=(20, 21), suspects=(Suspect("gpu", 3, (3,), 0.9),))
    standing = (Standing("past all_reduce 7 of world", (3,), 0.9, ""),
                Standing("inside all_reduce 8 of world", (0, 1, 2), None, "2026-11-27 18:03:33"))  # fmt: skip
    times = [Iteration(at, at * 10**9, 10**8 if at < 20 else 10**7, None, False, False) for at in range(21)]
    screen = gather(Found(hang, iterations=times, standing=standing))
    page = page_of(screen)
    assert '<td>inside all_reduce 8 of world</td><td>ranks <span class="name">0-2</span></td>' in page
    assert "90% suspect" in page
    assert "Time between operators" not in page
    text = " ".join(" ".join(lines_of(screen)).split())
    assert "Standing past all_reduce 7 of world: rank 3 (90% suspect)" in text
    crowd = gather(Found(hang, iterations=times, standing=(*standing, *10 * standing[1:])))
    assert "and in 4 more places" in " ".join(lines_of(crowd))


def test_an_unended_iteration_is_the_tallest_bar_and_one_that_compiled_does_not_spoil_the_scale() -> None:
    times = [Iteration(at, 0, 10**8, None, False, False) for at in range(9)]
    hung = times_chart(
        [*times, Iteration(9, 0, 10**6, None, None, False)], verdict_of(kind="hang", iterations=(9, 10))
    )
    assert 'height="132.00" class="cause"><title>iteration 9 does not end<' in hung
    compiled = [times[0]._replace(elapsed_ns=43 * 10**8), *times[1:]]
    assert ">300 ms</text>" in times_chart(compiled)
    assert "iteration 0: 4.3 s" in times_chart(compiled)


def test_a_small_line_is_red_where_a_verdict_explains_an_iteration_that_is_usual_by_now() -> None:
    learned = Iteration(9, 0, 10**8, 1e8, False, True)
    assert "bar-cause" in small_line([learned], 1e8, "")
    assert "bar-cause" not in small_line([learned._replace(has_cause=False)], 1e8, "")
