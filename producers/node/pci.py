"""Where GPUs and NICs sit in the PCI tree of a host, and which NIC is nearest to a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SYSFS: Final = Path("/sys")
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NVIDIA: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"


@dataclass(frozen=True, slots=True)
class PciPlace:
    """A device's way from the root of the PCI tree.

    Parameters
    ----------
    path
        The root (``pci0000:00``), the bridges, and the device's own address.
    numa_node
        None: the host does not say.
    """

    path: tuple[str, ...]
    numa_node: int | None = None


def place_of(device: Path) -> PciPlace | None:
    """Find the place of a device by its ``device`` link or folder in sysfs; None: it is not on a PCI bus."""
    resolved = device.resolve()
    parts = [part for part in resolved.parts if part.startswith("pci") or _ADDRESS.fullmatch(part)]
    if not any(_ADDRESS.fullmatch(part) for part in parts):
        return None
    while not _ADDRESS.fullmatch(resolved.name):
        resolved = resolved.parent
    node = _read(resolved / "numa_node")
    return PciPlace(tuple(parts), int(node) if re.fullmatch(r"[0-9]{1,9}", node) else None)


def find_gpus(sysfs: Path = SYSFS) -> dict[int, PciPlace]:
    """Find NVIDIA's GPUs, by index in the order of their addresses, which is NVML's."""
    found = []
    for device in sorted((sysfs / "bus" / "pci" / "devices").glob("*")):
        if _read(device / "vendor") == _NVIDIA and _read(device / "class").startswith(_DISPLAY_CLASS):
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
    shared = {name: _shared(gpu.path, nic.path) for name, nic in nics.items()}
    best = max(shared.values(), default=0)
    if best > 1:  # more than the root: a switch, or a root port
        return tuple(sorted(name for name, depth in shared.items() if depth == best))
    same_node = [name for name, nic in nics.items() if nic.numa_node is not None and nic.numa_node == gpu.numa_node]
    if same_node:
        return tuple(sorted(same_node))
    return tuple(sorted(name for name, depth in shared.items() if depth == best)) if best else ()


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):  # not there, or no text
        return ""
