"""One GPU through NVML: its traffic over PCIe and NVLink, and its health.

One reader for each kind of value, since each may be missing: hardware, driver and rights decide which can be read. A
missing value is logged once, and is unknown from then on.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from irregulars.producers.node.counters import UNREADABLE, CounterTrack

with warnings.catch_warnings():
    # The package `pynvml` warns that its code is in `nvidia-ml-py` today. It installs that, and that is what we use.
    warnings.simplefilter("ignore", FutureWarning)
    import pynvml

__all__ = ["Gpu", "GpuGone", "GpuReading", "Rates", "Reader", "pynvml"]

_LOG: Final = logging.getLogger("irregulars.agent")
_MIB: Final = float(1 << 20)
_ALL_LINKS: Final = 2**32 - 1
_NAN: Final = math.nan
_NEVER: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)
"""Answers that will not change while we run."""

_MOST: Final = 2**63  # a GPU that falls off its bus answers with all bits set, before NVML reports that it is lost
Rates = tuple[int, float, float]
"""End of an interval, ns since the epoch; bytes/s sent and received in it, NaN: not known."""


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

        def temperature() -> int:
            return int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))

        return {
            "sm_clock_mhz": clock("sm_clock_mhz", pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": clock("memory_clock_mhz", pynvml.NVML_CLOCK_MEM),
            "temperature_c": reader("temperature_c", temperature),
            "throttle_reasons": reader("throttle_reasons", lambda: _throttle_reasons(handle)),
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
        if before is None or energy < before[0] or now_s <= before[1]:
            return None
        return (energy - before[0]) / 1000.0 / (now_s - before[1])


def _throttle_reasons(handle: Any) -> int:
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError_FunctionNotFound:  # drivers before 535 have the same under its old name
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
