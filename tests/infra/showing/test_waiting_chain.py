from __future__ import annotations

import math
from dataclasses import replace

from irregulars.infra.showing.found import Found
from irregulars.infra.showing.screen import gather
from irregulars.infra.showing.text_page import chain_texts
from irregulars.infra.showing.waiting_chain import Handover, Usual, find_chain, find_ways
from irregulars.messages.judgements import Suspect
from tests.infra.showing.made_up_verdicts import operators_of, verdict_of

MEMBERS = {"world": (0, 1, 2), "tp": (1, 2)}
GPU_2 = Suspect("gpu", 2, (2,), 0.9)

# Rank 2 works 50 ms (usual 10) before tp, on which rank 1 waits for it; then rank 0 waits for both in world.
SLOW = (
    (7, 0, "world", "all_reduce", 1, None, 10, 10, 45, 2), (7, 1, "world", "all_reduce", 1, None, 55, 1, 0, 2),
    (7, 2, "world", "all_reduce", 1, None, 55, 1, 0, 2), (7, 1, "tp", "all_gather", 1, None, 10, 10, 40, 4),
    (7, 2, "tp", "all_gather", 1, None, 50, 50, 0, 4),
)  # fmt: skip
HEALTHY = (
    (3, 0, "world", "all_reduce", 0, None, 10, 10, 5, 2), (3, 1, "world", "all_reduce", 0, None, 15, 1, 0, 2),
    (3, 2, "world", "all_reduce", 0, None, 15, 1, 0, 2), (3, 1, "tp", "all_gather", 0, None, 10, 10, 0, 4),
    (3, 2, "tp", "all_gather", 0, None, 10, 10, 0, 4),
)  # fmt: skip


def usual_of(operators: dict[str, object], accused: tuple[int, ...] = (2,)) -> Usual:
    return Usual(operators, [3], [7], accused, MEMBERS)  # type: ignore[arg-type]


def test_the_chain_leads_from_who_waited_longest_to_the_rank_that_worked() -> None:
    operators = operators_of(*SLOW, *HEALTHY)
    chain = find_chain(operators, [7], usual_of(operators), GPU_2, MEMBERS)
    assert chain is not None
    assert [(one.longest_rank, one.last_rank, one.waited_ns) for one in chain.handovers] == [
        (0, 1, 45e6), (1, 2, 40e6),
    ]  # fmt: skip
    assert chain.is_accused
    assert (chain.cause.rank, chain.cause.elapsed_ns, chain.cause.usual_ns) == (2, 50e6, 10e6)


def test_the_chain_says_through_which_rank_it_goes() -> None:
    """World waits for rank 1, which waits in tp for rank 2 less than rank 0 does."""
    members = {"world": (0, 1, 2), "tp": (0, 1, 2)}
    tp = ((7, 0, 45), (7, 1, 40), (7, 2, 0))
    world = ((7, 0, 9), (7, 1, 0), (7, 2, 8))
    rows = [
        *((number, rank, "tp", "all_gather", 1, None, 50 - wait, 50 - wait, wait, 4) for number, rank, wait in tp),
        *(
            (number, rank, "world", "all_reduce", 1, None, 64 - wait, 10 - wait, wait, 2)
            for number, rank, wait in world
        ),
    ]
    operators = operators_of(*rows)
    chain = find_chain(operators, [7], Usual(operators, [], [7], (2,), members), GPU_2, members)
    assert chain is not None
    told = [(one.longest_rank, one.through_rank, one.last_rank) for one in chain.handovers]
    assert told[-1] == (0, 1, 2)
    screen = replace(gather(Found(verdict_of())), chain=chain)
    assert "rank 0 and 1 more, rank 1 among them, waited up to 45 ms" in chain_texts(screen, chain)[1]
    apart = replace(chain, handovers=(chain.handovers[0]._replace(last_rank=2), chain.handovers[1]))
    assert chain_texts(screen, apart)[1].startswith("further on, rank 0 and 1 more waited")


def test_the_ranks_of_the_accused_in_a_group_are_known() -> None:
    slow = [(7, rank, "tp", "all_gather", 1, None, 10, 10, 0, 40) for rank in (1, 2)]
    healthy = [(3, rank, "tp", "all_gather", 1, None, 10, 10, 0, 4) for rank in (1, 2)]
    operators = operators_of(*slow, *healthy)
    chain = find_chain(operators, [7], usual_of(operators), Suspect("nic", 2, (2, 3), 0.9), MEMBERS)
    assert chain is not None
    assert chain.accused_members == (2,)
    led = Handover(3, 0, 40e6, 1, "all_reduce", "world", 0)
    screen = replace(gather(Found(verdict_of())), chain=chain)
    led_there = replace(chain, handovers=(led,), cause=chain.cause._replace(rank=1))
    assert chain_texts(screen, led_there)[1].endswith("; rank 2, the accused, is in this group, as rank 1 is")
    assert chain_texts(screen, replace(led_there, handovers=()))[0].endswith("the accused, is in this group")


def test_short_waits_are_left_out() -> None:
    operators = operators_of(*SLOW, *HEALTHY)
    chain = find_chain(operators, [7], usual_of(operators), GPU_2, MEMBERS, worth_ns=42e6)
    assert chain is not None
    assert [one.longest_rank for one in chain.handovers] == [0]


def test_a_chain_that_does_not_reach_the_accused_says_so() -> None:
    operators = operators_of(*SLOW, *HEALTHY)
    chain = find_chain(operators, [7], usual_of(operators), Suspect("gpu", 0, (0,), 0.9), MEMBERS)
    assert chain is not None
    assert not chain.is_accused
    assert chain.cause.rank == 2


def test_clocks_that_are_apart_change_nothing() -> None:
    moved = [(*row[:6], row[6] + 1000 * row[1], *row[7:]) for row in (*SLOW, *HEALTHY)]
    straight, apart = operators_of(*SLOW, *HEALTHY), operators_of(*moved)  # type: ignore[arg-type]
    chains = [find_chain(one, [7], usual_of(one), GPU_2, MEMBERS) for one in (straight, apart)]
    assert chains[0] == chains[1]


def test_without_operators_there_is_no_chain() -> None:
    operators = operators_of(*HEALTHY)
    assert find_chain(operators, [7], usual_of(operators), GPU_2, MEMBERS) is None


def test_without_regular_iterations_transfers_are_held_against_those_of_others() -> None:
    rows = [
        (7, rank, name, "all_gather", 1, None, 10, 10, 0, 30 if name == "a" else 3)
        for name, ranks in (("a", (0, 1)), ("b", (2, 3)), ("c", (4, 5)))
        for rank in ranks
    ]
    operators = operators_of(*rows)  # type: ignore[arg-type]
    members = {"a": (0, 1), "b": (2, 3), "c": (4, 5)}
    (way,) = find_ways(operators, [7], Usual(operators, [], [7], (0,), members), 0)
    assert (way.name, way.now_ns, way.usual_ns, way.is_by_others) == ("on a", 30e6, 3e6, True)


def test_messages_are_told_by_their_recvs() -> None:
    rows = [
        (number, rank, "pp", operator, 1, peer, 10, 10, 0, transfer)
        for number, received in ((7, 25), (3, 1))
        for rank, operator, peer, transfer in ((1, "send", 2, 0.1), (2, "recv", 1, received))
    ]
    operators = operators_of(*rows)  # type: ignore[arg-type]
    (way,) = find_ways(operators, [7], usual_of(operators), 1)
    assert (way.name, way.now_ns, way.usual_ns) == ("to rank 2", 25e6, 1e6)


def test_a_gap_that_was_never_seen_before_has_no_usual_time() -> None:
    operators = operators_of(*SLOW)
    chain = find_chain(operators, [7], usual_of(operators), GPU_2, MEMBERS)
    assert chain is not None
    assert math.isnan(chain.cause.usual_ns)
