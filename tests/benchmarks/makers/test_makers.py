"""Labels of all makers in one record, one scoring, the same jobs for the same seed, and one job from end to end."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.verdicts import tracker
from irregulars.infra.runs.analysis import analyze
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.iterations import number_iterations
from tests.benchmarks.makers.__main__ import judged, main
from tests.benchmarks.makers.ablation import MECHANISMS, switched_off, touched
from tests.benchmarks.makers.drawing import ROOT, Job, draw, drawn_jobs, recorded_jobs
from tests.benchmarks.makers.fitting import FITS, held_out
from tests.benchmarks.makers.judging import judge, reduce
from tests.benchmarks.makers.labels import Truth, truth_of
from tests.benchmarks.makers.report import (
    ablation_table,
    calibration_error,
    figures,
    figures_by_maker,
    reliability,
)
from tests.benchmarks.makers.scoring import Found, Outcome, Score, score
from tests.benchmarks.makers.studies import Condition, condition_table, logging_in_part, seen_table
from tests.benchmarks.makers.studies import judged as studied

NIC = Truth("tests", "a-1", "slow_nic", "nic", (3,), ((10, 14), (16, 20)), 0.5, False, "a slow NIC")
HANG = replace(NIC, kind="hang", device="gpu", ranks=(4, 9), spans=((10, 11),), excess=None)
UNEVEN = replace(NIC, kind="imbalance", device=None, ranks=())
HEALTHY = replace(UNEVEN, kind=None, spans=(), excess=None)
RECORDING = ROOT / "tests" / "recordings" / "bench" / "ddp8-loader"


def verdict(kind: str = "slow_nic", device: str = "nic", *ranks: int, **more: Any) -> dict[str, Any]:
    suspects = [{"device": device, "ranks": list(ranks), "probability": 0.8}] if ranks else []
    own = {"kind": kind, "suspects": suspects, "severity": "ticket", "iterations": [12, 20], "lost_s": 0.4}
    return own | more


def scored(truth: Truth, *verdicts: dict[str, Any], named: range = range(16)) -> Score:
    found = Found(verdicts, [(15, one) for one in verdicts], dict.fromkeys(range(30), 0.3), frozenset(named))
    return score(truth, found)


@pytest.mark.parametrize(
    ("maker", "label", "device", "ranks", "spans", "excess"),
    [
        ("closed_form", {"device": "nic", "ranks": [3], "effect": 1.5, "on": [10, 11, 14]}, "nic", (3,),
         ((10, 12), (14, 15)), 0.5),
        ("event_level", {"device": "host", "ranks": [2, 3], "effect": 1.2, "effect_active": 1.5, "active": [10, 11]},
         "host", (2, 3), ((10, 12),), 0.5),
        ("recordings", {"device": "gpu", "ranks": [3], "inflation": 1.5, "spans": [[10, 11], [12, 15]]}, "gpu", (3,),
         ((10, 11), (12, 15)), 0.5),
        ("simulator", {"device": "gpu", "ranks": [3], "faults": [{"excess_ratio": 0.25}, {"excess_ratio": 0.75}]},
         "gpu", (3,), ((10, 20),), 0.5),
        ("blind", {"kind": "slow_rank", "ranks": [2, 3], "inflation": [1.0, 1.5, 1.5]}, "host", (2, 3), ((10, 20),),
         0.5),
        ("blind", {"kind": "slow_link", "ranks": [], "rank": 3, "peer": 1}, "link", (3, 1), ((10, 20),), None),
        ("blind", {"kind": "slow_communicator", "ranks": [], "switch": None}, None, (), ((10, 20),), None),
    ],
)  # fmt: skip
def test_labels_of_all_makers_become_one_record(
    maker: str, label: dict[str, Any], device: str, ranks: tuple[int, ...], spans: tuple[Any, ...], excess: float
) -> None:
    truth = truth_of(maker, "a-1", {"kind": "slow_nic", "iterations": [10, 20], "hard": False} | label)
    assert (truth.device, truth.ranks, truth.spans) == (device, ranks, spans)
    assert truth.excess == (None if excess is None else pytest.approx(excess))


@pytest.mark.parametrize("kind", [None, "none"])
def test_a_healthy_label_accuses_nobody(kind: str | None) -> None:
    truth = truth_of(
        "blind", "a-1", {"kind": kind, "ranks": None, "iterations": [0, 0], "notes": {"fault": "tenants"}}
    )
    assert (truth.kind, truth.ranks, truth.spans, truth.what) == (None, (), (), "tenants")


@pytest.mark.parametrize(
    ("truth", "verdicts", "top1", "kind", "recall"),
    [
        (NIC, [verdict("slow_nic", "nic", 3)], True, True, True),
        (NIC, [verdict("slow_communicator"), verdict("slow_nic", "nic", 3)], True, True, True),
        (NIC, [verdict("slow_nic", "nic", 4), verdict("slow_nic", "nic", 3)], False, True, True),
        (NIC, [verdict("slow_nic", "nic", 3, 4)], False, True, False),
        (NIC, [verdict("slow_rank", "gpu", 3)], False, False, False),
        (NIC, [verdict("slow_nic")], False, True, False),
        (NIC, [], False, False, False),
        (replace(NIC, ranks=(3, 99)), [verdict("slow_nic", "nic", 3)], True, True, True),  # 99 is in no log
        (replace(NIC, ranks=(99,)), [verdict("slow_nic", "nic", 98)], False, True, False),
        (replace(NIC, kind="slow_link", device="link", ranks=(7, 3)), [verdict("slow_link", "link", 3, 7)], True,
         True, True),
        (HANG, [verdict("hang", "gpu", 9)], True, True, True),
        (HANG, [verdict("hang", "gpu", 9, 5)], False, True, False),
        (UNEVEN, [verdict("imbalance")], True, True, True),
        (UNEVEN, [verdict("imbalance"), verdict("slow_rank", "gpu", 1)], False, False, True),
    ],
)  # fmt: skip
def test_who_is_right(truth: Truth, verdicts: list[dict[str, Any]], top1: bool, kind: bool, recall: bool) -> None:
    own = scored(truth, *verdicts)
    assert (own.is_top1, own.is_kind, own.is_recalled) == (top1, kind, recall)


def test_window_loss_and_delay_are_held_against_the_truth() -> None:
    own = scored(NIC, verdict("slow_nic", "nic", 3))
    # Eight of the stretches' iterations took 0.3 s instead of 0.2 s; said were 0.4 s, and [12, 20) of [10, 20).
    assert own.loss_ratio == pytest.approx(0.5)
    assert (own.overlap, own.delay) == (0.8, 6)
    # Where the label lists each iteration's ratio, the four that the fault spared lost nothing: 0.4 s of 0.4 s.
    listed = replace(NIC, ratios=(*[1.0] * 10, *[1.5] * 4, *[1.0] * 16))
    assert scored(listed, verdict("slow_nic", "nic", 3)).loss_ratio == pytest.approx(1.0)
    assert scored(HANG, verdict("hang", "gpu", 9)).overlap is None
    assert scored(NIC, verdict("slow_rank", "gpu", 3)).delay is None


def test_tickets_and_notes_on_healthy_jobs_count() -> None:
    own = scored(
        HEALTHY,
        verdict("imbalance"),
        verdict("slow_stage", "stage", 1, 2),
        verdict("slow_rank", "gpu", 1, severity="note"),
    )
    assert (own.accusations, own.tickets, own.notes, own.wrong_notes) == (1, 2, 1, 1)
    told = figures([Outcome(HEALTHY, own, "")], ())
    assert (told["accusations"], told["tickets"], told["with_ticket"]) == pytest.approx((1000 / 30, 2000 / 30, 1))


def outcomes(maker: str, promised: float, right: int, wrong: int) -> list[Outcome]:
    truth = replace(NIC, maker=maker)
    own = {ranks: scored(NIC, verdict("slow_nic", "nic", ranks)) for ranks in (3, 4)}
    made = [own[3]] * right + [own[4]] * wrong
    return [Outcome(truth, replace(one, promised=promised), "") for one in made]


def test_a_curve_is_fitted_on_the_other_makers_alone() -> None:
    by_maker = {"a": outcomes("a", 0.99, 30, 0), "b": outcomes("b", 0.99, 60, 60), "c": outcomes("c", 0.99, 60, 60)}
    held = held_out(by_maker, FITS["logistic"])
    assert {round(promised, 1) for promised, _ in held["a"]} == {0.5}
    assert all(promised > 0.5 for promised, _ in held["b"])  # made from a's, too
    own = figures_by_maker([one for all_ in by_maker.values() for one in all_], ("a", "b", "c"), FITS["logistic"])
    assert own["b"]["calibration"] == pytest.approx(0.49)
    assert own["b"]["calibration_held"] < own["b"]["calibration"]


def test_without_a_fit_the_promises_stay_and_hard_faults_count_apart() -> None:
    hard = [replace(one, truth=replace(one.truth, is_hard=True)) for one in outcomes("a", 0.9, 0, 5)]
    own = figures_by_maker([*outcomes("a", 0.9, 9, 1), *hard], ("a",), FITS["none"])["together"]
    assert (own["faults"], own["hard"], own["promises"], own["top1"], own["hard_top1"]) == (10, 5, 10, 0.9, 0)
    assert own["calibration"] == own["calibration_held"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("maker", ["simulator", "closed_form", "event_level"])
def test_a_seed_gives_the_same_jobs(maker: str, tmp_path: Path) -> None:
    labels = []
    for folder in ("one", "other"):
        job = drawn_jobs(maker, 7, 4, tmp_path / folder)[1]
        draw(job)
        assert (job.directory / "commops.parquet").exists()
        labels.append(job.label())
    assert labels[0] == labels[1]
    truth = truth_of(maker, job.name, labels[0])
    # Of each iteration, so that one that connects, compiles or stalls is no fault's loss
    assert bool(truth.ratios) == (truth.excess is not None)
    inside = [truth.ratios[at] for first, past in truth.spans for at in range(first, past)] if truth.ratios else []
    assert not inside or sum(inside) / len(inside) == pytest.approx(1 + (truth.excess or 0), abs=0.02)
    stamp = (job.directory / "job.json").stat().st_mtime_ns
    draw(job)  # it is there already
    assert (job.directory / "job.json").stat().st_mtime_ns == stamp


def test_a_job_is_judged_as_analyze_judges_it(tmp_path: Path) -> None:
    found = judge(reduce(RECORDING))
    assert found.verdicts == analyze(number_iterations(read_trace(RECORDING)).trace).to_json()["verdicts"]
    opened = [at for at, one in found.revisions if one["revision"] == 1]
    assert opened
    assert all(at >= one["iterations"][0] for at, one in found.revisions)
    own = judged(Job("recordings", RECORDING.name, RECORDING), [], tmp_path, ablates=False)["nothing"]
    assert own.score.is_top1
    assert own.score.delay is not None
    assert json.loads((tmp_path / f"{RECORDING.name}.json").read_text())["verdicts"] == found.verdicts


def test_a_mechanism_is_off_while_it_lasts_and_is_only_tried_where_it_matters() -> None:
    reduced, before = reduce(RECORDING), tracker.stands_alone
    with touched() as matters:
        whole = judge(reduced)
    assert {"rule: rank in 3 of 6"} <= matters < set(MECHANISMS)
    for name in sorted(MECHANISMS.keys() - matters)[::9]:
        with switched_off([name]):
            assert judge(reduced).verdicts == whole.verdicts, name
    rules = [name for name in MECHANISMS if name.startswith("rule")]
    with switched_off(rules):
        assert judge(reduced).verdicts == []
    assert tracker.stands_alone is before
    a, b = (Outcome(NIC, scored(NIC, verdict("slow_nic", "nic", ranks)), "") for ranks in (3, 4))
    assert (
        "| rule | 1 | 1 | 0 | 1 | 0.0% (−100.0%) |"
        in ablation_table([{"nothing": a, "rule": b}], "nothing", ["rule"])[-1]
    )


def test_recordings_are_counted_once_and_blind_cases_apart(tmp_path: Path) -> None:
    for name in ("gloo-clean", "blind-1/b01"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "label.json").write_text("{}")
    jobs = recorded_jobs(tmp_path)
    assert [(one.maker, one.name) for one in jobs[-1:]] == [("blind", "b01")]
    assert [one.directory.is_relative_to(tmp_path) for one in jobs if one.name == "gloo-clean"] == [False]


def test_the_command_prints_one_column_for_each_maker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tmp_path / "told.json"
    options = ["--seed", "7", "--count", "1", "--makers", "closed_form", "--jobs", str(tmp_path), "--json", str(told)]
    assert main([*options, "--wrong"]) == 0
    assert "| figure | closed_form | together |" in capsys.readouterr().out
    assert len(json.loads(told.read_text())["jobs"]) == 1


def test_a_study_judges_a_job_under_each_condition() -> None:
    conditions = [Condition("all"), Condition("a quarter", share=0.25, is_by_host=False)]
    trace = read_trace(RECORDING)
    part = logging_in_part(trace, 0.25, is_by_host=False)
    assert len(part.commops) == 2
    assert [one.rank for one in part.announcements if one.is_logged] == sorted(part.commops)
    assert {one.logged_ranks for one in part.announcements} == {2}
    assert logging_in_part(trace, 0.0, is_by_host=True).commops, "somebody logs"
    found = studied(Job("recordings", RECORDING.name, RECORDING), conditions)
    assert found[0][0].score.is_top1
    assert found[0][1]
    lines = condition_table(conditions, [found])
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["all", "a quarter"]
    assert lines[2].split("|")[3].strip() == "100.0%"
    assert [line.split("|")[3].strip() for line in seen_table([found])[2:]][-1] == "100.0%"


def test_calibration_error_by_hand() -> None:
    found = reliability([0.95, 0.91, 0.55, 0.45], [True, False, True, False])
    assert [(one.count, one.promised, one.right) for one in found] == [
        (1, pytest.approx(0.45), 0.0), (1, pytest.approx(0.55), 1.0), (2, pytest.approx(0.93), 0.5),
    ]  # fmt: skip
    assert calibration_error(found) == pytest.approx((0.45 + 0.45 + 2 * 0.43) / 4)
    assert math.isnan(calibration_error(reliability([], [])))
    assert [(one.low, one.high) for one in reliability([0.0, 1.0], [False, True])] == [(0.0, 0.1), (0.9, 1.0)]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_bins_hold_every_answer_and_the_error_is_a_share(pairs: list[tuple[float, bool]]) -> None:
    found = reliability(*zip(*pairs, strict=True))
    assert sum(one.count for one in found) == len(pairs)
    assert all(one.low - 1e-9 <= one.promised <= one.high + 1e-9 for one in found)
    assert 0 <= calibration_error(found) <= 1
