from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.simulator.schedule import OWN_WORK, Call, stage_programs, waves
from producers.simulator.settings import SimulatorSettings

SHAPES = st.builds(
    SimulatorSettings,
    dp=st.integers(1, 3),
    pp=st.integers(2, 9),
    tp=st.integers(1, 3),
    micro_batches=st.integers(1, 12),
    tp_operators=st.integers(0, 3),
    gradient_sync=st.sampled_from(["sharded", "all_reduce"]),
    gradient_buckets=st.integers(1, 3),
)


def work_in_order(program: list[Call]) -> list[tuple[int, float]]:
    return [part for call in program for part in call.work if part[0] != OWN_WORK]


@given(settings=SHAPES)
def test_every_schedule_can_run_and_meets_everybody_it_names(settings: SimulatorSettings) -> None:
    programs = stage_programs(settings)
    seen = [member for wave in waves(programs) for meeting in wave for member in meeting]
    assert sorted(seen) == [(stage, place) for stage, program in enumerate(programs) for place in range(len(program))]


@given(settings=SHAPES)
def test_what_one_stage_sends_its_neighbour_receives(settings: SimulatorSettings) -> None:
    programs = stage_programs(settings)
    for wave in waves(programs):
        for meeting in wave:
            calls = [programs[stage][place] for stage, place in meeting]
            if calls[0].group == "pp":
                assert {operator for call in calls for operator in call.operators} == {"send", "recv"}
                assert len(calls[0].operators) == len(calls[1].operators)
            else:
                assert len({(call.operators, call.size_bytes) for call in calls}) == 1


@given(settings=SHAPES)
def test_each_stage_does_one_forward_and_one_backward_of_each_micro_batch(settings: SimulatorSettings) -> None:
    for program in stage_programs(settings):
        total = dict.fromkeys(range(settings.micro_batches), 0.0)
        for micro_batch, work_ns in work_in_order(program):
            total[micro_batch] += work_ns
        whole_ns = (settings.forward_ms + settings.backward_ms) * 1e6
        assert all(work_ns == pytest.approx(whole_ns) for work_ns in total.values())


@given(settings=SHAPES)
def test_a_stage_holds_no_more_micro_batches_than_there_are_stages_after_it(settings: SimulatorSettings) -> None:
    for stage, program in enumerate(stage_programs(settings)):
        begun, done_ns, most = set(), dict.fromkeys(range(settings.micro_batches), 0.0), 0
        for micro_batch, work_ns in work_in_order(program):
            begun.add(micro_batch)
            done_ns[micro_batch] += work_ns
            whole_ns = (settings.forward_ms + settings.backward_ms) * 1e6
            ended = sum(ns > whole_ns * (1 - 1e-9) for ns in done_ns.values())
            most = max(most, len(begun) - ended)
        assert most <= settings.pp - stage


def test_programs_that_wait_in_a_circle_are_an_error() -> None:
    down = Call("pp", ("send",), 1, peer_stage=1)
    sync = Call("world", ("all_reduce",), 8)
    with pytest.raises(RuntimeError, match="circle"):
        waves([[down, sync], [sync, Call("pp", ("recv",), 1, peer_stage=0)]])
