from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from irregulars.messages.records import PATHS, THROTTLE_REASONS
from irregulars.producers.node.gpu import Gpu, GpuFeed, GpuReading, Reader, count_gpus, pynvml
from irregulars.producers.node.roster import HealthSample, Owner, Roster, Samples
from tests.producers.node.conftest import lines
from tests.producers.node.nvml_stub import NvmlStub
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]
OWNER = Owner("job", 0, 5)
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
FORBIDDEN = pynvml.NVML_ERROR_NO_PERMISSION


def read(index: int = 0, times: int = 1) -> list[GpuReading]:
    """Readings of a GPU, one behind the other."""
    with closing(Gpu(index)) as gpu:
        return [gpu.read() for _ in range(times)]


def test_state_is_read_with_its_units(nvml: NvmlStub) -> None:
    nvml.set(1, sm_clock=1980, memory_clock=2619, temperature=71, reasons=0x20 | 0x4, energy=10_000_000)
    gpu = Gpu(1)
    gpu.read()
    nvml.set(1, energy=10_000_000 + 700_000_000)
    health = gpu.read().health
    gpu.close()
    assert (health["sm_clock_mhz"], health["memory_clock_mhz"], health["temperature_c"]) == (1980, 2619, 71)
    reasons = [name for bit, name in enumerate(THROTTLE_REASONS) if int(health["throttle_reasons"]) >> bit & 1]
    assert reasons == ["power_cap", "thermal"]
    assert health["power_w"] > 700, "700 kJ in the time between two looks"
    assert gpu.uuid == "GPU-stub-1"


def test_new_ecc_errors_are_told_and_a_reset_begins_anew(nvml: NvmlStub) -> None:
    nvml.set(0, ecc_corrected=7, ecc_uncorrected=0)
    gpu = Gpu(0)
    assert "ecc_corrected" not in gpu.read().health, "errors before the first look are not new"
    nvml.set(0, ecc_corrected=9, ecc_uncorrected=1)
    health = gpu.read().health
    assert (health["ecc_corrected"], health["ecc_uncorrected"]) == (2, 1)
    nvml.set(0, ecc_corrected=3)
    assert gpu.read().health["ecc_corrected"] == 3
    gpu.close()


def test_gpm_gives_means_of_the_time_between_two_looks(nvml: NvmlStub) -> None:
    nvml.set(0, gpm=1, gpm_02=87.5, gpm_20=1000, gpm_21=500, gpm_61=20_000, gpm_60=10_000)
    first, reading = read(times=2)
    assert first.rates == {}, "the first look ends no interval"
    assert reading.health["sm_active_ratio"] == 0.875
    mib = 1 << 20
    assert [row[1:] for row in reading.rates["pcie"]] == [(1000 * mib, 500 * mib)]
    assert [row[1:] for row in reading.rates["nvlink"]] == [(20_000 * mib, 10_000 * mib)]


def test_a_metric_that_gpm_lacks_is_left_out_and_the_rest_stays(nvml: NvmlStub) -> None:
    nvml.set(0, gpm=1, gpm_20=1000, gpm_21=500)
    _, reading = read(times=2)
    assert set(reading.rates) == {"pcie"}
    assert "sm_active_ratio" not in reading.health


def test_without_gpm_byte_counters_are_read(nvml: NvmlStub) -> None:
    nvml.set(0, field_197=1_000, field_198=2_000, field_138=10, field_139=20)
    gpu = Gpu(0)
    first = gpu.read()
    nvml.set(0, field_197=1_000 + 5_000_000, field_198=2_000, field_138=10 + 4_000, field_139=20)
    time.sleep(0.01)
    second = gpu.read()
    gpu.close()
    (began_ns, _, _), (ended_ns, tx, rx) = first.rates["pcie"][-1], second.rates["pcie"][-1]
    assert tx == pytest.approx(5_000_000 / ((ended_ns - began_ns) / 1e9))
    assert rx == 0
    assert second.rates["nvlink"][-1][1] > 4_000 * 1024, "NVLink counts in KiB; less than a second has passed"


def test_without_counters_nvmls_own_twenty_milliseconds_are_a_sample_of_that_length(nvml: NvmlStub) -> None:
    nvml.set(0, pcie_tx=3_000, pcie_rx=2_000)
    rows = read()[0].rates["pcie"]
    assert [math.isnan(row[1]) for row in rows] == [True, False, True]
    assert (rows[1][1], rows[2][2]) == (3_000_000, 2_000_000)
    assert rows[0][0] <= rows[1][0] <= rows[2][0]


def test_a_counter_without_permission_is_named_once_alone(nvml: NvmlStub, caplog: pytest.LogCaptureFixture) -> None:
    nvml.set(0, sm_clock=1000, reasons=4, fail_reasons=FORBIDDEN)
    readings = read(times=3)
    assert [reading.health["sm_clock_mhz"] for reading in readings] == [1000] * 3
    assert not any("throttle_reasons" in reading.health for reading in readings)
    named = [line for line in lines(caplog, "gpu_counter_missing") if "counter=throttle_reasons" in line]
    prefix = "event=gpu_counter_missing device=gpu0 counter=throttle_reasons"
    assert named == [f"{prefix} reason='Insufficient Permissions'"]


def test_an_error_that_passes_is_named_once_while_it_lasts(nvml: NvmlStub, caplog: pytest.LogCaptureFixture) -> None:
    nvml.set(0, temperature=50)
    gpu = Gpu(0)
    nvml.set(0, fail_temperature=pynvml.NVML_ERROR_UNKNOWN)
    assert "temperature_c" not in gpu.read().health
    assert "temperature_c" not in gpu.read().health
    nvml.set(0, fail_temperature=0)
    assert gpu.read().health["temperature_c"] == 50
    gpu.close()
    assert len([line for line in lines(caplog, "gpu_counter_missing") if "counter=temperature_c" in line]) == 1


def roster(gpus: dict[int, Owner]) -> Roster:
    made = Roster("host", gpus=range(8))
    for index, owner in gpus.items():
        made.assign(owner, index, None)
    return made


class Taken:
    """All that was taken from a feed."""

    def __init__(self, feed: GpuFeed) -> None:
        self.feed, self.samples, self.health = feed, list[Samples](), list[HealthSample]()

    def has(self, what: Callable[[Taken], bool]) -> bool:
        self.samples += self.feed.take()
        self.health += self.feed.take_health()
        return what(self)


@pytest.fixture
def two_gpus(nvml: NvmlStub) -> NvmlStub:
    for index in range(2):
        nvml.set(index, sm_clock=1000 + index, gpm=1, gpm_20=10, gpm_21=20)
    assert count_gpus() == 2
    return nvml


def test_samples_belong_to_the_rank_that_uses_the_gpu(two_gpus: NvmlStub) -> None:
    feed = GpuFeed(roster({1: OWNER}), 0.005)
    taken = Taken(feed)
    wait_for(lambda: taken.has(lambda t: len(t.samples) >= 3))
    feed.close()
    feed.close()
    assert {(s.owner, s.device, PATHS[s.path]) for s in taken.samples} == {(OWNER, "gpu1", "pcie")}
    assert {(h.owner, h.device, h.values["sm_clock_mhz"]) for h in taken.health} == {(OWNER, "gpu1", 1001)}


def test_a_gpu_that_vanishes_is_named_once_others_go_on(two_gpus: NvmlStub, caplog: pytest.LogCaptureFixture) -> None:
    feed = GpuFeed(roster({0: Owner("job", 0, 4), 1: OWNER}), 0.005)
    taken = Taken(feed)
    wait_for(lambda: taken.has(lambda t: {h.device for h in t.health} == {"gpu0", "gpu1"}))
    two_gpus.set(0, lost=LOST)
    wait_for(lambda: bool(lines(caplog, "gpu_gone")))
    before = len(taken.health)
    wait_for(lambda: taken.has(lambda t: sum(h.device == "gpu1" for h in t.health[before:]) >= 5))
    feed.close()
    assert lines(caplog, "gpu_gone") == ["event=gpu_gone device=gpu0 reason='GPU is lost'"]


def test_a_critical_error_is_a_row_of_its_own(two_gpus: NvmlStub, caplog: pytest.LogCaptureFixture) -> None:
    feed = GpuFeed(roster({0: OWNER, 1: Owner("job", 0, 6)}), 0.005)
    taken = Taken(feed)
    wait_for(lambda: taken.has(lambda t: len(t.health) >= 2))
    two_gpus.set(0, xid=79)
    wait_for(lambda: taken.has(lambda t: any("xid" in h.values for h in t.health)))
    feed.close()
    errors = [h for h in taken.health if "xid" in h.values]
    assert [(h.owner, h.device, h.values) for h in errors] == [(OWNER, "gpu0", {"xid": 79.0})]
    assert lines(caplog, "gpu_xid") == ["event=gpu_xid device=gpu0 xid=79"]


def test_no_gpus_and_no_driver_are_one_line(nvml: NvmlStub, caplog: pytest.LogCaptureFixture) -> None:
    nvml.reset(gpus=0)
    assert count_gpus() == 0
    assert lines(caplog, "no_gpus") == ["event=no_gpus reason='the driver finds none'"]
    done = subprocess.run([sys.executable, "-c", NO_DRIVER], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "event=no_gpus reason='NVML Shared Library Not Found'\n")


NO_DRIVER = """
import ctypes, ctypes.util, logging, sys
logging.basicConfig(format="%(message)s")
real = ctypes.CDLL
def nowhere(name, *rest, **more):
    if name == "libnvidia-ml.so.1":
        raise OSError("as on a host without the driver")
    return real(name, *rest, **more)
ctypes.CDLL = nowhere
from irregulars.producers.node.gpu import count_gpus
print(count_gpus())
"""


REAL = """
import json, sys, time
from irregulars.producers.node.gpu import Gpu
from irregulars.producers.node.gpu import count_gpus
if count_gpus() == 0:
    sys.exit(77)
gpu = Gpu(0)
gpu.read(); time.sleep(1.0)
reading = gpu.read()
print(json.dumps([gpu.uuid, reading.rates, reading.health]))
"""


@pytest.mark.gpu
def test_a_real_gpu_answers(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([sys.executable, "-c", REAL], cwd=ROOT, capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip("a GPU and NVIDIA's driver must be there; none is")
    assert done.returncode == 0, done.stderr
    uuid, rates, health = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n{uuid}: {rates} {health}")
    assert uuid.startswith("GPU-")
    assert 0 < health["sm_clock_mhz"] < 10_000
    assert 0 < health["temperature_c"] < 120
    assert 0 < health["power_w"] < 3_000
    assert set(rates) >= {"pcie"}


def test_power_is_that_of_the_moment_without_an_energy_counter(
    nvml: NvmlStub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    (reading,) = read()
    assert reading.health == {}
    assert [path for path, rows in reading.rates.items() if rows] == []
    nvml.set(0, power=312_500)
    assert read()[0].health["power_w"] == 312.5


def test_all_bits_set_is_no_count_and_told_once_until_it_has_passed(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([5, 2**64 - 1, 2**64 - 1, 7, 2**64 - 1])
    reader = Reader("gpu0", "ecc_corrected", lambda: next(answers))
    assert [reader() for _ in range(5)] == [5, None, None, 7, None]
    reason = f"reason='no such number: {2**64 - 1}'"
    line = f"event=gpu_counter_missing device=gpu0 counter=ecc_corrected {reason}"
    assert lines(caplog, "gpu_counter_missing") == [line] * 2
