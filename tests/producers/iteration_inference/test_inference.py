from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.messages.records import PHASES, UNKNOWN
from irregulars.producers.iteration_inference.inference import infer_iterations
from tests.producers.iteration_inference.made_up_jobs import Call, border_errors, columns_of, taken

WORLD, TP, PP, DP = range(4)
KINDS = ["world", "tp", "pp", "dp"]
BIG, SCALAR = 1 << 26, 8


def ddp(buckets: int = 3, layers: int = 0) -> list[Call]:
    inner = [Call(TP, "all_reduce") for _ in range(layers)]
    return [*inner, *(Call(DP, "all_reduce", BIG, work_ms=20 if k == 0 else 1) for k in range(buckets))]


def every_rank(calls: list[Call], ranks: int = 2) -> list[list[Call]]:
    return [list(calls) for _ in range(ranks)]


def pipeline(micro_batches: int) -> list[list[Call]]:
    """Two stages, each of one rank; gradients of both are reduced over the world at the end."""
    first = [Call(PP, "send", peer=1) for _ in range(micro_batches)]
    first += [Call(PP, "recv", peer=1) for _ in range(micro_batches)]
    second = [Call(PP, name, peer=0) for _ in range(micro_batches) for name in ("recv", "send")]
    return [[*calls, Call(WORLD, "all_reduce", SCALAR)] for calls in (first, second)]


SET_UP = [Call(DP, "broadcast", 4), Call(DP, "all_gather", 64), Call(DP, "barrier", 0)]
GATHERED = [*ddp(2, layers=4), Call(DP, "all_gather", BIG), Call(DP, "all_gather", BIG)]
EXACT = {
    **{f"{n} micro-batches": (0, [pipeline(n)] * 12) for n in (1, 4, 40)},
    **{f"{n} equal buckets": (0, [every_rank(ddp(n, layers=6))] * 12) for n in (1, 2, 3, 7, 20)},
    "set-up, which is in none": (1, [every_rank(SET_UP), *[every_rank(ddp(2, layers=3))] * 10]),
    "parameters gathered after the last reduction": (0, [every_rank(GATHERED)] * 10),
}


@pytest.mark.parametrize(("first", "turns"), EXACT.values(), ids=EXACT)
def test_iterations_are_found_exactly(first: int, turns: list[list[list[Call]]]) -> None:
    columns = columns_of(turns, first=first)
    assert (infer_iterations(columns, KINDS).iteration == columns["iteration"]).all()


SHARD = [call for _ in range(4) for call in (Call(DP, "all_gather", BIG), Call(DP, "reduce_scatter", BIG))]
WARM_UP = [*[Call(TP, "all_reduce")] * 2, Call(DP, "all_reduce", BIG // 2, work_ms=20), Call(DP, "all_reduce", BIG)]
CLOSE = {
    "sharded micro-batches that end with a reduction which comes once":
        [every_rank([*SHARD * 5, Call(DP, "all_reduce", BIG)])] * 12,
    "a warm-up with other sizes": [every_rank(WARM_UP), *[every_rank(ddp(2, layers=2))] * 10],
    "a job that changes": [*[every_rank(ddp(2, layers=4))] * 20, *[every_rank(ddp(5, layers=9))] * 20],
}  # fmt: skip


@pytest.mark.parametrize("turns", CLOSE.values(), ids=CLOSE)
def test_all_iterations_are_found_within_one_operator(turns: list[list[list[Call]]]) -> None:
    columns = columns_of(turns)
    found = infer_iterations(columns, KINDS)
    assert found.count == len(turns)
    assert border_errors(columns, found.iteration).max() <= 1


def test_groups_that_share_no_communicator_are_joined_by_what_links_them() -> None:
    """Ranks 0 and 1 reduce on one communicator, 2 and 3 on another, and each sends to its fellow."""
    first = [[Call(PP, "send", peer=rank + 2), Call(DP, "all_reduce", BIG, work_ms=20)] for rank in (0, 1)]
    one = first + [[Call(PP, "recv", peer=rank - 2), Call(WORLD, "all_reduce", BIG)] for rank in (2, 3)]
    extra = [[], [], *([Call(WORLD, "all_reduce", BIG)] for _ in range(2))]  # the second group has warmed up
    columns = columns_of([extra, *[one] * 15], first=1)
    found = infer_iterations(columns, ["dp", "tp", "pp", "dp"]).iteration
    is_link = columns["communicator"] == PP
    shares = {}
    for rank, peer, sequence, number in zip(
        *(columns[n][is_link].tolist() for n in ("rank", "peer", "sequence")), found[is_link].tolist(), strict=True
    ):
        shares.setdefault((min(rank, peer), sequence), set()).add(number)
    assert all(len(numbers) == 1 for numbers in shares.values())
    assert border_errors(columns, found).max() <= 1


def test_evaluations_and_checkpoints_are_learned_where_they_recur() -> None:
    train = every_rank([*ddp(1, layers=8), Call(WORLD, "all_reduce", SCALAR)])
    evaluation = every_rank([*[Call(TP, "all_reduce")] * 4, Call(WORLD, "all_reduce", SCALAR)])
    saved = every_rank([*train[0], *[Call(WORLD, "gather", BIG), Call(WORLD, "barrier", 0)] * 3])
    turns = [evaluation if k % 10 == 9 else saved if k % 20 == 4 else train for k in range(70)]
    found = infer_iterations(columns_of(turns), KINDS)
    names = [PHASES[code] for code in found.phases.tolist()]
    assert [k for k, name in enumerate(names) if name == "eval"] == list(range(9, 70, 10))
    # What was saved after the last reduction is seen in the iteration that follows.
    marked = [k for k, name in enumerate(names) if name == "checkpoint"]
    assert all(min(abs(k - true) for true in range(4, 70, 20)) <= 1 for k in marked)
    assert len(marked) >= 3


def test_one_long_iteration_is_no_phase() -> None:
    turns = [every_rank([*ddp(1, layers=8), Call(WORLD, "all_reduce", SCALAR)]) for _ in range(40)]
    turns[17] = every_rank([Call(WORLD, "barrier", 0, work_ms=500), *turns[17][0]])
    assert not infer_iterations(columns_of(turns), KINDS).phases.any()


@pytest.mark.parametrize("layers", [8, 100])
def test_layers_of_a_model_are_no_iterations(layers: int) -> None:
    """All-reduces that are all alike, a fifth of a millisecond apart, as those of an engine that decodes."""
    of_layers = [Call(TP, "all_reduce", work_ms=0.1) for _ in range(layers)]
    # What comes before the first gathering may be a part of an iteration.
    columns = columns_of([every_rank([*of_layers, Call(TP, "all_gather", work_ms=0.1)])] * 12, first=1)
    found = infer_iterations(columns, KINDS)
    assert found.count == 11
    assert border_errors(columns, found.iteration).max() <= 1
    assert infer_iterations(columns_of([every_rank(of_layers)] * 12), KINDS).count == 0  # nothing tells their number


def test_iterations_of_ranks_that_mostly_work_begin_as_the_one_before_ends() -> None:
    """One bucket: the time between reductions is the iteration's, not none's."""
    for work_ms, elapsed_ms in ((20.0, 20.1), (0.05, 0.1)):
        call = Call(WORLD, "all_reduce", BIG, work_ms=work_ms)
        beside = [Call(TP, "all_reduce", work_ms=0.0)] * 19 if work_ms < 1 else []
        found = infer_iterations(columns_of([every_rank([*beside, call])] * 12), KINDS)
        own_ms = found.rows_of(1)["elapsed_ns"][1:] / 1e6
        assert own_ms == pytest.approx(elapsed_ms if not beside else 2.05, rel=0.01)


def test_nothing_periodic_and_no_rows_are_no_iterations() -> None:
    generator = np.random.default_rng(1)
    kinds, sizes = ["all_reduce", "reduce_scatter"], generator.integers(1, 99, 60).tolist()
    calls = [Call(DP, str(generator.choice(kinds)), size) for size in sizes]
    found = infer_iterations(columns_of([every_rank(calls)]), KINDS)
    assert found.count == 0
    assert (found.iteration == UNKNOWN).all()
    columns = taken(columns_of([every_rank(ddp())]), np.empty(0, dtype=np.int64))
    assert infer_iterations(columns, KINDS).count == 0


JOBS = {
    "pipeline": [pipeline(4)] * 25,
    "buckets": [every_rank([*ddp(3, layers=4), Call(WORLD, "all_reduce", SCALAR)], 3)] * 25,
}


@pytest.mark.parametrize("name", JOBS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=12, deadline=None)
def test_order_and_copies_of_rows_change_nothing(name: str, seed: int) -> None:
    columns = columns_of(JOBS[name])
    generator = np.random.default_rng(seed)
    size = len(columns["rank"])
    mixed = generator.permutation(np.append(np.arange(size), generator.integers(0, size, size // 3)))
    found = infer_iterations(columns, KINDS).iteration
    assert (infer_iterations(taken(columns, mixed), KINDS).iteration == found[mixed]).all()


@pytest.mark.parametrize("name", JOBS)
@given(codes=st.permutations(range(4)))
@settings(max_examples=10, deadline=None)
def test_names_of_communicators_change_nothing(name: str, codes: list[int]) -> None:
    columns = columns_of(JOBS[name])
    renamed = {**columns, "communicator": np.array(codes)[columns["communicator"]]}
    kinds = [KINDS[codes.index(code)] for code in range(4)]
    found = infer_iterations(columns, KINDS).iteration
    assert (infer_iterations(renamed, kinds).iteration == found).all()


@pytest.mark.parametrize("name", JOBS)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 0.05))
@settings(max_examples=12, deadline=None)
def test_lost_rows_move_few_operators(name: str, seed: int, share: float) -> None:
    columns = columns_of(JOBS[name])
    kept = np.random.default_rng(seed).random(len(columns["rank"])) >= share
    some = taken(columns, kept)
    found = infer_iterations(some, KINDS).iteration
    is_known = found != UNKNOWN
    assert is_known.mean() > 0.95
    shifts, counts = np.unique((found - some["iteration"])[is_known], return_counts=True)
    assert counts.max() >= 0.95 * len(found), dict(zip(shifts.tolist(), counts.tolist(), strict=True))


@given(shift=st.integers(-(10**15), 10**15))
@settings(max_examples=10, deadline=None)
def test_clocks_of_ranks_do_not_matter(shift: int) -> None:
    columns = columns_of(JOBS["buckets"])
    moved = {**columns, "start_ns": columns["start_ns"] + np.where(columns["rank"] == 1, shift, 0)}
    assert (infer_iterations(moved, KINDS).iteration == columns["iteration"]).all()
