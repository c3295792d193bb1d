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


class HandClock:
    """A clock in the place of the module `time`: a wait moves it, and a look at it, by a microsecond."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def monotonic_ns(self) -> int:
        return round(self.monotonic() * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Gpu:
    """Streams that pass an event at once, unless they hang; `passed_ms` is the time of the next event.

    `hanging_streams`: numbers of those that torch gives out, one after the other, and on which an operator hangs.
    `busy_s`: time that the others take to come to an event; the clock is the test's, if it has one.
    """

    def __init__(self) -> None:
        self.clock, self.busy_s = HandClock(), 0.0
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
        busy_s = 0.0 if stream is None else self._gpu.busy_s
        self.passed_ms, self.reached_s = self._gpu.passed_ms + 1e3 * busy_s, self._gpu.clock.now_s + busy_s
        self.is_passed = not self._gpu.is_hanging and stream not in self._gpu.hanging_streams

    def query(self) -> bool:
        return self.is_passed and self._gpu.clock.now_s >= self.reached_s

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


@pytest.fixture
def clock(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> HandClock:
    monkeypatch.setattr(device_events, "time", gpu.clock)
    return gpu.clock


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
    gpu: Gpu, clock: HandClock, streams: range
) -> None:
    """Torch gives its streams out in turn, and NCCL has one of them.

    The loop of queries ran for two seconds inside the training process, and took Python's lock for each of them.
    """
    finished: list[int] = []
    events, gpu.hanging_streams = DeviceEvents(lambda *row: finished.append(row[0])), streams
    for ordinal, pause_s in enumerate((1.1, 0.3, 0.0)):
        operate(events, ordinal)
        began_s = clock.now_s
        events.settle()
        assert clock.now_s - began_s < 0.01
        if ordinal == 0:
            assert finished == ([] if 0 in streams else [0]), "without an anchor its times are not known yet"
        clock.now_s += pause_s
    assert finished == [0, 1, 2]
    assert gpu.streams == (2 if 0 in streams else 3), "the try after one that failed is soon, and on another stream"


@pytest.mark.parametrize("has_anchor", [False, True])
def test_where_each_stream_is_busy_an_anchor_is_waited_for(gpu: Gpu, clock: HandClock, has_anchor: bool) -> None:
    """With CUDA_DEVICE_MAX_CONNECTIONS=1 an event of any stream waits for all work that was queued before it."""
    started_ns: list[int] = []
    events = DeviceEvents(lambda ordinal, ended, started: started_ns.append(started))
    if has_anchor:
        operate(events, 0)
        events.settle()
    gpu.busy_s = 0.8
    for ordinal in range(len(started_ns), 100):
        clock.now_s += 0.1
        gpu.passed_ms = 1e3 * clock.now_s - 50.0  # its clock has drifted since the first anchor
        issued_ns = round(1e9 * clock.now_s)
        operate(events, ordinal)
        events.settle()
    assert len(started_ns) == 100
    assert abs(started_ns[-1] - issued_ns) < MS_NS


def test_a_border_of_iterations_waits_for_an_anchor(gpu: Gpu, clock: HandClock) -> None:
    border, gpu.hanging_streams = DeviceBoundary(DeviceClock()), range(1)
    assert border.time_ns() is None
    clock.now_s += 0.3
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


def test_no_device_is_asked_without_a_driver_or_during_imports(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def load(name: str) -> object:
        names.append(name)
        raise OSError(name)

    capture = CaptureMode(load)
    for _ in range(2):
        capture.ignore_other_threads()
    assert names == ["libcuda.so.1"]
    half = SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))
    monkeypatch.setitem(sys.modules, "torch", half)
    CaptureMode(pytest.fail).ignore_other_threads()
