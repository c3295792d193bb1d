from __future__ import annotations

from irregulars.streams.telemetry.flow_watch import Flow, FlowWatch


def said(watch: FlowWatch, flows: list[tuple[float, Flow]]) -> list[tuple[float, str]]:
    return [(now_s, reason) for now_s, flow in flows for reason, _ in watch.look(now_s, flow)]


def test_a_healthy_flow_is_never_told() -> None:
    assert said(FlowWatch(), [(float(s), Flow(s, s // 20, s // 10)) for s in range(2000)]) == []


def test_a_quiet_worker_is_never_told() -> None:
    assert said(FlowWatch(), [(float(s), Flow(0, 3, 0)) for s in range(2000)]) == []


def test_operators_without_iterations_are_told_once_after_minutes() -> None:
    flows = [(float(s), Flow(s, 0, 2)) for s in range(1000)]
    assert said(FlowWatch(30.0), flows) == [(330.0, "operators arrive, and no iteration closes")]


def test_an_iteration_that_closes_begins_the_wait_anew() -> None:
    flows = [(float(s), Flow(s, 0, s // 300)) for s in range(2000)]
    assert said(FlowWatch(30.0), flows) == []


def test_a_job_that_pauses_is_not_told_for_its_pause() -> None:
    flows = [(float(s), Flow(min(s, 100), 0, min(s, 100) // 10)) for s in range(800)]
    flows += [(800.0 + s, Flow(100 + s, 0, 10)) for s in range(200)]
    assert said(FlowWatch(30.0), flows) == []


def test_all_refused_is_told_and_told_again_after_some_got_through() -> None:
    flows = [(float(s), Flow(0, s, 0)) for s in range(200)]
    flows += [(200.0, Flow(1, 200, 1))]
    flows += [(200.0 + s, Flow(1, 200 + s, 1)) for s in range(1, 100)]
    reason = "messages arrive, and all of them are refused"
    assert said(FlowWatch(), flows) == [(60.0, reason), (260.0, reason)]
