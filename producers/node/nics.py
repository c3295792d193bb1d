"""NICs of a host in sysfs: what they are called, where they sit, which files count their bytes."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from irregulars.producers.node.pci import SYSFS, PciPlace, place_of

_LOG: Final = logging.getLogger("irregulars.agent")
_GBIT: Final = 1e9 / 8
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) Gb/sec")
_NAME: Final = re.compile(r"(?!\.\.?$)[^/\0]{1,255}")
_LONGEST_COUNT: Final = 24  # 20 digits and a line feed


@dataclass(frozen=True, slots=True)
class Nic:
    """One NIC and its counters.

    Parameters
    ----------
    name
        As in ``/sys/class/infiniband``, else as in ``/sys/class/net``.
    tx, rx
        The files that count what was sent and received.
    unit_bytes
        Bytes that one count stands for.
    capacity_bytes_per_s
        Of the link, per direction; None: it does not say.
    place
        In the PCI tree; None: not on it.
    """

    name: str
    tx: Path
    rx: Path
    unit_bytes: int
    capacity_bytes_per_s: float | None
    place: PciPlace | None


def find_nics(sysfs: Path = SYSFS) -> dict[str, Nic]:
    """Find all NICs of the host by name: RDMA devices, and network interfaces that are not another face of one.

    RDMA traffic passes the network interface by: where a device has both, the RDMA device's counters are the ones
    that see the training job.
    """
    rdma = [nic for device in _sorted(sysfs / "class" / "infiniband") for nic in _rdma_ports(device)]
    taken = {nic.place.path for nic in rdma if nic.place is not None}
    interfaces = [_interface(path) for path in _sorted(sysfs / "class" / "net") if (path / "device").exists()]
    others = [nic for nic in interfaces if nic.place is None or nic.place.path not in taken]
    return {nic.name: nic for nic in (*rdma, *others)}


def find_nic(name: str, sysfs: Path = SYSFS) -> Nic | None:
    """Find one by its name, also an interface without hardware (``lo``, a bridge); None: there is none."""
    if not _NAME.fullmatch(name):  # an announcement may say anything
        return None
    found = find_nics(sysfs).get(name)
    path = sysfs / "class" / "net" / name
    return _interface(path) if found is None and path.exists() else found


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
        files = _rdma_files(port)
        if files is None:
            _LOG.warning("event=counters_missing device=%s reason='no byte counters in %s'", name, port)
        else:
            found.append(Nic(name, *files, _rdma_capacity(port), place_of(device / "device")))
    return found


def _rdma_files(port: Path) -> tuple[Path, Path, int] | None:
    """InfiniBand's own counters count words of 4 bytes; some vendors (EFA) count bytes, under ``hw_counters``."""
    for folder, tx, rx, unit in (
        ("counters", "port_xmit_data", "port_rcv_data", 4),
        ("hw_counters", "tx_bytes", "rx_bytes", 1),
    ):
        if (port / folder / tx).exists():
            return port / folder / tx, port / folder / rx, unit
    return None


def _rdma_capacity(port: Path) -> float | None:
    match = _RATE.search(_text(port / "rate"))
    return float(match[1]) * _GBIT if match and float(match[1]) > 0 else None


def _interface(path: Path) -> Nic:
    speed = _text(path / "speed")  # Mb/s; -1, or no answer, where the link is down
    capacity = float(speed) * 1e6 / 8 if re.fullmatch(r"[0-9]{1,9}", speed) and int(speed) > 0 else None
    folder = path / "statistics"
    return Nic(path.name, folder / "tx_bytes", folder / "rx_bytes", 1, capacity, place_of(path / "device"))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):  # not there, or no text
        return ""


class CounterFiles:
    """The two counters of a NIC, open: one system call reads one.

    Parameters
    ----------
    nic
        Whose counters.

    Raises
    ------
    OSError
        If one can't be opened.
    """

    def __init__(self, nic: Nic) -> None:
        self.nic = nic
        self.tx = os.open(nic.tx, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.rx = os.open(nic.rx, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(self.tx)
            raise

    def close(self) -> None:
        """Close both."""
        os.close(self.tx)
        os.close(self.rx)


def read_count(descriptor: int) -> int:
    """Read a counter; raises `OSError` where the device is gone, `ValueError` where it is no number."""
    return int(os.pread(descriptor, _LONGEST_COUNT, 0))
