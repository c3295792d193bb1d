"""Events on a GPU's streams, by a torch that plays one: their numbers are bounded, and no wait is for ever."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from irregulars.producers.torch_hook.hooks import device_events
from irregulars.producers.torch_hook.hooks.device_events import (
    CaptureMode,
    DeviceBoundary,
    DeviceClock,
    DeviceEvents,
)

MS_NS = 1_000_000


class Gpu:
    """Streams that pass an event at once, unless they hang; `passed_ms` is the time of the next event.

    `hanging_streams`: numbers of those that torch gives out, one after the other, and on which an operator hangs.
    """

    def __init__(self) -> None:
        self.passed_ms, self.is_hanging = 0.0, False
        self.streams, self.hanging_streams = 0, range(0)

    def new_stream(self, device: str) -> int:
        self.streams += 1
        return self.streams - 1

    def new_event(self, enable_timing: bool) -> GpuEvent:
        assert enable_timing
        return GpuEvent(self)


class GpuEvent:
    """An event of torch's, as far as it is used."""

    device = "cuda:0"

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def record(self, stream: object = None) -> None:
        self.passed_ms = self._gpu.passed_ms
        self.is_passed = not self._gpu.is_hanging and stream not in self._gpu.hanging_streams

    def query(self) -> bool:
        return self.is_passed

    def synchronize(self) -> None:
        assert self.is_passed, "it waits for ever"

    def elapsed_time(self, later: GpuEvent) -> float:
        return later.passed_ms - self.passed_ms


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made, torch = Gpu(), ModuleType("torch")
    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        Event=made.new_event, Stream=made.new_stream, current_stream=lambda device: None,
        is_current_stream_capturing=lambda: False, is_initialized=lambda: True,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    return made


def operate(events: DeviceEvents, ordinal: int) -> None:
    """Issue one synchronous operator."""
    tensor: Any = SimpleNamespace(is_cuda=True, device="cuda:0")
    assert events.record_start(ordinal, [tensor])
    assert events.record_end(ordinal, None, ordinal)


def test_an_operator_has_the_times_that_its_device_passed(gpu: Gpu) -> None:
    finished: list[tuple[int, int, int]] = []
    events = DeviceEvents(lambda *row: finished.append(row))
    for ordinal in range(3):
        gpu.passed_ms = float(10 * ordinal)
        operate(events, ordinal)
    events.settle()
    assert [row[0] for row in finished] == [0, 1, 2]
    assert [row[2] - finished[0][2] for row in finished] == [0, 10 * MS_NS, 20 * MS_NS]
    events.settle()
    assert len(finished) == 3


@pytest.mark.parametrize("is_polled", [False, True])
def test_operators_that_never_end_keep_no_more_events_than_the_ring_has_rows(gpu: Gpu, is_polled: bool) -> None:
    finished: list[int] = []
    events = DeviceEvents(lambda *row: finished.append(row[0]), capacity=4)
    gpu.is_hanging = is_polled
    for ordinal in range(10):
        operate(events, ordinal)
        if is_polled:
            events.settle()
    gpu.is_hanging = False
    operate(events, 10)
    assert len(events._waiting) == 4
    events.settle()
    assert finished == ([10] if is_polled else [7, 8, 9, 10])


@pytest.mark.parametrize("streams", [range(1), range(1, 2)], ids=["the first", "a later one"])
def test_a_stream_on_which_an_operator_hangs_gives_no_anchor_and_holds_nobody_up(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, streams: range
) -> None:
    """Torch gives its streams out in turn, and NCCL has one of them."""
    monkeypatch.setattr(device_events, "_ANCHOR_S", 0.0)
    monkeypatch.setattr(device_events, "_ANCHOR_WAIT_S", 0.01)
    finished: list[int] = []
    events, gpu.hanging_streams = DeviceEvents(lambda *row: finished.append(row[0])), streams
    for ordinal in range(3):
        operate(events, ordinal)
        events.settle()
        if ordinal == 0:
            assert finished == ([] if 0 in streams else [0]), "without an anchor its times are not known yet"
    assert finished == [0, 1, 2]


def test_a_border_of_iterations_waits_for_an_anchor(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_events, "_ANCHOR_S", 0.0)
    monkeypatch.setattr(device_events, "_ANCHOR_WAIT_S", 0.01)
    border, gpu.hanging_streams = DeviceBoundary(DeviceClock()), range(1)
    assert border.time_ns() is None
    found = border.time_ns()
    assert found is not None
    assert border.time_ns() == found


@pytest.mark.parametrize("results", [[0], [3, 0]], ids=["at once", "before CUDA begins"])
def test_a_thread_that_asks_devices_is_no_trouble_to_a_capture_in_another(gpu: Gpu, results: list[int]) -> None:
    modes: list[int] = []

    def exchange(mode: Any) -> int:
        modes.append(mode._obj.value)
        mode._obj.value = 0  # the mode before
        return results[len(modes) - 1]

    capture = CaptureMode(lambda name: SimpleNamespace(cuThreadExchangeStreamCaptureMode=exchange))
    for _ in range(4):
        capture.ignore_other_threads()
    assert modes == [1] * len(results), "until the driver takes it; a second exchange would take it back"


def test_without_a_driver_there_is_nothing_to_capture(gpu: Gpu) -> None:
    names: list[str] = []

    def load(name: str) -> object:
        names.append(name)
        raise OSError(name)

    capture = CaptureMode(load)
    for _ in range(2):
        capture.ignore_other_threads()
    assert names == ["libcuda.so.1"]
