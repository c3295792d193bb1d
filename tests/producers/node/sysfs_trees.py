"""Trees like sysfs in a temporary folder: PCI devices, InfiniBand ports, network interfaces."""

from __future__ import annotations

from pathlib import Path


class Sysfs:
    """A tree that grows by calls.

    `root`: an empty folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def pci(self, *path: str, vendor: str = "0x15b3", kind: str = "0x020700", numa_node: int = -1) -> Path:
        """Add a PCI device; `path` are the addresses from the root, the device's own last."""
        device = self.root / "devices" / "pci0000:00" / Path(*path)
        device.mkdir(parents=True, exist_ok=True)
        for name, text in (("vendor", vendor), ("class", kind), ("numa_node", str(numa_node))):
            (device / name).write_text(f"{text}\n")
        bus = self.root / "bus" / "pci" / "devices"
        bus.mkdir(parents=True, exist_ok=True)
        (bus / path[-1]).symlink_to(device)
        return device

    def gpu(self, *path: str, numa_node: int = -1) -> Path:
        return self.pci(*path, vendor="0x10de", kind="0x030200", numa_node=numa_node)

    def rdma(self, name: str, device: Path | None = None, rate: str = "400 Gb/sec (4X NDR)", ports: int = 1) -> Path:
        """Add an RDMA device; returns the folder of the counters of its first port."""
        folder = self.root / "class" / "infiniband" / name
        for port in range(1, ports + 1):
            counters = folder / "ports" / str(port) / "counters"
            counters.mkdir(parents=True)
            (counters.parent / "rate").write_text(f"{rate}\n")
            (counters / "port_xmit_data").write_text("0\n")
            (counters / "port_rcv_data").write_text("0\n")
        if device is not None:
            (folder / "device").symlink_to(device)
        return folder / "ports" / "1" / "counters"

    def interface(self, name: str, device: Path | None = None, speed: str = "100000") -> Path:
        """Add a network interface; returns the folder of its counters."""
        folder = self.root / "class" / "net" / name
        statistics = folder / "statistics"
        statistics.mkdir(parents=True)
        (folder / "speed").write_text(f"{speed}\n")
        (statistics / "tx_bytes").write_text("0\n")
        (statistics / "rx_bytes").write_text("0\n")
        if device is not None:
            (folder / "device").symlink_to(device)
        return statistics
