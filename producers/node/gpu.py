"""One GPU: its traffic over PCIe and NVLink, and its health."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from irregulars.producers.node.nvml import FieldRates, Gpm, MomentaryPcie, Rates, Reader, field_values, pynvml

_MIB: Final = float(1 << 20)
_ALL_LINKS: Final = 2**32 - 1


@dataclass(slots=True)
class GpuReading:
    """What one look at a GPU gave: rates by path, and columns of ``gpu_health``."""

    index: int
    time_ns: int
    rates: dict[str, list[Rates]] = field(default_factory=dict)
    health: dict[str, float] = field(default_factory=dict)


class Gpu:
    """Reads one GPU through NVML, which must be initialised.

    Parameters
    ----------
    index
        NVML's, in the order of PCI addresses.

    Raises
    ------
    pynvml.NVMLError
        If there is no such GPU, or it does not answer.
    """

    def __init__(self, index: int) -> None:
        self.index, self.name = index, f"gpu{index}"
        self.handle: Any = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self.handle))
        self._gpm = Gpm(self.name, self.handle)
        self._rates = {} if self._gpm.is_supported else self._traffic_readers()
        self._state = self._state_readers()
        self._errors = {
            "ecc_corrected": self._new_errors("ecc_corrected", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected": self._new_errors("ecc_uncorrected", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        }
        self._power = _Power(self.name, self.handle)

    def read(self) -> GpuReading:
        """Look at the GPU; raises `producers.node.nvml.GpuGone`."""
        means = self._gpm()
        now_ns = time.time_ns()
        reading = GpuReading(self.index, now_ns, _gpm_rates(means, now_ns))
        for path, read in self._rates.items():
            reading.rates[path] = read()
        values = {name: reader() for name, reader in self._state.items()}
        values |= {name: read() for name, read in self._errors.items()}
        values |= {"power_w": self._power(), "sm_active_ratio": _ratio(means.get("sm"))}
        reading.health = {name: value for name, value in values.items() if value is not None}
        return reading

    def close(self) -> None:
        """Free what NVML gave."""
        self._gpm.close()

    def _traffic_readers(self) -> dict[str, Callable[[], list[Rates]]]:
        handle = self.handle
        pcie = FieldRates(
            self.name, "pcie_bytes",
            lambda: field_values(
                handle, pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
            ),
            1,
        )  # fmt: skip
        nvlink = FieldRates(
            self.name, "nvlink_bytes",
            lambda: field_values(
                handle,
                (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
                (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
            ),
            1024,
        )  # fmt: skip
        pcie()  # the first call gives no rates, and shows whether there will be any
        return {"pcie": MomentaryPcie(self.name, handle) if pcie.is_missing else pcie, "nvlink": nvlink}

    def _state_readers(self) -> dict[str, Reader]:
        handle = self.handle
        asked: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
            "throttle_reasons": lambda: _throttle_reasons(handle),
        }
        return {name: Reader(self.name, name, ask) for name, ask in asked.items()}

    def _new_errors(self, name: str, kind: int) -> Callable[[], int | None]:
        volatile = pynvml.NVML_VOLATILE_ECC
        return _Growth(
            Reader(self.name, name, lambda: pynvml.nvmlDeviceGetTotalEccErrors(self.handle, kind, volatile))
        )


class _Growth:
    """How much a count of errors grew since the call before; a count that fell was set back, and began anew."""

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


def _gpm_rates(means: dict[str, float], now_ns: int) -> dict[str, list[Rates]]:
    nan = float("nan")
    found = {}
    for path in ("pcie", "nvlink"):
        if f"{path}_tx" in means or f"{path}_rx" in means:
            tx, rx = (means.get(f"{path}_{way}", nan) * _MIB for way in ("tx", "rx"))
            found[path] = [(now_ns, tx, rx)]
    return found


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100.0
