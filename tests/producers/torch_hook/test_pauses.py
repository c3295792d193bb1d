"""Pauses of the training thread. No torch is needed: modules are followed once they are loaded."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from irregulars.messages.records import PAUSES, UNKNOWN
from irregulars.producers.torch_hook.iterations import Iterations
from irregulars.producers.torch_hook.pauses import GPU_SOURCES, MOST, SHORTEST_NS, SOURCES, Pause, Pauses

LONG_S = 0.02


def fail(error: Exception) -> None:
    raise error


@pytest.fixture
def pauses() -> Iterator[Pauses]:
    own = Pauses([one for one in SOURCES if one != "host"], fail)
    gc.disable()  # nothing is collected but where a test says so
    own.start()
    own.take()  # the training thread is known from here on
    yield own
    own.stop()
    gc.enable()


def names(found: list[Pause]) -> list[str]:
    return [PAUSES[one.cause] for one in found]


@pytest.fixture
def garbage() -> list[list[int]]:
    return [[number] for number in range(300_000)]


def test_a_module_that_another_thread_imports_is_followed_once_all_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    text = "from gate import begun, goes_on\nbegun.set()\ngoes_on.wait(60)\nimport time\nsave = time.sleep\n"
    (tmp_path / "half.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "gate", SimpleNamespace(begun=begun, goes_on=goes_on))
    monkeypatch.setattr(f"{Pauses.__module__}._FUNCTIONS", {"checkpoint_write": (("half", "save"),)})
    thread = threading.Thread(target=import_module, args=("half",))
    thread.start()
    pauses = Pauses(["checkpoint_write"], fail)
    try:
        assert begun.wait(60)
        pauses.start()
        assert pauses.take() == []
        goes_on.set()
        thread.join(60)
        pauses.take()
        sys.modules["half"].save(LONG_S)
        assert names(pauses.take()) == ["checkpoint_write"]
    finally:
        goes_on.set()
        thread.join(60)
        pauses.stop()
        sys.modules.pop("half", None)


def test_a_collection_is_told_with_its_length(pauses: Pauses, garbage: list[list[int]]) -> None:
    pauses.take()  # what was collected while the garbage was made
    began_ns = time.monotonic_ns()
    gc.collect()
    took_ns = time.monotonic_ns() - began_ns
    (found,) = pauses.take()
    assert names([found]) == ["garbage_collection"]
    assert began_ns <= found.start_ns
    assert SHORTEST_NS < found.elapsed_ns <= took_ns
    assert pauses.take() == []


def test_a_pause_within_one_of_its_own_cause_is_a_part_of_that(pauses: Pauses, garbage: list[list[int]]) -> None:
    pauses.take()
    began_ns = time.monotonic_ns()
    with pauses.during("checkpoint_write"):
        with pauses.during("checkpoint_write"):
            time.sleep(LONG_S)
            gc.collect()
        time.sleep(LONG_S)
    took_ns = time.monotonic_ns() - began_ns
    found = {PAUSES[one.cause]: one for one in pauses.take()}
    assert set(found) == {"garbage_collection", "checkpoint_write"}
    assert found["checkpoint_write"].start_ns < found["garbage_collection"].start_ns
    assert found["checkpoint_write"].elapsed_ns >= 2 * LONG_S * 1e9
    assert sum(one.elapsed_ns for one in found.values()) <= took_ns


def test_short_ones_are_left_out_and_many_lengthen_the_last(pauses: Pauses) -> None:
    with pauses.during("checkpoint_write"):
        pass
    assert pauses.take() == []
    for _ in range(MOST + 2):
        with pauses.during("checkpoint_write"):
            time.sleep(2e-3)
    found = pauses.take()
    assert len(found) == MOST
    assert found[-1].elapsed_ns >= 3 * 2e6


def test_other_threads_tell_of_collections_alone(pauses: Pauses) -> None:
    def work() -> None:
        with pauses.during("checkpoint_write"):
            time.sleep(LONG_S)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert pauses.take() == []


def test_a_function_of_two_modules_stays_one_and_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(seconds: float) -> None:
        time.sleep(seconds)

    save.__module__, save.__qualname__ = "torch.serialization", "save"
    modules = []
    # Before the session: real ones that are loaded already are followed from its start on.
    for name in ("torch", "torch.serialization"):
        module = ModuleType(name)
        module.save = save  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
        modules.append(module)
    own = Pauses(["checkpoint_write"], fail)
    own.start()
    own.take()
    first, second = modules
    assert first.save is second.save is not save
    assert pickle.loads(pickle.dumps(first.save)) is first.save
    first.save(LONG_S)
    assert names(own.take()) == ["checkpoint_write"]
    own.stop()
    assert first.save is second.save is save


def test_an_iteration_that_another_thread_ends_within_a_pause_breaks_neither(
    pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("torch.distributed.checkpoint")

    def save() -> str:
        other = threading.Thread(target=pauses.take)
        other.start()
        other.join()
        return "written"

    module.save = save  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.distributed.checkpoint", module)
    pauses.take()
    with pauses.during("checkpoint_write"):
        assert module.save() == "written"
    assert pauses.take() == []


class Tensor:
    """Stands in for torch's, with a GPU that takes its time."""

    def __init__(self, is_cuda: bool) -> None:
        self.is_cuda = is_cuda

    def item(self) -> int:
        time.sleep(LONG_S)
        return 7

    tolist = cpu = __bool__ = __int__ = __float__ = item

    def to(self, device: str) -> Tensor:
        time.sleep(LONG_S)
        return Tensor(device == "cuda")

    def cuda(self) -> Tensor:
        return self.to("cuda")


def test_tensors_tell_of_waits_for_a_gpu_and_of_copies_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {name: ModuleType(name) for name in ("torch", "torch.cuda", "torch.cuda.streams")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    methods = {name: type(name, (), {"synchronize": lambda _: time.sleep(LONG_S)}) for name in ("Stream", "Event")}
    vars(modules["torch"])["Tensor"] = Tensor
    vars(modules["torch.cuda"])["synchronize"] = lambda: time.sleep(LONG_S)
    vars(modules["torch.cuda.streams"]).update(methods)
    before = dict(vars(Tensor))
    own = Pauses([*GPU_SOURCES, "data_loader"], fail)
    own.start()
    own.take()

    def told(work: Callable[[], object]) -> list[str]:
        work()
        return names(own.take())

    here, there = Tensor(is_cuda=False), Tensor(is_cuda=True)
    for waits in (there.item, there.cpu, lambda: bool(there.item()), modules["torch.cuda"].synchronize,
                  methods["Event"]().synchronize):  # fmt: skip
        assert told(waits) == ["synchronization"]
    assert told(lambda: here.to("cuda")) == ["host_to_device"]
    for nothing in (here.item, lambda: here.to("cpu"), lambda: there.to("cuda")):
        assert told(nothing) == []

    def load() -> None:
        with own.during("data_loader"):
            here.to("cuda")
            time.sleep(LONG_S)

    began_ns = time.monotonic_ns()
    load()
    found = own.take()
    assert names(found) == ["host_to_device", "data_loader"]
    assert sum(one.elapsed_ns for one in found) <= time.monotonic_ns() - began_ns
    own.stop()
    assert dict(vars(Tensor)) == before


class Subclassed(Tensor):
    """Is called again from within, as torch calls a subclass; refuses what it does not know, and has its own `to`."""

    calls = 0

    def item(self) -> int:
        self.calls += 1
        return Tensor.item(self) if self.calls == 2 else self.item()

    def to(self, device: str) -> Any:
        return device

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)


def test_tensors_of_subclasses_go_on_and_a_wait_within_another_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch")
    vars(module)["Tensor"] = Subclassed
    monkeypatch.setitem(sys.modules, "torch", module)
    own = Pauses(GPU_SOURCES, fail)
    own.start()
    own.take()
    there, strict = Subclassed(is_cuda=True), Subclassed(is_cuda=False)
    assert there.item() == 7
    assert names(own.take()) == ["synchronization"]
    vars(module)["Tensor"] = type("Tensor", (), {"item": Subclassed.item})
    assert pickle.loads(pickle.dumps(Subclassed.item)) is Subclassed.item
    assert strict.to("numpy") == "numpy"
    del strict.is_cuda
    assert strict.to("numpy") == "numpy"
    assert strict.item() == 7
    own.stop()


def test_a_source_that_is_off_tells_nothing(garbage: list[list[int]]) -> None:
    before = list(gc.callbacks)
    own = Pauses([], fail)
    own.start()
    own.take()
    gc.collect()
    with own.during("checkpoint_write"):
        time.sleep(LONG_S)
    assert own.take() == []
    assert gc.callbacks == before


def test_pauses_go_before_the_row_of_their_iteration_with_its_times(pauses: Pauses) -> None:
    iterations = Iterations(by_steps=False, pauses=pauses)
    for number in range(2):
        with iterations.mark(number), iterations.in_phase("checkpoint"):
            time.sleep(LONG_S)
    found = iterations.take(1000)
    # Whatever else held this thread up (another thread may switch collections on again) is none of this test.
    own = np.isin(found["pause_cause"], [PAUSES.index("checkpoint_write"), UNKNOWN])
    rows = {name: column[own] for name, column in found.items()}
    assert (rows["pause_cause"] >= 0).tolist() == [True, False] * 2, found["pause_cause"].tolist()
    assert rows["iteration"].tolist() == [0, 0, 1, 1]
    for name in ("start_ns", "elapsed_ns", "phase"):
        assert rows[name][::2].tolist() == rows[name][1::2].tolist()
    assert (rows["pause_start_ns"][::2] >= rows["start_ns"][::2]).all()
    assert (rows["pause_elapsed_ns"][::2] >= LONG_S * 1e9).all()


class Callbacks:
    """As ``torch._dynamo.callback.callback_handler``."""

    def __init__(self) -> None:
        self.start: list[object] = []
        self.end: list[object] = []
        self.register_start_callback, self.register_end_callback = self.start.append, self.end.append
        self.remove_start_callback, self.remove_end_callback = self.start.remove, self.end.remove


def test_callbacks_that_a_script_cleared_keep_nothing_from_being_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`torch.compiler.reset` clears torch's: the end raised into the script, and the last rows were lost."""
    callbacks, saves = Callbacks(), SimpleNamespace(save=time.sleep)
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", SimpleNamespace(callback_handler=callbacks))
    monkeypatch.setitem(sys.modules, "saves", saves)
    monkeypatch.setattr(f"{Pauses.__module__}._FUNCTIONS", {"checkpoint_write": (("saves", "save"),)})
    pauses = Pauses(["garbage_collection", "checkpoint_write", "compilation"], fail)
    pauses.start()
    assert (len(callbacks.start), len(callbacks.end)) == (1, 1)
    assert saves.save is not time.sleep
    callbacks.start.clear()
    callbacks.end.clear()
    gc.callbacks.remove(pauses._collect)
    pauses.stop()
    assert saves.save is time.sleep
