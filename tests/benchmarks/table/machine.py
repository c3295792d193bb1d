"""What the machine is, and how quick today: figures of another day or machine can be held against these."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.apache_kafka.jars import POM

_PACKAGES: Final = ("faust-streaming", "aiokafka", "confluent-kafka", "pyarrow", "numpy", "clickhouse-connect")
_TRIES: Final = 5


def describe() -> dict[str, Any]:
    """Return the machine as JSON values."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu": cpu_model(),
        "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
        "versions": versions(),
        "load": round(os.getloadavg()[0], 1),
        "python_loop_s": quickest_s(python_loop),
        "numpy_loop_s": quickest_s(numpy_loop),
    }


def cpu_model() -> str:
    """Return the processor's name as Linux tells it, without doubled blanks."""
    found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return re.sub(r"\s+", " ", found[1]).strip() if found else platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of what the figures depend on most."""
    kafka = re.search(r"<kafka.version>([\d.]+)</kafka.version>", POM.read_text())
    found = {"Python": platform.python_version(), "Apache Kafka": kafka[1] if kafka else "unknown"}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def quickest_s(loop: Callable[[], object]) -> float:
    """Return the least CPU seconds of some tries: other work can only add to it."""
    took_s = []
    for _ in range(_TRIES):
        began_s = time.process_time()
        loop()
        took_s.append(time.process_time() - began_s)
    return round(min(took_s), 4)


def python_loop() -> int:
    """Add and look up, as the interpreter does all day."""
    counts: dict[int, int] = {}
    for number in range(1_000_000):
        counts[number & 1023] = counts.get(number & 1023, 0) + number
    return sum(counts.values())


def numpy_loop() -> float:
    """Sort, sum by group and gather, as the first hop does."""
    rng = np.random.default_rng(1)
    values, groups = rng.random(1_000_000), rng.integers(0, 1000, 1_000_000)
    order = np.argsort(groups, kind="stable")
    return float(np.bincount(groups, values).sum() + values[order].cumsum()[-1])
