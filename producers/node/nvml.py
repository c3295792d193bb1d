"""Readers of one GPU through NVML, one for each kind of value, since each may be missing.

Hardware, driver and rights decide what can be read. What can't is named once, and is unknown from then on; a GPU that
is gone is named once, and looked for again now and then.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np

from irregulars.producers.node.counters import UNREADABLE, CounterTrack

with warnings.catch_warnings():
    # The package `pynvml` warns that its code is in `nvidia-ml-py` today. It installs that, and that is what we use.
    warnings.simplefilter("ignore", FutureWarning)
    import pynvml

__all__ = ["FieldRates", "Gpm", "GpuGone", "MomentaryPcie", "Rates", "Reader", "field_values", "pynvml"]

_LOG: Final = logging.getLogger("irregulars.agent")
_NEVER: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)  # fmt: skip
"""Answers that will not change while we run."""

_MOST: Final = 2**63
"""A GPU that falls off its bus answers with all bits set, before NVML says that it is lost."""

Rates = tuple[int, float, float]
"""End of an interval, ns since the epoch; bytes/s sent and received in it, NaN: not known."""


class GpuGone(Exception):
    """The GPU does not answer any more."""


class Reader:
    """Reads one kind of thing of one GPU, as long as it can be read.

    Parameters
    ----------
    gpu, name
        For the log.
    read
        Asks NVML.
    """

    def __init__(self, gpu: str, name: str, read: Callable[[], Any]) -> None:
        self._gpu, self._name, self._read = gpu, name, read
        self.is_missing = False
        self._has_failed = False

    def __call__(self) -> Any:
        """Return what NVML says; None where it says nothing. Raises `GpuGone`."""
        if self.is_missing:
            return None
        try:
            value = self._read()
        except pynvml.NVMLError as error:
            self._note(error)
            return None
        if isinstance(value, int) and not 0 <= value < _MOST:
            self._say(f"no such number: {value}")
            return None
        self._has_failed = False
        return value

    def _note(self, error: Any) -> None:
        if error.value in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNINITIALIZED):
            raise GpuGone(str(error))
        self.is_missing = error.value in _NEVER
        self._say(str(error))

    def _say(self, reason: str) -> None:
        if not self._has_failed:  # an error that may pass is told once until it has passed
            _LOG.warning("event=gpu_counter_missing device=%s counter=%s reason=%r", self._gpu, self._name, reason)
        self._has_failed = True


def field_values(handle: Any, *fields: int | tuple[int, int]) -> tuple[int, ...]:
    """Read cumulative fields; raises the error of the first that has one."""
    return tuple(_field_value(value) for value in pynvml.nvmlDeviceGetFieldValues(handle, list(fields)))


def _field_value(value: Any) -> int:
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    if value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(value.value.uiVal)
    return int(value.value.ullVal)


class FieldRates:
    """Rates of two cumulative fields: bytes sent and received."""

    def __init__(self, gpu: str, name: str, read: Callable[[], tuple[int, ...]], unit_bytes: int) -> None:
        self._reader = Reader(gpu, name, read)
        self._track = CounterTrack(gpu, unit_bytes, None)

    @property
    def is_missing(self) -> bool:
        """Whether it can't be read at all."""
        return self._reader.is_missing

    def __call__(self) -> list[Rates]:
        """Return the rates since the call before; nothing at the first."""
        now_ns = time.time_ns()
        counts = self._reader() or (UNREADABLE, UNREADABLE)
        times_ns, rates = self._track.rates(np.array([now_ns]), np.array([counts], dtype=np.uint64))
        return [(int(t), float(tx), float(rx)) for t, (tx, rx) in zip(times_ns, rates, strict=True)]


class MomentaryPcie:
    """PCIe throughput as NVML measures it itself: over 20 ms, while the caller waits, one direction at a time.

    A sample is of the interval since the sample before: a row without rates marks where NVML's 20 ms begin.
    """

    def __init__(self, gpu: str, handle: Any) -> None:
        self._tx = Reader(gpu, "pcie_tx", lambda: _pcie(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES))
        self._rx = Reader(gpu, "pcie_rx", lambda: _pcie(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES))

    @property
    def is_missing(self) -> bool:
        """Whether neither direction can be read."""
        return self._tx.is_missing and self._rx.is_missing

    def __call__(self) -> list[Rates]:
        """Measure: takes 40 ms."""
        nan = float("nan")
        began_ns = time.time_ns()
        tx = self._tx()
        between_ns = time.time_ns()
        rx = self._rx()
        rows = [(began_ns, nan, nan), (between_ns, _known(tx), nan), (time.time_ns(), nan, _known(rx))]
        return [] if self.is_missing else rows


def _pcie(handle: Any, counter: int) -> float:
    return float(pynvml.nvmlDeviceGetPcieThroughput(handle, counter)) * 1000.0  # KB/s


def _known(value: float | None) -> float:
    return float("nan") if value is None else value


_GPM_METRICS: Final[Mapping[int, str]] = {
    pynvml.NVML_GPM_METRIC_SM_UTIL: "sm",
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: "pcie_tx",
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: "pcie_rx",
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: "nvlink_tx",
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: "nvlink_rx",
}


class Gpm:
    """GPU performance monitoring (Hopper and later): means over exactly the time between two calls."""

    def __init__(self, gpu: str, handle: Any) -> None:
        self._handle = handle
        self._before: Any = None
        self._spare: Any = None
        self._reader = Reader(gpu, "gpm", self._read)
        self.is_supported = Reader(gpu, "gpm", self._ask)() is True

    def __call__(self) -> dict[str, float]:
        """Return the means since the call before: percent of SMs, MiB/s; nothing at the first, or without GPM."""
        return (self._reader() or {}) if self.is_supported else {}

    def close(self) -> None:
        """Free the samples, as far as a GPU that may be gone lets us."""
        for sample in (self._before, self._spare):
            if sample is not None:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlGpmSampleFree(sample)
        self._before = self._spare = None

    def _ask(self) -> bool:
        return bool(pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)

    def _read(self) -> dict[str, float]:
        sample = self._spare or pynvml.nvmlGpmSampleAlloc()
        self._spare = sample
        pynvml.nvmlGpmSampleGet(self._handle, sample)
        self._before, self._spare = sample, self._before
        return {} if self._spare is None else self._means()

    def _means(self) -> dict[str, float]:
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_GPM_METRICS)
        asked.sample1, asked.sample2 = self._spare, self._before
        for place, metric in enumerate(_GPM_METRICS):
            asked.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(asked)
        found = zip(_GPM_METRICS.values(), asked.metrics, strict=False)
        return {name: metric.value for name, metric in found if metric.nvmlReturn == pynvml.NVML_SUCCESS}
