"""GPUs and NICs of a host in sysfs: their names, their places in the PCI tree, and the files that count bytes."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

_LOG: Final = logging.getLogger("irregulars.agent")
SYSFS: Final = Path("/sys")
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"
_GBIT: Final = 1e9 / 8
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")
_NAME: Final = re.compile(r"(?!\.\.?(:|$))[^/\0]+")
_MOST_NAME_BYTES: Final = 255  # NAME_MAX of Linux: a longer part of a path is an error, and not a missing file


@dataclass(frozen=True, slots=True)
class PciPlace:
    """A device's way from the root of the PCI tree."""

    path: tuple[str, ...]  # the root (``pci0000:00``), the bridges, and the device's own address
    numa_node: int | None = None  # none: the host does not report it


def place_of(device: Path) -> PciPlace | None:
    """Return the place of a device by its ``device`` link or folder in sysfs; None: it is not on a PCI bus."""
    resolved = device.resolve()
    parts = [part for part in resolved.parts if part.startswith("pci") or _ADDRESS.fullmatch(part)]
    if not any(_ADDRESS.fullmatch(part) for part in parts):
        return None
    # From a port or interface up to its PCI device.
    while not _ADDRESS.fullmatch(resolved.name):
        resolved = resolved.parent
    # -1 where the firmware names no node.
    node = text_of(resolved / "numa_node")
    return PciPlace(tuple(parts), int(node) if re.fullmatch(r"[0-9]{1,9}", node) else None)


def find_gpus(sysfs: Path = SYSFS) -> dict[int, PciPlace]:
    """Return NVIDIA's GPUs, by index in the order of their addresses, which is NVML's."""
    found = []
    for device in sorted((sysfs / "bus" / "pci" / "devices").glob("*")):
        if text_of(device / "vendor") == _NVIDIA and text_of(device / "class").startswith(_DISPLAY_CLASS):
            found.append(place_of(device))
    return dict(enumerate(place for place in found if place is not None))


def nearest_nics(gpus: Mapping[int, PciPlace], nics: Mapping[str, PciPlace]) -> dict[int, str]:
    """Return for each GPU the nearest NIC.

    That is the one with the longest shared way from the root of the PCI tree, else one of the same NUMA node.

    GPUs for which several NICs are equally near take turns. A GPU that shares neither a bridge nor a NUMA node with
    any has none.
    """
    nearest: dict[int, str] = {}
    turns: dict[tuple[str, ...], int] = {}
    for index in sorted(gpus):
        candidates = _nearest(gpus[index], nics)
        if candidates:
            turn = turns.get(candidates, 0)
            turns[candidates] = turn + 1
            nearest[index] = candidates[turn % len(candidates)]
    return nearest


def _nearest(gpu: PciPlace, nics: Mapping[str, PciPlace]) -> tuple[str, ...]:
    shared = {  # lengths of the ways from the root that a NIC shares with the GPU
        name: len(list(takewhile(lambda pair: pair[0] == pair[1], zip(gpu.path, nic.path, strict=False))))
        for name, nic in nics.items()
    }
    best = max(shared.values(), default=0)
    if best <= 1:  # the root alone; more than it is a switch, or a root port
        same_node = [
            name for name, nic in nics.items() if nic.numa_node is not None and nic.numa_node == gpu.numa_node
        ]
        if same_node or not best:
            return tuple(sorted(same_node))
    return tuple(sorted(name for name, depth in shared.items() if depth == best))


@dataclass(frozen=True, slots=True)
class Nic:
    """One NIC and its counters."""

    name: str  # as in ``/sys/class/infiniband``, else as in ``/sys/class/net``
    # tx, rx: The files that count what was sent and received
    tx: Path
    rx: Path
    unit_bytes: int  # bytes that one count stands for
    capacity_bytes_per_s: float | None  # of the link, per direction; None: it is not reported
    place: PciPlace | None  # in the PCI tree; None: not on it


def find_nics(sysfs: Path = SYSFS) -> dict[str, Nic]:
    """Return all NICs of the host by name: RDMA devices, and network interfaces that are not another face of one.

    RDMA traffic bypasses the network interface: where a device has both, the RDMA device's counters are the ones that
    count the training job's bytes.
    """
    rdma = [nic for device in _sorted(sysfs / "class" / "infiniband") for nic in _rdma_ports(device)]
    taken = {nic.place.path for nic in rdma if nic.place is not None}
    # An interface without a device is virtual: ``lo``, a bridge, a bond.
    interfaces = [_interface(path) for path in _sorted(sysfs / "class" / "net") if (path / "device").exists()]
    others = [nic for nic in interfaces if nic.place is None or nic.place.path not in taken]
    return {nic.name: nic for nic in (*rdma, *others)}


def find_nic(name: str, sysfs: Path = SYSFS) -> Nic | None:
    """Return a NIC by its name, also an interface without hardware (``lo``, a bridge); None: there is none."""
    if not is_name(name):
        return None
    found = find_nics(sysfs).get(name)
    path = sysfs / "class" / "net" / name
    return _interface(path) if found is None and path.exists() else found


def is_name(name: str) -> bool:
    """Return whether a NIC can have a name: an announcement may hold any text, and it becomes part of a path."""
    return _NAME.fullmatch(name) is not None and len(name.encode(errors="surrogatepass")) <= _MOST_NAME_BYTES


def _sorted(folder: Path) -> list[Path]:
    return sorted(folder.glob("*"), key=lambda path: _split(path.name))


def _split(name: str) -> list[tuple[int, str]]:
    """Split a name into text and numbers, so that mlx5_10 sorts behind mlx5_2.

    >>> _split("mlx5_10")
    [(0, 'mlx'), (5, ''), (0, '_'), (10, ''), (0, '')]
    """
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _rdma_ports(device: Path) -> list[Nic]:
    ports = _sorted(device / "ports")
    found = []
    for port in ports:
        name = device.name if len(ports) == 1 else f"{device.name}:{port.name}"
        # InfiniBand's own counters count words of 4 bytes; some vendors (EFA) count bytes, under `hw_counters`.
        if (port / "counters" / "port_xmit_data").exists():
            tx, rx, unit_bytes = port / "counters" / "port_xmit_data", port / "counters" / "port_rcv_data", 4
        elif (port / "hw_counters" / "tx_bytes").exists():
            tx, rx, unit_bytes = port / "hw_counters" / "tx_bytes", port / "hw_counters" / "rx_bytes", 1
        else:
            _LOG.warning("event=counters_missing device=%s reason='no byte counters in %s'", name, port)
            continue
        rate = _RATE.search(text_of(port / "rate"))
        capacity = float(rate[1]) * _GBIT if rate and float(rate[1]) > 0 else None
        found.append(Nic(name, tx, rx, unit_bytes, capacity, place_of(device / "device")))
    return found


def _interface(path: Path) -> Nic:
    speed = text_of(path / "speed")  # Mb/s; -1, or no answer, where the link is down
    capacity = float(speed) * 1e6 / 8 if re.fullmatch(r"[0-9]{1,9}", speed) and int(speed) > 0 else None
    folder = path / "statistics"
    return Nic(path.name, folder / "tx_bytes", folder / "rx_bytes", 1, capacity, place_of(path / "device"))


def text_of(path: Path) -> str:
    """Return the text of a small file, empty where there is none."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):  # not there, or no text
        return ""
