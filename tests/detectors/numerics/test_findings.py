"""No number, however strange, stops the judge, and none that is not wrong is told."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.detectors.numerics.agreement import count_votes
from irregulars.detectors.numerics.findings import MOST_NAMED, Finding, Findings
from irregulars.messages.evidence import NUMERIC_COLUMNS
from irregulars.messages.ragged import Ragged
from irregulars.messages.records import UNKNOWN
from tests.conftest import examples

pytestmark = pytest.mark.slow

RANK = np.arange(4)
STRANGE = st.sampled_from([0.0, -1.0, 1e-320, 1.0, 1e308, -1e308, math.inf, -math.inf, math.nan]) | st.floats()
CHECKSUMS = st.sampled_from([UNKNOWN, UNKNOWN + 1, 0, 1, (1 << 63) - 1])


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_no_number_stops_the_judge(data: st.DataObject) -> None:
    judge, names = Findings(), data.draw(st.sets(st.sampled_from(sorted(NUMERIC_COLUMNS))))
    few = data.draw(st.integers(1, 4))
    for _ in range(30):
        ranks = RANK[: data.draw(st.sampled_from([few, 4]))]
        columns = {
            name: np.array([data.draw(CHECKSUMS if name == "parameters_checksum" else STRANGE) for _ in ranks])
            for name in names
        }
        counts = np.array([data.draw(st.integers(0, 2)) for _ in ranks])
        entries = np.array([data.draw(st.integers(0, 3)) for _ in range(counts.sum())], dtype=np.int64)
        audits = Ragged(counts, {"of_rank": entries, "checksum": entries // 2})
        for one in judge.observe(ranks, columns, audits, np.full(len(ranks), data.draw(st.sampled_from([-1, 0])))):
            assert set(one.ranks) <= set(ranks.tolist())
            assert len(one.ranks) <= MOST_NAMED
            assert one.text.isprintable()


@pytest.mark.filterwarnings("error")
def test_tails_that_are_heavy_are_no_spikes() -> None:
    """As the noise of batches: a t distribution of five degrees of freedom."""
    found: list[Finding] = []
    for seed in range(10):
        random, judge = np.random.default_rng(seed), Findings()
        for _ in range(1000):
            names = ("loss", "local_grad_norm")
            columns = {name: np.exp(0.05 * random.standard_t(5, 4) + random.normal(0, 0.2)) for name in names}
            found += judge.observe(RANK, columns, None, np.full(4, -1))
    assert len(found) <= 3, found


def test_a_rank_that_computes_the_same_twice_and_not_alike_is_named_whatever_others_say() -> None:
    for ranks, checksums in (([3, 3], [7, 8]), ([0, 1, 3, 3], [8, 8, 7, 8])):
        audits = Ragged(
            np.bincount(ranks, minlength=4), {"of_rank": np.full(len(ranks), 3), "checksum": np.array(checksums)}
        )
        (one,) = Findings().observe(RANK, {}, audits, np.full(4, -1))
        assert (one.kind, one.ranks, one.is_grave) == ("corruption", (3,), True)


def test_a_loss_that_crosses_zero_accuses_nobody() -> None:
    """Its noise stays, and so grows in proportion."""
    found: list[Finding] = []
    for seed in range(20):
        random, judge = np.random.default_rng(seed), Findings()
        for step in range(240):
            columns = {"loss": 3 - step / 40 + random.normal(0, 0.1, 8)}
            found += judge.observe(np.arange(8), columns, None, np.full(8, -1))
    assert [one for one in found if one.ranks] == []


def test_a_vote_that_comes_twice_counts_once() -> None:
    rank, checksum = np.array([0, 1, 2, 2, 2, 2, 3]), np.array([9, 9, 5, 5, 5, 5, 9])
    assert count_votes(rank, np.zeros(7, dtype=np.int64), checksum).suspects.tolist() == [2]


def test_a_rank_that_leaves_its_peers_is_named_while_the_loss_grows() -> None:
    random, judge, named = np.random.default_rng(1), Findings(), []
    places, found = np.exp(random.normal(0, 0.1, 8)), []
    for step in range(495):
        loss = 2 * 1.002**step * places * np.exp(random.normal(0, 0.01, 8))
        loss[5] *= 4 if step >= 240 else 1
        found = judge.observe(np.arange(8), {"loss": loss}, None, np.full(8, -1))
        named += [(step, one.ranks) for one in found if one.ranks]
    assert any("has grown" in one.text for one in found)  # both are found at once
    assert [ranks for _, ranks in named] == [(5,)] * 255
    assert named[0][0] == 240


def test_an_attention_logit_names_the_rank_that_leaves_its_peers_and_is_told_when_it_grows_large() -> None:
    random, judge, found = np.random.default_rng(2), Findings(), []
    for step in range(1200):
        logit = 40 * 1.002**step * np.exp(random.normal(0, 0.02, 4))
        logit[1] *= 4 if step == 300 else 1
        columns = {"attention_logit": logit}
        found += [(step, one) for one in judge.observe(RANK, columns, None, np.full(4, -1))]
    assert [(step, one.ranks) for step, one in found if one.ranks] == [(300, (1,))]
    growing = [step for step, one in found if "largest attention logit has grown" in one.text]
    assert 460 < growing[0] < 530  # 40 * 1.002^460 is 100


@pytest.mark.parametrize(("columns", "told"), [
    # Name: factors in iterations 60, 61, ..
    pytest.param({"update_rms": [10]}, [(61, 60)], id="one step that was too large"),
    pytest.param({"update_rms": [10] * 30, "loss": [1, 3, 3, 3]}, [(at, 60) for at in range(61, 70)],
                 id="a rate with which the loss rises"),
    pytest.param({"loss": [3, 3], "grad_norm": [3, 3]}, [(62, 60)], id="two bad batches"),
    pytest.param({"loss": [3] * 40, "grad_norm": [2] * 40}, [], id="other data that stay"),
    pytest.param({"loss": [*np.linspace(3, 1, 12)], "grad_norm": [2] * 12}, [], id="other data, trained on"),
    pytest.param({"loss": [1, 3, 3, 3], "grad_norm": [2, 1, 1, 1]}, [(at, 61) for at in (61, 62, 63)],
                 id="a loss after a norm that was not usual"),
])  # fmt: skip
def test_a_jump_of_the_job_is_told_if_it_comes_back_at_once_or_its_step_came_first(
    columns: dict[str, list[float]], told: list[tuple[int, int]]
) -> None:
    random, judge, found = np.random.default_rng(4), Findings(), []
    for step in range(110):
        given = {}
        for name in ("loss", "grad_norm", "update_rms"):
            factors = columns.get(name, [])
            factor = factors[step - 60] if 0 <= step - 60 < len(factors) else 1
            given[name] = np.full(4, factor * np.exp(random.normal(0, 0.02)))
        found += [(step, one.since) for one in judge.observe(RANK, given, None, np.full(4, -1), step)]
    assert found == told


def test_who_writes_nan_for_no_value_hides_no_value_that_is_lost() -> None:
    """As stages of a pipeline without a loss, and as a trainer that logs each tenth iteration."""
    ranks = np.arange(8)
    judge, found = Findings(), []
    for step in range(45):
        loss = np.where((ranks < 6) | (step >= 40), math.inf, 2.0)
        norm = np.full(8, 1.0 if step % 10 == 0 else math.inf)
        found.append(judge.observe(ranks, {"loss": loss, "grad_norm": norm}, None, np.full(8, -1)))
    assert not any(found[:40])
    (one,) = found[40]
    assert (one.kind, one.ranks, one.is_grave) == ("loss_spike", (), True)


def test_loss_scaling_may_skip_several_steps_in_a_row() -> None:
    judge, found = Findings(), []
    for step in range(60):
        # While it looks for the first scale, and later where it halves the scale twice
        is_skipped = step < 9 or 40 <= step < 44
        columns = {"loss": np.full(4, 2.0), "grad_norm": np.full(4, math.inf if is_skipped else 1.0),
                   "not_finite": np.full(4, 7.0 if is_skipped else 0.0)}  # fmt: skip
        found += judge.observe(RANK, columns, None, np.full(4, -1))
    assert found == []


def overflowing(at: Mapping[int, Collection[int]], ranks: int = 4) -> list[tuple[int, tuple[int, ...]]]:
    """The ranks that steps name in some of which the gradients of some ranks overflow, as loss scaling lets them."""
    judge, rank, found = Findings(), np.arange(ranks), []
    for step in range(60):
        is_bad = np.isin(rank, list(at.get(step, ())))
        columns = {"loss": np.full(ranks, 2.0), "local_grad_norm": np.where(is_bad, math.inf, 1.0),
                   "grad_norm": np.full(ranks, math.inf if is_bad.any() else 1.0)}  # fmt: skip
        found += [(step, one.ranks) for one in judge.observe(rank, columns, None, np.full(ranks, -1))]
    return found


@pytest.mark.parametrize(("at", "named"), [
    ({0: range(4), 30: [2], 40: [1]}, []),
    ({30: [2], 40: [1], 50: [3]}, [(30, (2,))]),  # of the first nothing else is known
    ({30: [2], 40: [2]}, [(30, (2,)), (40, (2,))]),
])  # fmt: skip
def test_a_gradient_that_loss_scaling_lets_overflow_on_one_rank_accuses_it_only_if_others_never_did(
    at: dict[int, Sequence[int]], named: list[tuple[int, tuple[int, ...]]]
) -> None:
    assert overflowing(at) == named


@pytest.mark.parametrize(
    "first", [range(8), [2], []], ids=["all overflowed", "another overflowed", "none overflowed"]
)
def test_a_rank_whose_gradient_stays_infinite_is_named_whoever_overflowed_before(first: Sequence[int]) -> None:
    named = overflowing({0: first} | dict.fromkeys(range(30, 60), (5,)), ranks=8)
    assert {ranks for _, ranks in named if ranks} == {(5,)}


def test_the_search_for_a_loss_scale_accuses_nobody() -> None:
    named = overflowing(dict.fromkeys((0, *range(30, 36)), range(8)) | {36: [3]}, ranks=8)
    assert [ranks for _, ranks in named if ranks] == []


def test_ranks_without_a_norm_do_not_keep_the_others_from_being_compared() -> None:
    """As where the last stage of a pipeline alone sees it."""
    judge, found = Findings(), []
    for step in range(60):
        norm = np.where(RANK == 0, math.nan, 1.0 + step)
        norm[2] += 1e-9 * (step == 50)
        found += [(step, one) for one in judge.observe(RANK, {"grad_norm": norm}, None, np.full(4, -1))]
    assert [(step, one.kind, one.ranks) for step, one in found if one.kind == "corruption"] == [
        (50, "corruption", (2,))
    ]


def test_ranks_with_one_wrong_value_are_alternatives_and_those_with_others_are_not() -> None:
    """A ring hands a wrong value on; another one is another fault."""
    checksum = np.array([7, 7, 9, 9, 7, 8, 7, 7])
    found = Findings().observe(np.arange(8), {"parameters_checksum": checksum}, None, np.zeros(8, dtype=np.int64))
    assert [(one.kind, one.ranks, one.is_grave) for one in found] == [
        ("corruption", (2, 3), True), ("corruption", (5,), True)
    ]  # fmt: skip
    assert "ranks 2-3 differ from those of ranks 0-1, 4, 6-7" in found[0].text


def test_where_most_compute_the_same_twice_and_not_alike_it_is_no_device() -> None:
    counts = np.full(4, 2)
    audits = Ragged(counts, {"of_rank": np.repeat(RANK, 2), "checksum": np.arange(8)})
    (one,) = Findings().observe(RANK, {}, audits, np.full(4, -1))
    assert (one.kind, one.ranks, one.is_grave) == ("corruption", (), False)
    assert "not deterministic" in one.text


def test_more_ranks_than_can_be_named_are_counted() -> None:
    ranks = np.arange(32)
    audits = Ragged(np.ones(32, dtype=np.int64), {"of_rank": np.zeros(32, dtype=np.int64), "checksum": ranks // 23})
    (one,) = Findings().observe(ranks, {}, audits, np.full(32, -1))
    assert (one.ranks, one.text[:33]) == ((), "9 ranks computed other gradients ")


def test_checksums_of_each_tenth_step_find_a_fault_without_announced_replicas() -> None:
    judge, found = Findings(), []
    for step in range(80):
        checksum = np.full(4, step if step % 10 == 0 else UNKNOWN)
        checksum[2] += step in (60, 70)
        columns = {"parameters_checksum": checksum, "loss": np.full(4, 2.0)}
        found += [(step, one.ranks) for one in judge.observe(RANK, columns, None, np.full(4, -1))]
    assert found == [(60, (2,)), (70, (2,))]


def test_ranks_whose_losses_have_the_same_bits_are_alternatives() -> None:
    """As tensor-parallel ranks, of whose groups no kind is known."""
    judge, found = Findings(), []
    for step in range(60):
        loss = np.repeat(np.exp(np.random.default_rng(step).normal(0, 0.05, 4)), 2)
        loss[2:4] *= 9 if step == 50 else 1
        found += [(step, one.ranks) for one in judge.observe(np.arange(8), {"loss": loss}, None, np.full(8, -1))]
    assert found == [(50, (2, 3))]


def test_audits_that_never_agreed_are_of_kernels_that_are_not_deterministic() -> None:
    judge, found = Findings(), []
    for step in range(8):
        checksum = np.full(4, step) if step == 5 else 10 * step + RANK
        audits = Ragged(np.ones(4, dtype=np.int64), {"of_rank": np.zeros(4, dtype=np.int64), "checksum": checksum})
        found += [(step, one.ranks) for one in judge.observe(RANK, {}, audits, np.full(4, -1))]
    assert found == [(6, ()), (7, ())]


@pytest.mark.parametrize(
    ("scale", "here", "later"), [(1.0, 3, 1.0), (1 / 3, 2, 0.1), (1 / 3, 3, 0.0), (1 / 3, 3, 0.1)],
    ids=["a sum of few", "the largest is not here", "nothing is known", "one of ten micro-batches"],
)  # fmt: skip
def test_what_is_no_average_of_all_is_not_held_against_all(scale: float, here: int, later: float) -> None:
    judge, found, random = Findings(), list[Finding](), np.random.default_rng(0)
    for step in range(60):
        own = random.normal(size=(3, 400)) + random.normal(size=400) * (0.1 if step < 50 else 1.0)
        norms = np.linalg.norm(own, axis=1)[:here] * (1.0 if step < 50 else later)
        reduced = np.full(here, scale * np.linalg.norm(own.sum(axis=0)))
        columns = {"loss": np.full(here, 2.0), "local_grad_norm": norms, "grad_norm": reduced}
        found += judge.observe(RANK[:here], columns, None, np.zeros(here), step, is_whole=here == 3)
    assert [one for one in found if one.sensor == "grad_norm"] == []


def test_a_loss_that_jumps_and_goes_on_growing_is_told_and_a_column_that_ends_hides_nothing() -> None:
    judge, told = Findings(), dict[int, list[str]]()
    for step in range(100):
        columns = {"loss": np.full(4, 2.6 * 1.6 ** min(max(step - 80, 0), 3)), "grad_norm": np.ones(4)}
        if step <= 60:
            columns["attention_logit"] = np.full(4, 20.0 if step < 60 else 900.0)
        told[step] = [one.sensor for one in judge.observe(RANK, columns, None, np.full(4, -1), step)]
    assert {step: own for step, own in told.items() if own} == {
        60: ["attention_logit of the job"], **{at: ["loss of the job"] for at in range(82, 91)}}  # fmt: skip


def test_other_data_are_told_to_nobody_though_audited_iterations_have_no_loss() -> None:
    judge, random, found = Findings(), np.random.default_rng(2), list[Finding]()
    for step in range(140):
        loss = (2.0 if step < 100 else 8.0) * np.exp(random.normal(0, 0.02))
        columns = {"loss": np.full(4, math.nan if step % 15 == 14 else loss), "grad_norm": np.full(4, loss / 4)}
        found += judge.observe(RANK, columns, None, np.full(4, -1), step)
    assert found == []
