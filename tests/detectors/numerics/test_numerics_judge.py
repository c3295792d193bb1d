"""Numbers that go wrong, through both hops: what is told of them, and of numbers that are right nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.numerics.job_trend import JobTrend
from irregulars.detectors.numerics.thresholds import NUMERIC
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import layer_of
from irregulars.messages.records import PHASES, UNKNOWN
from irregulars.producers.trace.directory import Trace, read_trace, write_trace
from irregulars.sinks.advice import advise
from tests.streams.judged_streams import MonitoredJob, in_order
from tests.streams.lockstep_job import MS, Groups, LockstepJob

RANKS = 4
ITERATIONS = 100
WRONG = 60  # the iteration in which something goes wrong
DP: Groups = {"dp": ("dp", tuple(range(RANKS)))}
Row = dict[str, Any]
Spoil = Callable[[int, int, Row], None]
"""Iteration, rank, and the row of ``iterations``, which it may change."""


def trained(
    spoil: Spoil = lambda *_: None, seed: int = 1, replicas: bool = True, groups: Groups = DP, **audited: Any
) -> Trace:
    """Train a job of replicas; `audited`: of `audits`."""
    random = np.random.default_rng(seed)
    job = LockstepJob(groups, places={rank: {"host": f"node-{rank}", "gpu": 0} for rank in groups["dp"][1]})

    def body(job: LockstepJob, number: int) -> None:
        for rank in job.ranks:
            job.work(rank, 10 * MS + int(random.integers(0, MS // 10)))
        job.collective("dp", MS)

    job.iterate(range(ITERATIONS), body)
    for number in range(ITERATIONS):
        norm, checksum = float(np.exp(random.normal(-number / 100, 0.1))), int(random.integers(0, 1 << 62))
        for rank in job.ranks:
            row = job.iteration_rows[rank][number]
            row |= {"loss": 3.0 - number / ITERATIONS + random.normal(0, 0.05), "grad_norm": norm,
                    "local_grad_norm": 2 * norm * math.exp(random.normal(0.1 * rank, 0.1)),
                    "parameters_checksum": checksum}  # fmt: skip
            spoil(number, rank, row)
    if audited:
        audit(job, **audited)
    if replicas:
        for rank in job.ranks:
            job.places[rank]["replicas"] = tuple(job.ranks)
    return job.trace()


def audit(job: LockstepJob, every: int, wrong: int | None, voters: int = RANKS, each: int = 1) -> None:
    """Let ranks compute the micro-batch of rank 0 again, and `wrong` come to another result from `WRONG` on.

    `each`: of how many audits `wrong` takes part in one.
    """
    for number in range(0, ITERATIONS, every):
        for rank in range(voters):
            if rank == wrong and number // every % each:
                continue
            told = next(row for row in job.iteration_rows[rank] if row["iteration"] == number)
            checksum = number + (rank == wrong and number >= WRONG)
            told["phase"] = PHASES.index("eval")  # an audit makes its iteration longer
            job.iteration_rows[rank].append({**told, "audit_of_rank": 0, "audit_checksum": checksum})
    for rows in job.iteration_rows.values():
        rows.sort(key=lambda row: row["iteration"])


def on(rank: int | None, change: Mapping[str, Callable[[Any], Any]], until: int = ITERATIONS) -> Spoil:
    """Change values of a rank, or of each (None), from `WRONG` on."""

    def spoil(number: int, own: int, row: Row) -> None:
        if rank in (None, own) and WRONG <= number < until:
            row |= {name: one(row[name]) for name, one in change.items()}

    return spoil


def times(factor: float) -> Callable[[float], float]:
    return lambda value: value * factor


def nothing_finite(_: float) -> float:
    return math.inf


def another(checksum: int) -> int:
    return checksum ^ 1


LAST = WRONG + 1
CASES: list[tuple[str, Trace, str, tuple[int, ...], str]] = [
    ("weight", trained(on(2, {"parameters_checksum": another})), "corruption", (2,), "page"),
    ("weight, sets not announced", trained(on(2, {"parameters_checksum": another}), replicas=False), "corruption",
     (2,), "page"),
    ("reduced gradient", trained(on(3, {"grad_norm": times(1 + 1e-12)}, LAST)), "corruption", (3,), "ticket"),
    ("norm of one replica", trained(on(3, {"grad_norm": nothing_finite}, LAST)), "corruption", (3,), "ticket"),
    ("own gradient", trained(on(1, {"local_grad_norm": times(50)}, LAST)), "loss_spike", (1,), "ticket"),
    ("own loss", trained(on(1, {"loss": times(4)}, LAST)), "loss_spike", (1,), "ticket"),
    ("own loss is NaN", trained(on(0, {"loss": nothing_finite})), "loss_spike", (0,), "page"),
    ("all NaN", trained(on(None, {"loss": nothing_finite, "grad_norm": nothing_finite})), "loss_spike", (), "page"),
    ("all spike", trained(on(None, dict.fromkeys(("loss", "grad_norm", "local_grad_norm"), times(8)), WRONG + 3)),
     "loss_spike", (), "note"),
    ("reduction, all alike", trained(on(None, {"grad_norm": times(30)}, LAST)), "corruption", (), "page"),
    ("reduction, some", trained(lambda number, rank, row: on(None if rank < 2 else UNKNOWN, {
        "grad_norm": times(30)}, LAST)(number, rank, row)), "corruption", (0, 1), "ticket"),
    ("audit", trained(every=20, wrong=2), "corruption", (2,), "page"),
]  # fmt: skip


@pytest.mark.parametrize(("trace", "kind", "ranks", "severity"), [one[1:] for one in CASES],
                         ids=[one[0] for one in CASES])  # fmt: skip
@pytest.mark.slow
def test_what_goes_wrong_is_told_at_once(trace: Trace, kind: str, ranks: tuple[int, ...], severity: str) -> None:
    found = [one for one in told(trace) if one.revision == 1]
    assert [(one.kind, tuple(s.rank for s in one.suspects), one.iterations[0]) for one in found] == [
        (kind, ranks, WRONG)
    ]
    (last,) = {one.verdict_id: one for one in told(trace)}.values()
    assert (last.severity, last.state) == (severity, "closed")
    is_in_sum = (kind, ranks) == ("corruption", ())
    assert last.layer == ("network" if is_in_sum else layer_of(kind))
    assert ("links" in advise(replace(last, state="open"))) is is_in_sum
    assert all(one.suspects[0].host == f"node-{ranks[0]}" for one in found if ranks)


def told(trace: Trace) -> list[Verdict]:
    return MonitoredJob("lockstep").feed(in_order(trace)).revisions


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_of_right_numbers_nothing_is_told(seed: int) -> None:
    assert told(trained(seed=seed, every=10, wrong=None)) == []


@pytest.mark.parametrize("values", [
    pytest.param(lambda _, rank, row: {"parameters_checksum": row["parameters_checksum"] + rank},
                 id="replicas that were never equal"),
    pytest.param(lambda number, rank, _: {"loss": round(np.random.default_rng([number, rank]).normal(3, 0.003), 2)},
                 id="equal losses that are rounded ones"),
    pytest.param(lambda number, rank, row: {
        name: row[name] * (4 if number >= WRONG else 1) for name in ("loss", "grad_norm", "local_grad_norm")},
                 id="other data from here on"),
    pytest.param(lambda number, rank, _: {"update_rms": 1e-4 * (10 if number >= WRONG else 1)},
                 id="another rate from here on"),
    pytest.param(lambda *_: {"loss": math.inf, "grad_norm": math.nan, "local_grad_norm": math.nan},
                 id="a loss that is never known"),
    pytest.param(lambda number, rank, _: {"loss": 0.01 + 0.01 * (number == WRONG + 20),
                                          "local_grad_norm": 0.6 if (number, rank) == (WRONG, 2) else 0.5},
                 id="the last digit that a source writes"),
])  # fmt: skip
def test_of_what_only_seems_wrong_nothing_is_told(values: Callable[[int, int, Row], Row]) -> None:
    assert told(trained(lambda number, rank, row: row.update(values(number, rank, row)))) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[:2] + CASES[4:6] + CASES[-1:], ids=lambda case: case[0])
def test_neither_the_wire_nor_a_snapshot_changes_a_verdict(case: tuple[str, Trace, Any, Any, Any]) -> None:
    messages = in_order(case[1])
    plain = MonitoredJob("lockstep").feed(messages).revisions
    moved = MonitoredJob("lockstep", is_on_wire=True, restore_at=range(0, len(messages), 5), repeat_evidence=True)
    assert [repr(one) for one in moved.feed(messages).revisions] == [repr(one) for one in plain]


@pytest.mark.slow
def test_a_directory_holds_all_that_is_judged(tmp_path: Path) -> None:
    for _, trace, kind, ranks, _ in CASES:
        batches = [batch for schema in ("commops", "iterations") for batch in trace.batches(schema).values()]
        write_trace(tmp_path, trace.announcements, batches)
        (verdict,) = analyze(read_trace(tmp_path)).verdicts
        assert (verdict.kind, tuple(one.rank for one in verdict.suspects)) == (kind, ranks)


def test_two_replicas_that_differ_name_nobody() -> None:
    def spoil(number: int, rank: int, row: Row) -> None:
        row["parameters_checksum"] += rank // 2  # ranks 0 and 1 are replicas of each other, as are 2 and 3
        on(1, {"parameters_checksum": another})(number, rank, row)

    first = told(trained(spoil, replicas=False))[0]
    assert (first.kind, first.severity, first.suspects) == ("corruption", "page", ())


def test_a_spike_of_a_rank_becomes_a_corruption_when_its_replicas_say_so() -> None:
    def spoil(number: int, rank: int, row: Row) -> None:
        if rank == 2 and number >= WRONG:
            row["local_grad_norm"] *= 50 if number == WRONG else 1
            row["parameters_checksum"] ^= number > WRONG

    revisions = told(trained(spoil))
    assert [(one.kind, one.event) for one in revisions][:2] == [("loss_spike", "opened"), ("corruption", "changed")]
    assert len({one.verdict_id for one in revisions}) == 1


def test_what_is_equal_again_is_recovered() -> None:
    last = told(trained(on(2, {"grad_norm": times(1.5)}, WRONG + 5)))[-1]
    assert (last.close_reason, last.iterations) == ("recovered", (WRONG, WRONG + 5))


def test_a_part_of_the_parameters_that_comes_up_again_is_the_same_corruption() -> None:
    def spoil(number: int, rank: int, row: Row) -> None:
        on(2, {"parameters_checksum": lambda own: own ^ (number % 32 == 3)})(number, rank, row)

    (last,) = {one.verdict_id: one for one in told(trained(spoil))}.values()
    assert (last.close_reason, last.iterations) == ("finished", (67, 100))


def test_audits_of_which_two_ranks_disagree_name_nobody() -> None:
    first = told(trained(replicas=False, every=20, wrong=1, voters=2))[0]
    assert (first.kind, first.suspects) == ("corruption", ())


def test_a_loss_that_one_rank_alone_reports_accuses_nobody() -> None:
    def spoil(number: int, rank: int, row: Row) -> None:
        row["loss"] = math.nan if rank else math.inf if number >= WRONG else row["loss"]

    found = told(trained(spoil))
    assert {(one.kind, one.suspects) for one in found} == {("loss_spike", ())}


def test_the_job_s_own_trouble_is_not_put_on_a_rank() -> None:
    def spoil(number: int, rank: int, row: Row) -> None:
        if rank == 2 and number == WRONG:
            row["local_grad_norm"] *= 50
        row["loss"] = math.inf if number >= WRONG + 5 else row["loss"]

    last = {one.verdict_id: one for one in told(trained(spoil))}.values()
    assert [(tuple(s.rank for s in one.suspects), one.severity) for one in last] == [((2,), "ticket"), ((), "page")]


@pytest.mark.parametrize("is_grave", [False, True])
@pytest.mark.parametrize("first", [times(1e18), nothing_finite])
def test_an_infinity_that_reaches_all_ranks_is_of_the_one_that_had_it_first(
    first: Callable[[float], float], is_grave: bool
) -> None:
    def spoil(number: int, rank: int, row: Row) -> None:
        on(2, {"local_grad_norm": first, **({"loss": first} if is_grave else {})}, LAST)(number, rank, row)
        row["loss"] = math.inf if number > WRONG else row["loss"]

    (last,) = {one.verdict_id: one for one in told(trained(spoil))}.values()
    assert ([s.rank for s in last.suspects], last.severity, last.iterations) == ([2], "page", (WRONG, ITERATIONS))
    assert "then loss is not finite on 4 of 4 ranks" in last.evidence


def test_another_level_is_told_once_where_the_loss_alone_is_known() -> None:
    for factor in (1.2, 3.0):

        def spoil(number: int, rank: int, row: Row, factor: float = factor) -> None:
            row["grad_norm"] = math.nan
            on(None, {"loss": times(factor)})(number, rank, row)

        found = told(trained(spoil))
        assert len({one.verdict_id for one in found}) == (factor > NUMERIC.loss_times)


def test_a_loss_that_grows_for_long_is_told_early_and_once() -> None:
    trend, told_at = JobTrend(), []
    random = np.random.default_rng(3)
    for step in range(1000):
        loss = 2.0 * math.exp(random.normal(0, 0.02) + max(step - 300, 0) / 2000)
        trend.learn(loss)
        told_at += [step] if trend.growth() is not None else []
    assert 500 < told_at[0] < 650
    falling = JobTrend()
    for step in range(1000):
        falling.learn(2.0 * math.exp(random.normal(0, 0.05) - step / 2000))
        assert falling.growth() is None


def test_a_rank_that_misses_an_iteration_changes_nothing_for_the_others() -> None:
    def spoil(number: int, rank: int, row: Row) -> None:
        if rank == 3 and number % 7 == 3:
            row |= {"parameters_checksum": UNKNOWN, "grad_norm": math.nan, "local_grad_norm": math.nan}
        on(1, {"parameters_checksum": another, "local_grad_norm": times(50)})(number, rank, row)

    found = [one for one in told(trained(spoil, replicas=False)) if one.revision == 1]
    assert [(one.kind, one.suspects[0].rank, one.iterations[0]) for one in found] == [("corruption", 1, WRONG)]


def test_a_step_that_loss_scaling_skips_is_no_spike() -> None:
    one_step = {"grad_norm": nothing_finite, "local_grad_norm": nothing_finite}
    assert told(trained(on(None, one_step, WRONG + 1))) == []
    assert len({one.verdict_id for one in told(trained(on(None, one_step)))}) == 1


def test_replicas_that_differ_name_the_one_whose_own_values_stand_out() -> None:
    for first, later in (("local_grad_norm", WRONG), ("parameters_checksum", WRONG + 1)):

        def spoil(number: int, rank: int, row: Row, first: str = first, later: int = later) -> None:
            row["parameters_checksum"] += rank // 2  # ranks 0 and 1 are replicas of each other, as are 2 and 3
            if rank == 1 and number >= WRONG + (first != "local_grad_norm"):
                row["local_grad_norm"] *= 30
            if rank == 1 and number >= later:
                row["parameters_checksum"] += 1

        (last,) = {one.verdict_id: one for one in told(trained(spoil, replicas=False))}.values()
        assert (last.kind, last.severity, [one.rank for one in last.suspects]) == ("corruption", "page", [1])
        assert "no majority" in last.evidence
        assert "own gradient norm of rank 1" in last.evidence


def test_a_replica_that_differs_from_the_first_iteration_on_is_named() -> None:
    def spoil(_: int, rank: int, row: Row) -> None:
        row["parameters_checksum"] ^= rank == 2

    first = told(trained(spoil))[0]
    assert (first.kind, [one.rank for one in first.suspects], first.iterations) == ("corruption", [2], (0, 1))


def test_ranks_that_work_on_one_batch_are_alternatives() -> None:
    """The error of a rank reaches its tensor-parallel neighbour through the activations."""
    dp: Groups = {"dp": ("dp", tuple(range(6)))}
    for groups, count in ((dp, 2), ({**dp, **{f"tp{n}": ("tp", (2 * n, 2 * n + 1)) for n in range(3)}}, 1)):

        def spoil(number: int, rank: int, row: Row) -> None:
            row["local_grad_norm"] *= {2: 20, 3: 900}.get(rank, 1) if number == WRONG else 1

        last = {one.verdict_id: one for one in told(trained(spoil, replicas=False, groups=groups))}
        assert len(last) == count
        assert [one.rank for verdict in last.values() for one in verdict.suspects] == [3, 2]


def test_what_the_suspect_took_no_part_in_says_nothing_of_it() -> None:
    def spoil(number: int, rank: int, row: Row) -> None:
        row["local_grad_norm"] *= math.nan if number > WRONG and number % 15 else 1
        on(2, {"local_grad_norm": times(50)})(number, rank, row)

    for trace in (trained(spoil), trained(every=4, wrong=2, each=5)):
        (last,) = {one.verdict_id: one for one in told(trace)}.values()
        assert (last.suspects[0].rank, last.iterations[0]) == (2, WRONG)
        assert last.iterations[1] > WRONG + 20


def test_a_spike_after_a_steep_start_is_told() -> None:
    trend, random = JobTrend(), np.random.default_rng(3)
    for step in range(120):
        value = (2.4 + 7 * math.exp(-step / 25)) * math.exp(random.normal(0, 0.01))
        jump = trend.look(value)
        assert jump is None or not jump.is_far
        trend.learn(value)
    jump = trend.look(2.5 * value)
    assert jump is not None
    assert jump.is_far
    assert jump.times == pytest.approx(2.5, rel=0.1)


def test_a_rounded_loss_can_spike() -> None:
    def spoil(number: int, rank: int, row: Row) -> None:
        row["loss"] = 2.1 if number == WRONG and rank == 2 else 0.1

    assert [one.suspects[0].rank for one in told(trained(spoil)) if one.revision == 1] == [2]


@pytest.mark.parametrize("phase", ["checkpoint", "eval"])
def test_gradients_are_judged_whatever_else_runs_in_their_iteration(phase: str) -> None:
    def spoil(number: int, rank: int, row: Row) -> None:
        if number % 20 == 0:
            row |= {"phase": PHASES.index(phase), "loss": 50.0 * row["loss"] if phase == "eval" else row["loss"]}
        if number % 20 == 5:  # an iteration without a step
            row |= {"phase": PHASES.index(phase), "loss": math.inf, "grad_norm": math.inf}
        on(1, {"local_grad_norm": times(50)}, LAST)(number, rank, row)
        on(3, {"grad_norm": times(1.5)}, LAST)(number, rank, row)

    found = [one for one in told(trained(spoil)) if one.revision == 1]
    assert {(one.kind, one.suspects[0].rank, one.iterations[0]) for one in found} == {
        ("loss_spike", 1, WRONG), ("corruption", 3, WRONG)
    }  # fmt: skip
