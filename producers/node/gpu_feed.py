"""GPUs as samples of the ranks that use them. A thread asks NVML, whose answers may take long."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from irregulars.messages.records import PATHS
from irregulars.producers.node.device_source import HealthSample, Samples
from irregulars.producers.node.gpu import Gpu, GpuGone, GpuReading, pynvml
from irregulars.producers.node.roster import Roster

_LOG: Final = logging.getLogger("irregulars.agent")
_RETRY_S: Final = 30.0
_KEPT: Final = 600
_EVENTS: Final = pynvml.nvmlEventTypeXidCriticalError


def count_gpus() -> int:
    """Start NVML and count the GPUs; 0, and one line in the log with the reason, where there is no driver or no GPU.

    `GpuFeed.close` or ``pynvml.nvmlShutdown`` ends it.
    """
    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        _LOG.warning("event=no_gpus reason=%r", str(error))
        return 0
    if count == 0:
        _LOG.warning("event=no_gpus reason='the driver finds none'")
    return count


class GpuFeed:
    """Samples the GPUs that the roster's ranks use. `count_gpus` must have found some.

    `roster`: whose GPUs; read at each `take`. `period_s`: seconds from one reading of all GPUs to the next.
    """

    def __init__(self, roster: Roster, period_s: float) -> None:
        self._roster, self._period_s = roster, period_s
        self._wanted: frozenset[int] = frozenset()
        self._readings: deque[GpuReading] = deque(maxlen=_KEPT)
        self._health: list[HealthSample] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="irregulars-gpus", daemon=True)
        self._thread.start()

    def take(self) -> list[Samples]:
        """Take the traffic since the last call."""
        self._wanted = frozenset(self._roster.gpus)
        taken: list[Samples] = []
        for _ in range(len(self._readings)):
            reading = self._readings.popleft()
            owner, device = self._roster.gpus.get(reading.index), f"gpu{reading.index}"
            if owner is None:
                continue
            if reading.health:
                self._health.append(HealthSample(owner, device, reading.time_ns, reading.health))
            for path, rows in reading.rates.items():
                if rows:
                    times_ns = np.array([row[0] for row in rows], dtype=np.int64)
                    rates = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 2)
                    taken.append(Samples(owner, device, PATHS.index(path), times_ns, rates))
        return taken

    def take_health(self) -> list[HealthSample]:
        """Take the states of the GPUs that `take` brought."""
        health, self._health = self._health, []
        return health

    def close(self) -> None:
        """End the thread, then NVML; a second time does nothing."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            pynvml.nvmlShutdown()

    def _run(self) -> None:
        gpus = _OpenGpus()
        while not self._stop.wait(self._period_s):
            for index in sorted(self._wanted):
                reading = gpus.read(index)
                if reading is not None:
                    self._readings.append(reading)
            self._readings.extend(gpus.xids.take(gpus.indices))
        gpus.close()


class _OpenGpus:
    """The GPUs that answer. Logs once of each that it is gone, and once that it is back."""

    def __init__(self) -> None:
        self._gpus: dict[int, Gpu] = {}
        self._retry_s: dict[int, float] = {}
        self.xids = _Xids()
        self.indices: dict[int, int] = {}  # by address of NVML's device

    def read(self, index: int) -> GpuReading | None:
        if index not in self._gpus and time.monotonic() >= self._retry_s.get(index, 0.0):
            self._open(index)
        gpu = self._gpus.get(index)
        try:
            return None if gpu is None else gpu.read()
        except GpuGone as error:
            self._gpus.pop(index).close()
            self._retry_later(index, error)
            return None

    def _open(self, index: int) -> None:
        try:
            gpu = Gpu(index)
        except (pynvml.NVMLError, GpuGone) as error:
            self._retry_later(index, error)
            return
        if index in self._retry_s:
            _LOG.info("event=gpu_back device=%s uuid=%s", gpu.name, gpu.uuid)
            del self._retry_s[index]
        self._gpus[index] = gpu
        self.indices[_address(gpu.handle)] = index
        self.xids.watch(gpu)

    def _retry_later(self, index: int, error: Exception) -> None:
        if index not in self._retry_s:
            _LOG.error("event=gpu_gone device=gpu%d reason=%r", index, str(error))
        self._retry_s[index] = time.monotonic() + _RETRY_S

    def close(self) -> None:
        self.xids.close()
        for gpu in self._gpus.values():
            gpu.close()


class _Xids:
    """Critical errors (XIDs) as the driver reports them."""

    def __init__(self) -> None:
        self._set: Any = None
        self._has_failed = False

    def watch(self, gpu: Gpu) -> None:
        try:
            self._set = self._set or pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(gpu.handle, _EVENTS, self._set)
        except pynvml.NVMLError as error:
            _LOG.warning("event=gpu_counter_missing device=%s counter=xid reason=%r", gpu.name, str(error))

    def take(self, indices: dict[int, int]) -> Iterator[GpuReading]:
        """Yield the errors since the last call, each as a reading."""
        while self._set is not None:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError_Timeout:
                self._has_failed = False
                return
            except pynvml.NVMLError as error:
                if not self._has_failed:
                    _LOG.warning("event=gpu_counter_missing counter=xid reason=%r", str(error))
                self._has_failed = True
                return
            index = indices.get(_address(event.device))
            _LOG.error("event=gpu_xid device=gpu%s xid=%d", "?" if index is None else index, event.eventData)
            if index is not None:
                yield GpuReading(index, time.time_ns(), health={"xid": float(event.eventData)})

    def close(self) -> None:
        if self._set is not None:
            pynvml.nvmlEventSetFree(self._set)


def _address(handle: Any) -> int:
    """Address of NVML's device: two pointers to one device are different objects in ctypes."""
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)
