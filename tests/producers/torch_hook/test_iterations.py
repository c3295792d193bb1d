"""Iterations by steps and by marks, and their phases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from irregulars.errors import InputError
from irregulars.messages.records import PHASES, UNKNOWN, Batch, Header, decode_batch, encode_batch
from irregulars.producers.torch_hook.hooks.groups import Groups
from irregulars.producers.torch_hook.iterations import Iterations


class Optimizer:
    """Stands for one of torch's."""


def numbers(iterations: Iterations) -> list[int]:
    return iterations.take(0)["iteration"].tolist()


def test_the_steps_of_the_first_optimizer_that_steps_end_iterations() -> None:
    seen: list[int] = []
    iterations, first, second = Iterations(seen.append), Optimizer(), Optimizer()
    for _ in range(3):
        iterations.step(first)
        iterations.step(second)
    assert seen == [1, 2, 3]
    assert numbers(iterations) == [1, 2]
    assert numbers(iterations) == []


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_chosen_optimizer_is_followed(is_plain: bool) -> None:
    iterations, first = Iterations(), Optimizer()
    second = object() if is_plain else Optimizer()
    iterations.follow(second)
    for optimizer in (first, second, first, second):
        iterations.step(optimizer)
    assert numbers(iterations) == [1]


def test_an_optimizer_that_is_gone_gives_way_to_the_next() -> None:
    """As where training goes on in a second stage, with an optimizer of its own."""
    iterations, first, second = Iterations(), Optimizer(), Optimizer()
    iterations.step(first)
    iterations.step(second)
    del first
    for _ in range(2):
        iterations.step(second)
    assert numbers(iterations) == [1, 2]


def test_marks_beat_steps_go_on_behind_them_and_may_choose_their_numbers() -> None:
    seen: list[int] = []
    iterations, optimizer = Iterations(seen.append), Optimizer()
    for number in (7, None):
        with iterations.mark(number):
            iterations.step(optimizer)
    assert numbers(iterations) == [7, 8]
    assert seen == [7, UNKNOWN, 8, UNKNOWN]
    iterations, optimizer = Iterations(), Optimizer()
    for _ in range(4):
        iterations.step(optimizer)
    for number in range(3):
        with iterations.mark(number):
            pass
    assert numbers(iterations) == [1, 2, 3, 4, 5, 6]


def test_numbers_that_go_back_go_on_behind_the_last(caplog: pytest.LogCaptureFixture) -> None:
    """As those of each epoch, and after a roll-back: to whoever judges, an iteration that is over takes no more."""
    iterations = Iterations(by_steps=False)
    for _ in range(2):
        iterations.step(Optimizer())  # makes none
    # Two epochs, a third that is cut short, a roll-back by two, one that the script leaves to us, one marked twice
    for number in (0, 1, 2, 0, 1, 2, 0, 3, 4, 2, None, 4, 4):
        with iterations.mark(number):
            pass
    assert numbers(iterations) == [0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 13]
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_an_iteration_that_holds_a_phase_is_of_it() -> None:
    iterations = Iterations()
    with iterations.mark(0), iterations.in_phase("checkpoint"):
        pass
    with iterations.mark(1):
        iterations.report({"loss": 0.5, "grad_norm": None, "tokens": 128})
    with iterations.in_phase("eval"), iterations.mark(2):
        pass
    columns = iterations.take(0)
    assert [PHASES[code] for code in columns["phase"]] == ["checkpoint", "train", "eval"]
    assert columns["loss"][1] == 0.5
    assert np.isnan(columns["grad_norm"]).all()
    assert columns["tokens"][1] == 128
    with (
        pytest.raises(InputError, match=r"phase must be one of train, eval, checkpoint; got 'lunch'"),
        iterations.in_phase("lunch"),
    ):
        pass


def test_what_is_no_finite_number_is_sent_as_infinity() -> None:
    """NaN says that a figure is not known."""
    iterations = Iterations()
    with iterations.mark(0):
        iterations.report({"loss": math.nan, "grad_norm": -math.inf, "not_finite": 2}, checksum=7)
    columns = iterations.take(0)
    assert [columns[name][0] for name in ("loss", "grad_norm", "not_finite")] == [math.inf, math.inf, 2]
    assert columns["parameters_checksum"].tolist() == [7]
    assert np.isnan(columns["update_rms"]).all()


@pytest.mark.parametrize("count", [math.nan, math.inf, -3, 1e300])
def test_a_count_that_no_column_holds_is_not_known_and_ends_no_recording(count: float) -> None:
    iterations = Iterations()
    with iterations.mark(0):
        iterations.report({"tokens": count, "not_finite": count, "loss": 0.5}, checksum=1 << 64)
    columns = iterations.take(0)
    value = encode_batch(Batch(Header("iterations", "job", 0, 0), columns))
    assert decode_batch(value, "iterations").columns["loss"] == 0.5
    assert np.isnan([columns["tokens"][0], columns["not_finite"][0]]).all()
    assert columns["parameters_checksum"].tolist() == [UNKNOWN]


def test_an_audit_has_a_row_before_that_of_its_iteration_and_leaves_its_figures_alone() -> None:
    iterations = Iterations()
    with iterations.mark(4):
        iterations.report({"loss": 0.5})
        with iterations.auditing() as give:
            assert iterations.running is None
            iterations.report({"loss": 9.0})  # the audited rank's, and not this one's
            give(3, 77)
        assert iterations.running == 4
    with iterations.mark(5):
        pass
    columns = iterations.take(0)
    assert columns["iteration"].tolist() == [4, 4, 5]
    assert columns["audit_of_rank"].tolist() == [3, UNKNOWN, UNKNOWN]
    assert columns["audit_checksum"].tolist() == [77, UNKNOWN, UNKNOWN]
    assert np.isnan(columns["loss"]).tolist() == [True, False, True]
    assert columns["loss"][1] == 0.5
    assert [PHASES[code] for code in columns["phase"]] == ["eval", "eval", "train"]
    assert columns["start_ns"][0] == columns["start_ns"][1]
    assert columns["elapsed_ns"][0] == columns["elapsed_ns"][1]


def test_an_iteration_that_fails_still_ends_and_a_number_that_none_has_raises() -> None:
    iterations = Iterations()
    with pytest.raises(ZeroDivisionError), iterations.mark(0):
        raise ZeroDivisionError
    assert numbers(iterations) == [0]
    with pytest.raises(InputError, match="iteration must be from"), Iterations().mark(1 << 70):
        pass


def test_a_group_s_kind_is_read_from_its_description_and_can_be_set() -> None:
    groups = Groups()
    groups.add("0", [0, 1], 2, "default_pg", 2)
    groups.add("1", [0], 2, "mesh_ep", 2)
    groups.set_kind("0", "dp")
    assert [group.communicator.kind for group in groups.all] == ["dp", "ep"]
    with pytest.raises(InputError, match=r"kind must be one of .*; got 'xp'"):
        groups.set_kind("0", "xp")
    with pytest.raises(InputError, match=r"group must be one that is logged; got '9'"):
        groups.set_kind("9", "dp")


class Passed:
    """A boundary that a device passes when the test says so."""

    def __init__(self, host_ns: int) -> None:
        self.host_ns = host_ns
        self.passed_ns: int | None = None

    def time_ns(self) -> int | None:
        return self.passed_ns


def test_iterations_of_a_device_are_given_with_its_times_once_it_has_passed_their_ends() -> None:
    boundaries: list[Passed] = []

    def boundary() -> Passed:
        boundaries.append(Passed(len(boundaries)))
        return boundaries[-1]

    iterations, optimizer = Iterations(boundary=boundary), Optimizer()
    for _ in range(4):
        iterations.step(optimizer)
    assert numbers(iterations) == []
    for passed, passed_ns in zip(boundaries, (1_000, 3_000, 9_000), strict=False):
        passed.passed_ns = passed_ns
    taken = iterations.take(5)
    assert taken["iteration"].tolist() == [1, 2]
    assert taken["start_ns"].tolist() == [1_005, 3_005]
    assert taken["elapsed_ns"].tolist() == [2_000, 6_000]
    assert iterations.take(0, is_last=True)["iteration"].tolist() == [3], (
        "a device that hangs must not keep rows back"
    )
