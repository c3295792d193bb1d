"""One GPU through NVML: its traffic over PCIe and NVLink, and its health.

One reader for each kind of value, since each may be missing: hardware, driver and rights decide which can be read. A
missing value is logged once, and is unknown from then on.
"""

from __future__ import annotations

import ctypes
import logging
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from irregulars.messages.records import PATHS
from irregulars.producers.node.counters import UNREADABLE, CounterTrack
from irregulars.producers.node.roster import HealthSample, Roster, Samples

with warnings.catch_warnings():
    # The package `pynvml` warns that its code is in `nvidia-ml-py` today. It installs that, and that is what we use.
    warnings.simplefilter("ignore", FutureWarning)
    import pynvml

__all__ = ["Gpu", "GpuGone", "GpuReading", "Rates", "Reader", "pynvml"]
_LOG: Final = logging.getLogger("irregulars.agent")
_MIB: Final = float(1 << 20)
# NVML's scope of a field of NVLink for the sum over all links.
_ALL_LINKS: Final = 2**32 - 1
_NAN: Final = math.nan
# Answers that will not change while we run.
_NEVER: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)  # fmt: skip
_MOST: Final = 2**63  # a GPU that falls off its bus answers with all bits set, before NVML reports that it is lost
# End of an interval, ns since the epoch; bytes/s sent and received in it, NaN: not known.
Rates = tuple[int, float, float]


class GpuGone(Exception):
    """The GPU does not answer any more."""


class Reader:
    """Reads one kind of value of one GPU, as long as it can be read."""

    def __init__(self, gpu: str, name: str, read: Callable[[], Any]) -> None:
        self._gpu, self._name, self._read = gpu, name, read
        self.is_missing = False
        self._has_failed = False

    def __call__(self) -> Any:
        """Return NVML's answer; None where there is none. Raises `GpuGone`."""
        if self.is_missing:
            return None
        try:
            value = self._read()
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNINITIALIZED):
                raise GpuGone(str(error)) from error
            self.is_missing = error.value in _NEVER
            return self._fail(str(error))
        if isinstance(value, int) and not 0 <= value < _MOST:
            return self._fail(f"no such number: {value}")
        self._has_failed = False
        return value

    def _fail(self, reason: str) -> None:
        if not self._has_failed:  # an error that may pass is logged once until it has passed
            _LOG.warning("event=gpu_counter_missing device=%s counter=%s reason=%r", self._gpu, self._name, reason)
        self._has_failed = True


class _FieldRates:
    """Rates of two cumulative fields of NVML: bytes sent and received, since the call before; none at the first."""

    def __init__(self, gpu: str, name: str, handle: Any, fields: list[Any], unit_bytes: int) -> None:
        self._handle, self._fields = handle, fields
        self._reader = Reader(gpu, name, self._read)
        self._track = CounterTrack(gpu, unit_bytes, None)

    @property
    def is_missing(self) -> bool:
        return self._reader.is_missing

    def __call__(self) -> list[Rates]:
        now_ns = time.time_ns()
        counts = self._reader() or (UNREADABLE, UNREADABLE)
        times_ns, rates = self._track.rates(np.array([now_ns]), np.array([counts], dtype=np.uint64))
        return [(int(t), float(tx), float(rx)) for t, (tx, rx) in zip(times_ns, rates, strict=True)]

    def _read(self) -> tuple[int, ...]:
        counts = []
        for value in pynvml.nvmlDeviceGetFieldValues(self._handle, self._fields):
            if value.nvmlReturn != pynvml.NVML_SUCCESS:
                raise pynvml.NVMLError(value.nvmlReturn)
            is_short = value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
            counts.append(int(value.value.uiVal if is_short else value.value.ullVal))
        return tuple(counts)


class _MomentaryPcie:
    """PCIe throughput as NVML measures it itself: over 20 ms, while the caller waits, one direction at a time.

    A sample is of the interval since the sample before: a row without rates marks where NVML's 20 ms begin.
    """

    def __init__(self, gpu: str, handle: Any) -> None:
        def reader(name: str, counter: int) -> Reader:
            read = pynvml.nvmlDeviceGetPcieThroughput
            return Reader(gpu, name, lambda: float(read(handle, counter)) * 1000.0)  # KB/s

        self._tx = reader("pcie_tx", pynvml.NVML_PCIE_UTIL_TX_BYTES)
        self._rx = reader("pcie_rx", pynvml.NVML_PCIE_UTIL_RX_BYTES)

    def __call__(self) -> list[Rates]:
        began_ns = time.time_ns()
        tx = self._tx()
        between_ns = time.time_ns()
        rx = self._rx()
        if self._tx.is_missing and self._rx.is_missing:
            return []
        tx, rx = (_NAN if value is None else value for value in (tx, rx))
        return [(began_ns, _NAN, _NAN), (between_ns, tx, _NAN), (time.time_ns(), _NAN, rx)]


_GPM_METRICS: Final[Mapping[int, str]] = {
    pynvml.NVML_GPM_METRIC_SM_UTIL: "sm",
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: "pcie_tx",
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: "pcie_rx",
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: "nvlink_tx",
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: "nvlink_rx",
}


class _Gpm:
    """GPU performance monitoring (Hopper and later): means over exactly the time between two calls."""

    def __init__(self, gpu: str, handle: Any) -> None:
        self._handle = handle
        self._before: Any = None
        self._spare: Any = None
        self._reader = Reader(gpu, "gpm", self._read)

        def ask() -> bool:
            return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)

        self.is_supported = Reader(gpu, "gpm", ask)() is True

    def __call__(self) -> dict[str, float]:
        """Return the means since the call before: percent of SMs, MiB/s; none at the first, or without GPM."""
        return (self._reader() or {}) if self.is_supported else {}

    def close(self) -> None:
        """Free the samples; a GPU that is gone may not allow it."""
        for sample in (self._before, self._spare):
            if sample is not None:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlGpmSampleFree(sample)
        self._before = self._spare = None

    def _read(self) -> dict[str, float]:
        sample = self._spare or pynvml.nvmlGpmSampleAlloc()
        self._spare = sample
        pynvml.nvmlGpmSampleGet(self._handle, sample)
        # NVML compares two samples: the older one is written over by the next call.
        self._before, self._spare = sample, self._before
        if self._spare is None:
            return {}
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_GPM_METRICS)
        asked.sample1, asked.sample2 = self._spare, self._before
        for at, metric in enumerate(_GPM_METRICS):
            asked.metrics[at].metricId = metric
        pynvml.nvmlGpmMetricsGet(asked)
        found = zip(_GPM_METRICS.values(), asked.metrics, strict=False)
        return {name: metric.value for name, metric in found if metric.nvmlReturn == pynvml.NVML_SUCCESS}


@dataclass(slots=True)
class GpuReading:
    """The values of a GPU at one time: rates by path, and columns of ``gpu_health``."""

    index: int
    time_ns: int
    rates: dict[str, list[Rates]] = field(default_factory=dict)
    health: dict[str, float] = field(default_factory=dict)


class Gpu:
    """Reads one GPU through NVML, which must be initialised.

    `index`: NVML's, in the order of PCI addresses. Raises pynvml.NVMLError if there is no such GPU, or it does not
    answer.
    """

    def __init__(self, index: int) -> None:
        self.index, self.name = index, f"gpu{index}"
        self.handle: Any = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self.handle))
        self._gpm = _Gpm(self.name, self.handle)
        self._rates = {} if self._gpm.is_supported else self._traffic_readers()
        self._health = self._health_readers()

    def read(self) -> GpuReading:
        """Read all values; raises `GpuGone`."""
        means = self._gpm()
        now_ns = time.time_ns()
        reading = GpuReading(self.index, now_ns)
        for path in ("pcie", "nvlink"):
            if f"{path}_tx" in means or f"{path}_rx" in means:
                tx, rx = (means.get(f"{path}_{way}", _NAN) * _MIB for way in ("tx", "rx"))
                reading.rates[path] = [(now_ns, tx, rx)]
        reading.rates |= {path: read() for path, read in self._rates.items()}
        values = {name: read() for name, read in self._health.items()}
        if "sm" in means:
            values["sm_active_ratio"] = means["sm"] / 100.0
        reading.health = {name: value for name, value in values.items() if value is not None}
        return reading

    def close(self) -> None:
        """Free the memory that NVML allocated."""
        self._gpm.close()

    def _traffic_readers(self) -> dict[str, Callable[[], list[Rates]]]:
        pcie_fields = [pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES]
        pcie = _FieldRates(self.name, "pcie_bytes", self.handle, pcie_fields, 1)
        sent, received = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
        nvlink_fields = [(sent, _ALL_LINKS), (received, _ALL_LINKS)]
        # NVML counts PCIe in bytes, and NVLink in KiB.
        nvlink = _FieldRates(self.name, "nvlink_bytes", self.handle, nvlink_fields, 1024)
        pcie()  # the first call gives no rates, and shows whether there will be any
        return {"pcie": _MomentaryPcie(self.name, self.handle) if pcie.is_missing else pcie, "nvlink": nvlink}

    def _health_readers(self) -> dict[str, Callable[[], float | None]]:
        handle = self.handle

        def reader(name: str, read: Callable[[], Any]) -> Reader:
            return Reader(self.name, name, read)

        def errors(name: str, kind: int) -> _Growth:
            volatile = pynvml.NVML_VOLATILE_ECC
            return _Growth(reader(name, lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, volatile)))

        def clock(name: str, kind: int) -> Reader:
            return reader(name, lambda: pynvml.nvmlDeviceGetClockInfo(handle, kind))

        def throttle_reasons() -> int:
            try:
                return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
            except pynvml.NVMLError_FunctionNotFound:  # drivers before 535 have the same under its old name
                return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

        def temperature() -> int:
            return int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))

        return {
            "sm_clock_mhz": clock("sm_clock_mhz", pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": clock("memory_clock_mhz", pynvml.NVML_CLOCK_MEM),
            "temperature_c": reader("temperature_c", temperature),
            "throttle_reasons": reader("throttle_reasons", throttle_reasons),
            "ecc_corrected": errors("ecc_corrected", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected": errors("ecc_uncorrected", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            "power_w": _Power(self.name, handle),
        }


class _Growth:
    """Growth of a count of errors since the call before; a count that fell was reset, and began at 0."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._before: int | None = None

    def __call__(self) -> int | None:
        count = self._reader()
        before, self._before = self._before, count
        if count is None or before is None:
            return None
        return int(count - before if count >= before else count)


class _Power:
    """Mean power since the call before, from the energy counter; where there is none, NVML's power of the moment."""

    def __init__(self, gpu: str, handle: Any) -> None:
        self._energy = Reader(gpu, "energy", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))  # mJ
        self._now = Reader(gpu, "power", lambda: pynvml.nvmlDeviceGetPowerUsage(handle))  # mW
        self._before: tuple[int, float] | None = None

    def __call__(self) -> float | None:
        energy, now_s = self._energy(), time.monotonic()
        if energy is None:
            power = self._now()
            return None if power is None else power / 1000.0
        before, self._before = self._before, (energy, now_s)
        # NVML counts energy from the loading of the driver: a count that fell began anew.
        if before is None or energy < before[0] or now_s <= before[1]:
            return None
        return (energy - before[0]) / 1000.0 / (now_s - before[1])


# Seconds after which a GPU that did not answer is tried again.
_RETRY_S: Final = 30.0
# Readings that may wait for `take`; beyond it the oldest are dropped.
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
        # As many as there are now: the thread goes on adding.
        for _ in range(len(self._readings)):
            reading = self._readings.popleft()
            owner, device = self._roster.gpus.get(reading.index), f"gpu{reading.index}"
            if owner is None:  # the rank has ended since
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
        if index not in self._gpus and time.monotonic() < self._retry_s.get(index, 0.0):
            return None
        try:
            if index not in self._gpus:
                gpu = self._gpus[index] = Gpu(index)
                if self._retry_s.pop(index, None) is not None:
                    _LOG.info("event=gpu_back device=%s uuid=%s", gpu.name, gpu.uuid)
                self.indices[_address(gpu.handle)] = index
                self.xids.watch(gpu)
            return self._gpus[index].read()
        except (pynvml.NVMLError, GpuGone) as error:
            if index in self._gpus:
                self._gpus.pop(index).close()
            if index not in self._retry_s:
                _LOG.error("event=gpu_gone device=gpu%d reason=%r", index, str(error))
            self._retry_s[index] = time.monotonic() + _RETRY_S
            return None

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
