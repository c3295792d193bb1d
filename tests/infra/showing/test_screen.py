from __future__ import annotations

import json
from dataclasses import replace

import pytest

from irregulars.infra.showing.found import Found, gather, periods_of
from irregulars.infra.showing.from_database import found_in_recording
from irregulars.messages.judgements import JudgedIteration, with_first_names
from tests.infra.showing.made_up_verdicts import found_in, iterations_of, verdict_of
from tests.sinks.recorded_jobs import judged, trace_of


def test_all_values_are_json_and_ranges_say_that_they_are_half_open() -> None:
    values = json.loads(json.dumps(gather(found_in("gloo-slow-nic")).to_json(), allow_nan=False))
    assert values["range"] == {"first": 60, "past_last": 81, "last": 80}
    assert values["verdict"]["iterations"] == [60, 81]
    assert values["verdict"]["explanation"]["path"][-1]["is_accused"] is True
    assert values["verdict"]["explanation"]["considered"][0]["is_ruled_out"] is True


def test_periods_are_told_apart_by_the_cause_or_by_what_nobody_said() -> None:
    iterations = iterations_of([100.0] * 60 + [200.0] * 10, 60)
    iterations[65] = iterations[65]._replace(is_irregular=False, has_cause=False)
    periods = periods_of(verdict_of(iterations=(60, 70)), iterations)
    assert periods.before.tolist() == list(range(60))
    assert 65 not in periods.during.tolist()
    screen = gather(Found(verdict_of(iterations=(0, 10)), iterations=iterations_of([100.0] * 10, 0)))
    assert any(one.startswith("before: no regular iterations are known") for one in screen.missing)
    iterations = iterations_of([100.0] * 8 + [200.0] * 4 + [100.0] * 4, 8)
    unsaid = [one._replace(is_irregular=None) if one.iteration < 8 else one for one in iterations]
    after = [one._replace(is_irregular=False, has_cause=False) if one.iteration >= 12 else one for one in unsaid]
    assert periods_of(verdict_of(iterations=(8, 12)), after).before.tolist() == list(range(8))


def test_a_slow_checkpoint_is_held_against_the_checkpoints_before_it() -> None:
    said = judged("made/slow-writer")
    verdict = next(one for one in reversed(said.verdicts) if one.kind == "slow_checkpoint")
    found = found_in_recording("slow-writer", trace_of("made/slow-writer"), said, verdict)
    assert [one.iteration for one in found.iterations if one.has_cause] == [39, 49, 59, 69]
    screen = gather(found)
    assert screen.during_ns / screen.before_ns == pytest.approx(verdict.delta, rel=0.1)


def test_what_it_costs_an_hour_is_the_share_of_the_time_that_was_lost() -> None:
    cost = gather(Found(verdict_of(lost_s=1.0, iterations=(5, 10)), iterations=iterations_of([400.0] * 10, 5))).cost
    assert cost.share == pytest.approx(0.5)
    assert cost.gpu_hours_per_hour == pytest.approx(2.0)


@pytest.mark.parametrize(("kind", "begun"), [("custom", 60), ("hang", 60), ("slow_nic", 63)])
def test_a_detector_s_verdict_is_marked_from_its_first_iteration_though_none_was_irregular(
    kind: str, begun: int
) -> None:
    opened = verdict_of(kind=kind, iterations=(60, 64))
    regular = [
        JudgedIteration("j", 0, at, at, 10, 10.0, "train", False, 4, ("v",) * (at >= 63)) for at in range(55, 70)
    ]
    marked = with_first_names(regular, [replace(opened, verdict_id="v", revision=1)])
    assert [one.iteration for one in marked if one.verdict_ids] == sorted({60, *range(begun, 70)})
    assert all(len(one.verdict_ids) <= 1 for one in marked)
