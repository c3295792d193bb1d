"""Detectors with a say, through both hops: verdicts of their own, and testimony in those of others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.judging.detector_panel import DetectorPanel, DetectorsSay, Scored
from irregulars.detectors.plugins.loading import load_detectors
from irregulars.detectors.plugins.river_gaussian import RiverGaussian
from irregulars.detectors.verdicts.custom_verdicts import CustomVerdict, CustomVerdicts, Moment, Others
from irregulars.detectors.verdicts.strange_ranks import RankScores, StrangeRanksWatch
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from irregulars.settings import JudgeSettings, SeverityLimits
from tests.detectors.bad_detectors import FewTokens
from tests.detectors.observed_iterations import TOPOLOGY
from tests.streams.eight_ranks import EightRanks, late, with_few_tokens
from tests.streams.judged_streams import Outcome, judge_trace

pytestmark = pytest.mark.slow

RECORDINGS = Path(__file__).parents[2] / "recordings"
SETTINGS = JudgeSettings(rank_detectors=(FewTokens,))


def strange_job(few: dict[int, set[int]], iterations: int = 70, job: EightRanks | None = None) -> Trace:
    return with_few_tokens((job or EightRanks()).trace(iterations), few)


@cache
def strange_from_30_to_50() -> Outcome:
    return judge_trace(strange_job({3: set(range(30, 50))}), SETTINGS)


def custom(outcome: Outcome) -> list[Verdict]:
    return [one for one in outcome.revisions if one.kind == "custom"]


def test_a_rank_that_is_strange_in_four_of_six_iterations_opens_a_verdict_of_the_detector() -> None:
    outcome = judge_trace(strange_job({3: {30, 32, 33, 35}}), SETTINGS)
    opened, closed = custom(outcome)
    assert (opened.event, opened.detector, opened.severity, opened.state) == (
        "opened",
        "few_tokens",
        "ticket",
        "open",
    )
    assert (opened.verdict_id, opened.iterations) == ("lockstep:1:30:few_tokens.0", (30, 36))
    assert [(s.device, s.ranks, s.host, s.gpu, s.probability) for s in opened.suspects] == [
        ("gpu", (3,), "node-1", 1, 0.5)
    ]
    assert opened.evidence == (
        "detector few_tokens finds rank 3 strange in 4 of the 6 iterations since 30, its highest score is 2 "
        "(1: strange begins): 100 tokens, the others 4096"
    )
    assert (closed.event, closed.close_reason, closed.severity) == ("closed", "recovered", "ticket")
    assert {n.iteration for n in outcome.iterations if opened.verdict_id in n.verdict_ids} == {35}


@pytest.mark.parametrize("few", [{30, 32, 34}, {30, 35, 40, 45, 50, 55}])
def test_less_opens_none(few: set[int]) -> None:
    assert custom(judge_trace(strange_job({3: few}), SETTINGS)) == []


def test_who_was_not_asked_opens_none() -> None:
    class Quiet(FewTokens):
        opens_verdicts = False

    assert custom(judge_trace(strange_job({3: set(range(30, 50))}), JudgeSettings(rank_detectors=(Quiet,)))) == []


def test_a_verdict_of_metrics_is_as_urgent_as_its_cost_and_that_of_a_detector_is_a_ticket_at_least() -> None:
    for name, severity in (("gpu_metrics", "note"), ("few_tokens", "ticket")):
        verdict = CustomVerdict("v", 3, 9, 0, detector=name, ranks=(1,), judged=6, seen=4)
        assert verdict.severity_now(8, SeverityLimits(), is_over=False) == severity


@pytest.mark.parametrize("makers", [(), (FewTokens,)])
def test_metrics_of_each_tenth_iteration_are_counted_as_such_whoever_else_speaks(makers: tuple[Any, ...]) -> None:
    panel = DetectorPanel(JudgeSettings(rank_detectors=makers))
    ranks, usual = np.arange(4), dict.fromkeys(panel.openers, np.zeros(4))
    say, told = DetectorsSay("j", 1, SeverityLimits(), panel), []
    for number in range(100):
        odd = {"gpu_metrics": np.array([0.0, 0.0, 5.0, 0.0])} if number >= 30 and number % 10 == 0 else {}
        scored = Scored(np.zeros(4), RankScores(ranks, usual | odd), {})
        say.hear(scored)
        moment = Moment(number, number, 2e9, 1e9, {number: 1e9} if number >= 25 else {})
        others = Others({}, dict.fromkeys(range(51, 61), NIC) if number >= 65 else {})
        told += say.observe(moment, scored, others, TOPOLOGY)[0]
        say = DetectorsSay("j", 1, SeverityLimits(), panel, say.state())
    told += say.close("finished", TOPOLOGY)
    assert [(one.event, one.iterations) for one in told] == [("opened", (30, 61)), ("closed", (30, 91))]
    # Time and loss between two looks count too, but for what another verdict tells of
    assert [(one.lasted_s, one.lost_s) for one in told] == [(62.0, 31.0), (122.0, 51.0)]


NIC = "j:1:0:0"  # the verdict of the judgement beside that of a detector


def told_beside(strange: list[bool], nic: list[bool], opens_at: int, name: str, of: int = 1) -> list[Verdict]:
    """Let a detector find rank 0 strange while the NIC `of` a rank is slow, whose verdict opens later than it is."""
    verdicts = CustomVerdicts("j", 1, SeverityLimits(), None, ["times"], ["numbers"])
    watch, told = StrangeRanksWatch(), []
    for now, (is_strange, is_slow) in enumerate(zip(strange, nic, strict=True)):
        scores = RankScores(np.arange(4), {name: np.array([2.0 * is_strange, 0.0, 0.0, 0.0])})
        watch.look(scores)
        seen = {at: NIC for at in range(now + 1) if nic[at] and now >= opens_at}
        moment = Moment(now, now, 2e9, 1e9, {now: 1e9} if is_slow and now not in seen else {})
        others = Others({of: NIC} if seen else {}, seen)
        told += verdicts.observe(moment, scores, watch, others, lambda *_: "", TOPOLOGY)[0]
        verdicts = CustomVerdicts("j", 1, SeverityLimits(), verdicts.state(), ["times"], ["numbers"])
    return told


FLAGS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=4, max_size=40)


@example([(True, at < 9) for at in range(20)], 6, True, 0)
@example([(at > 4, at < 9) for at in range(20)], 8, False, 1)
@given(FLAGS, st.integers(0, 40), st.booleans(), st.sampled_from([0, 1]))
def test_what_the_judgement_tells_of_no_detector_of_times_tells_again(
    flags: list[tuple[bool, bool]], opens_at: int, is_strange: bool, of: int
) -> None:
    """An iteration of the NIC's is none of the detector's, and its loss is told once, whichever came first."""
    strange, nic = [one or is_strange for one, _ in flags], [one for _, one in flags]
    told = told_beside(strange, nic, opens_at, "times", of)
    for now, one in ((one.time_ns or 0, one) for one in told if one.state == "open"):
        own = [at for at in range(*one.iterations) if strange[at] and not (nic[at] and now >= opens_at)]
        assert len(own) >= JOB.often
        assert one.lost_s <= sum(nic[at] for at in own)
        assert of == 1 or now < opens_at or not any(nic[: now + 1])
    for one in (one for one in told if one.close_reason == "merged"):
        assert one.evidence.endswith(f"; verdict {NIC} tells of it")
    # Numbers are another thing: a NIC makes no loss strange
    apart, alone = (
        told_beside(strange, nic, opens_at, "numbers", of),
        told_beside(strange, [False] * len(nic), 0, "numbers"),
    )
    assert {one.lost_s for one in apart if (one.time_ns or 0) >= opens_at} <= {0.0}
    kept = [[replace(one, lost_s=0.0, severity=None) for one in own] for own in (apart, alone)]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(("opens_at", "events"), [
    (2, []), (5, ["opened", "closed"]), (90, ["opened", "continued", "continued", "closed"]),
])  # fmt: skip
def test_two_verdicts_over_the_same_iterations_become_one_whichever_came_first(
    opens_at: int, events: list[str]
) -> None:
    during = [20 <= at < 40 for at in range(60)]
    told = told_beside(during, during, 20 + opens_at, "times")
    assert [one.event for one in told] == events
    if opens_at == 5:
        assert (told[-1].close_reason, told[-1].lost_s) == ("merged", 0.0)
    # Strange before the NIC is slow, and after it: something else
    alone = told_beside([at % 60 < 20 for at in range(100)], [20 <= at < 30 for at in range(100)], 22, "times")
    assert [one.iterations for one in alone if one.state == "closed"] == [(0, 20), (60, 80)]


def test_a_verdict_of_a_detector_goes_on() -> None:
    # It goes on while the rank is strange and says so when that has doubled
    outcome = strange_from_30_to_50()
    told = [(one.event, one.iterations) for one in custom(outcome)]
    assert told == [("opened", (30, 34)), ("continued", (30, 38)), ("continued", (30, 46)), ("closed", (30, 50))]
    assert custom(outcome)[-1].close_reason == "recovered"
    # What is not known neither shows nor ends it
    trace = strange_job({3: set(range(30, 40))}, 90)
    batches = dict(trace.batches("iterations"))
    numbers = batches[3].columns["iteration"]
    unknown = np.where(numbers >= 40, np.nan, batches[3].columns["tokens"])
    batches[3] = Batch(batches[3].header, {**batches[3].columns, "tokens": unknown})
    outcome = judge_trace(replace(trace, iterations=batches), SETTINGS)
    assert custom(outcome)[-1].close_reason == "finished"
    # Ranks that become strange together are one verdict and all of a host are the host
    outcome = judge_trace(strange_job({2: set(range(30, 40)), 3: set(range(31, 40))}), SETTINGS)
    assert {one.verdict_id for one in custom(outcome)} == {"lockstep:1:30:few_tokens.0"}
    assert [one.event for one in custom(outcome)][:2] == ["opened", "changed"]
    assert custom(outcome)[1].suspects[0].device == "host"
    later = judge_trace(strange_job({2: set(range(30, 60)), 5: set(range(45, 60))}), SETTINGS)
    assert {one.suspects[0].ranks for one in custom(later)} == {(2,), (5,)}


def test_a_loss_that_nothing_else_explains_is_the_detectors() -> None:
    job = late(*range(8), during=range(30, 50))  # everybody: no suspect of ours
    outcome = judge_trace(strange_job({3: set(range(30, 50))}, job=job), SETTINGS)
    assert [one for one in outcome.revisions if one.kind != "custom"] == []
    last = custom(outcome)[-1]
    assert last.lost_s == pytest.approx(0.4, rel=0.1)
    assert last.delta > 1.5


def test_a_detector_does_not_accuse_whom_another_verdict_accuses_and_stands_in_its_evidence() -> None:
    trace = strange_job({3: set(range(30, 45))}, job=late(3))
    plain, said = judge_trace(trace), judge_trace(trace, SETTINGS)
    assert custom(said) == []
    assert [replace(one, evidence="") for one in said.revisions] == [
        replace(one, evidence="") for one in plain.revisions
    ]
    testimony = "; detector few_tokens finds rank 3 strange too, in 5 of the last 6 iterations"
    assert said.revisions[0].evidence == plain.revisions[0].evidence  # in two iterations so far
    assert said.revisions[1].evidence == plain.revisions[1].evidence + testimony
    assert said.revisions[-1].state == "closed"
    assert "; detector few_tokens finds rank 3 strange too" in said.revisions[-1].evidence


@pytest.mark.parametrize("every", [1, 7])
def test_restarts_change_nothing(every: int) -> None:
    trace = strange_job({3: set(range(30, 50)), 5: {40, 41, 42, 43, 60, 61}})
    settings = JudgeSettings(rank_detectors=(FewTokens, RiverGaussian))
    whole = judge_trace(trace, settings)
    broken = judge_trace(trace, settings, restore_at=range(0, 10_000, every), is_on_wire=True)
    assert broken.revisions == whole.revisions
    for table in ("rank_iterations", "detector_scores"):
        found, wanted = broken.columns(table), whole.columns(table)
        assert {**found, "score": None} == {**wanted, "score": None}
        np.testing.assert_allclose(np.array(found["score"], float), np.array(wanted["score"], float), rtol=1e-6)


def test_analyze_says_the_same() -> None:
    said = analyze(strange_job({3: set(range(30, 50))}), SETTINGS).verdicts
    assert said == list(strange_from_30_to_50().verdicts.values())
    assert [one.kind for one in said] == ["custom"]


def test_a_detector_of_operators_opens_verdicts_too_and_is_named_in_the_evidence_rows() -> None:
    job = EightRanks()
    job.slow = lambda number, ranks: 4 if ranks == (1, 5) and number >= 40 else 1  # too little to be irregular
    trace = job.trace(70)
    detectors = load_detectors(["baseline(warm_up=10)!"])
    settings = JudgeSettings(operator_detectors=detectors["operator"])
    said = custom(judge_trace(trace, settings, is_on_wire=True))
    assert said
    assert {one.detector for one in said} == {"baseline"}
    assert [one for one in analyze(trace, settings).verdicts if one.kind == "custom"] == [
        one for one in judge_trace(trace, settings).verdicts.values() if one.kind == "custom"
    ]


def test_scores_are_stored_by_name_where_they_are_notable() -> None:
    outcome = strange_from_30_to_50()
    assert any(score is not None for score in outcome.columns("rank_iterations")["score"])
    stored: dict[str, list[Any]] = outcome.columns("detector_scores")
    assert set(stored["detector"]) == {"few_tokens"}
    strange = [row for row in zip(stored["iteration"], stored["rank"], stored["score"], strict=True) if row[2] >= 1]
    assert strange == [(number, 3, 2.0) for number in range(30, 50)]


@pytest.mark.parametrize("name", ["gloo-slow-nic", "gloo-slow-rank"])
def test_the_default_detectors_change_no_letter_of_any_verdict(name: str) -> None:
    trace = number_iterations(read_trace(RECORDINGS / name)).trace
    default = JudgeSettings(rank_detectors=load_detectors(["peers"])["rank"])
    revisions = judge_trace(trace).revisions
    assert revisions
    assert judge_trace(trace, default).revisions == revisions
