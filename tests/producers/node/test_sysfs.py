from __future__ import annotations

import pytest

from irregulars.producers.node.sysfs import PciPlace, find_gpus, find_nic, find_nics, nearest_nics, place_of
from tests.producers.node.sysfs_trees import Sysfs


def nearest(sysfs: Sysfs) -> dict[int, str]:
    nics = {name: nic.place for name, nic in find_nics(sysfs.root).items() if nic.place is not None}
    return nearest_nics(find_gpus(sysfs.root), nics)


def test_a_gpu_takes_the_nic_behind_its_own_switch(sysfs: Sysfs) -> None:
    for switch in range(4):
        bridge = f"0000:00:0{switch + 1}.0"
        sysfs.gpu(bridge, f"0000:{switch}1:00.0", f"0000:{switch}2:00.0")
        nic = sysfs.pci(bridge, f"0000:{switch}1:00.0", f"0000:{switch}3:00.0")
        sysfs.rdma(f"mlx5_{3 - switch}", nic)
    assert nearest(sysfs) == {0: "mlx5_3", 1: "mlx5_2", 2: "mlx5_1", 3: "mlx5_0"}


def test_gpus_that_are_equally_near_to_two_nics_take_turns(sysfs: Sysfs) -> None:
    for device in range(4):
        sysfs.gpu("0000:00:01.0", f"0000:1{device}:00.0")
    for device in range(2):
        sysfs.rdma(f"mlx5_{device}", sysfs.pci("0000:00:01.0", f"0000:2{device}:00.0"))
    assert nearest(sysfs) == {0: "mlx5_0", 1: "mlx5_1", 2: "mlx5_0", 3: "mlx5_1"}


def test_the_numa_node_decides_without_a_common_bridge_and_virtual_devices_sit_where_theirs_does(
    sysfs: Sysfs,
) -> None:
    sysfs.gpu("0000:00:01.0", "0000:11:00.0", numa_node=0)
    sysfs.gpu("0000:00:02.0", "0000:12:00.0", numa_node=1)
    sysfs.rdma("mlx5_0", sysfs.pci("0000:00:03.0", "0000:13:00.0", numa_node=1))
    sysfs.rdma("mlx5_1", sysfs.pci("0000:00:04.0", "0000:14:00.0", numa_node=0))
    assert nearest(sysfs) == {0: "mlx5_1", 1: "mlx5_0"}
    device = sysfs.pci("0000:00:05.0") / "virtio3"
    device.mkdir()
    assert place_of(device) == PciPlace(("pci0000:00", "0000:00:05.0"), None)


def test_gpus_are_numbered_by_address_as_nvml_does(sysfs: Sysfs) -> None:
    for address in ("0000:9a:00.0", "0000:18:00.0", "0001:03:00.0"):
        sysfs.gpu("0000:00:01.0", address)
    sysfs.pci("0000:00:02.0", "0000:01:00.0", vendor="0x8086", kind="0x030000")  # somebody else's graphics
    sysfs.pci("0000:00:02.0", "0000:02:00.0", vendor="0x10de", kind="0x068000")  # an NVSwitch
    found = [place.path[-1] for place in find_gpus(sysfs.root).values()]
    assert found == ["0000:18:00.0", "0000:9a:00.0", "0001:03:00.0"]


def test_no_nic_and_no_gpu_are_no_error(sysfs: Sysfs) -> None:
    assert nearest(sysfs) == {}
    sysfs.gpu("0000:00:01.0", "0000:11:00.0")
    assert nearest(sysfs) == {}


def test_an_interface_that_is_another_face_of_an_rdma_device_is_left_out(sysfs: Sysfs) -> None:
    shared, own = sysfs.pci("0000:00:01.0", "0000:11:00.0"), sysfs.pci("0000:00:02.0", "0000:12:00.0")
    sysfs.rdma("mlx5_0", shared)
    sysfs.interface("ens1", shared)
    sysfs.interface("eth0", own, speed="25000")
    sysfs.interface("lo", speed="")
    found = find_nics(sysfs.root)
    assert sorted(found) == ["eth0", "mlx5_0"]
    assert (found["eth0"].capacity_bytes_per_s, found["eth0"].unit_bytes) == (25e9 / 8, 1)
    assert (found["mlx5_0"].capacity_bytes_per_s, found["mlx5_0"].unit_bytes) == (400e9 / 8, 4)
    loopback = find_nic("lo", sysfs.root)
    assert loopback is not None
    assert loopback.capacity_bytes_per_s is None
    assert find_nic("nosuch", sysfs.root) is None


def test_ports_of_a_device_are_devices_of_their_own_and_come_in_order(sysfs: Sysfs) -> None:
    sysfs.rdma("mlx5_10")
    sysfs.rdma("mlx5_2", ports=2)
    assert list(find_nics(sysfs.root)) == ["mlx5_2:1", "mlx5_2:2", "mlx5_10"]


def test_counters_of_other_makers_are_found_none_are_named(sysfs: Sysfs, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("efa_0", "bare_0"):
        counters = sysfs.rdma(name)
        for file in counters.iterdir():
            file.unlink()
    hardware = sysfs.root / "class" / "infiniband" / "efa_0" / "ports" / "1" / "hw_counters"
    hardware.mkdir()
    (hardware / "tx_bytes").write_text("0\n")
    (hardware / "rx_bytes").write_text("0\n")
    found = find_nics(sysfs.root)
    assert {name: nic.unit_bytes for name, nic in found.items()} == {"efa_0": 1}
    assert len([text for text in caplog.messages if "event=counters_missing device=bare_0" in text]) == 1
