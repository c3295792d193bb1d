from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.producers.simulator.calls import Call
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.schedule import EVALUATE, TRAIN, predecessors, stage_programs, waves
from irregulars.producers.simulator.settings import SimulatorSettings
from tests.producers.simulator.conftest import TIDY

SHAPES = st.builds(
    SimulatorSettings, dp=st.integers(1, 3), pp=st.integers(2, 9), tp=st.integers(1, 3),
    micro_batches=st.integers(1, 12), tp_operators=st.integers(0, 3),
    gradient_sync=st.sampled_from(["sharded", "all_reduce", "fsdp"]), gradient_buckets=st.integers(1, 3),
    fsdp_units=st.integers(1, 3), cp=st.integers(1, 3), cp_exchange=st.sampled_from(["collective", "ring"]),
    ep=st.integers(1, 2), shards=st.integers(1, 2), is_gradient_overlapped=st.booleans(),
    has_data_broadcast=st.booleans(), has_loss_reduction=st.booleans(), has_tied_embeddings=st.booleans(),
    hidden=st.sampled_from([(), ("barrier",), ("tp", "cp")]),
)  # fmt: skip
INTERLEAVED = st.tuples(st.integers(3, 6), st.integers(2, 4), st.integers(1, 4)).map(
    lambda shape: SimulatorSettings(pp=shape[0], model_chunks=shape[1], micro_batches=shape[0] * shape[2], dp=2, tp=1)
)
ALL_SHAPES = st.one_of(SHAPES, INTERLEAVED)


def work_in_order(program: list[Call]) -> list[tuple[int, float]]:
    return [part for call in program for part in call.work if part[0] >= 0]


@pytest.mark.parametrize("turn", [TRAIN, EVALUATE])
@given(settings=ALL_SHAPES)
def test_every_schedule_meets_everybody_it_names_and_no_call_comes_before_those_it_follows(
    turn: str, settings: SimulatorSettings
) -> None:
    programs = stage_programs(settings, turn)
    last_wave: dict[tuple[int, int], int] = {}
    first_wave: dict[tuple[int, int], int] = {}
    for n, wave in enumerate(waves(programs)):
        members = [member for one in wave for member in one.members]
        assert len(members) == len(set(members))
        for member in members:
            first_wave.setdefault(member, n)
            last_wave[member] = n
    assert sorted(last_wave) == [(n, place) for n, program in enumerate(programs) for place in range(len(program))]
    for stage, program in enumerate(programs):
        for place, links in enumerate(predecessors(program)):
            for link in (links[0], *links[1]):
                if link >= 0:
                    assert last_wave[stage, link] < first_wave[stage, place]


@given(settings=ALL_SHAPES)
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


def test_programs_that_wait_in_a_circle_or_for_a_message_that_nobody_receives_are_an_error() -> None:
    down = Call("pp", ("send",), 1, peers=(1,))
    sync = Call("world", ("all_reduce",), 8)
    with pytest.raises(RuntimeError, match="circle"):
        waves([[down, sync], [sync, Call("pp", ("recv",), 1, peers=(0,))]])
    sync = Call("world", ("all_reduce",), 8)
    with pytest.raises(RuntimeError, match="must receive what stage 0 sends"):
        waves([[Call("pp", ("send",), 1, peers=(1,)), sync], [sync]])


def test_interleaving_shortens_the_wait_for_the_pipeline_to_fill() -> None:
    """As many micro-batches in as many stages take less time when each stage works in smaller pieces."""
    times = []
    for chunks in (1, 2, 4):
        settings = SimulatorSettings(**TIDY, pp=4, dp=1, tp=2, model_chunks=chunks, micro_batches=8, iterations=1)
        times.append(Engine(settings).advance().elapsed_ns / 1e6)
    bubble_ms = np.array(times) - 8 * 18 - 8  # what is left when the work is taken away
    assert bubble_ms[0] == pytest.approx(3 * 18, rel=0.5)
    assert bubble_ms[1] < 0.75 * bubble_ms[0]
    assert bubble_ms[2] < 0.85 * bubble_ms[1]


def test_interleaved_activations_go_round_from_the_last_stage_to_the_first() -> None:
    programs = stage_programs(SimulatorSettings(pp=4, model_chunks=2, micro_batches=8))
    sent = [call.peers[n] for call in programs[3] for n, operator in enumerate(call.operators) if operator == "send"]
    assert sent.count(0) == 8  # the outputs of its first chunk
    assert sent.count(2) == 16  # gradients of both
    assert max(len(call.operators) for call in programs[1]) == 4
