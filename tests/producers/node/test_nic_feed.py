from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from irregulars.producers.node.counters import UNREADABLE
from irregulars.producers.node.nic_feed import NicFeed, NicSampler, Tick
from irregulars.producers.node.roster import Owner, Roster
from irregulars.producers.node.sysfs import Nic, find_nic
from tests.producers.node.conftest import lines
from tests.producers.node.sysfs_trees import Sysfs
from tests.waiting import wait_for

FIRST, SECOND = Owner("job", 0, 1), Owner("job", 0, 4)


@pytest.fixture
def sampler() -> Iterator[NicSampler]:
    made = NicSampler(0.002)
    yield made
    made.close()


def nics(sysfs: Sysfs, *names: str) -> dict[str, Nic]:
    found = {name: find_nic(name, sysfs.root) for name in names}
    return {name: nic for name, nic in found.items() if nic is not None}


class Reads:
    """All ticks that were taken so far."""

    def __init__(self, sampler: NicSampler) -> None:
        self.sampler, self.ticks = sampler, list[Tick]()

    def last(self) -> Tick:
        self.ticks += self.sampler.take()
        return self.ticks[-1] if self.ticks else ((), [])


def test_counters_are_read_again_and_again(sysfs: Sysfs, sampler: NicSampler) -> None:
    counters = sysfs.rdma("mlx5_0")
    sysfs.interface("eth0")
    sampler.watch(nics(sysfs, "mlx5_0", "eth0"))
    reads = Reads(sampler)
    wait_for(lambda: len(reads.last()[0]) == 2)
    with (counters / "port_xmit_data").open("r+") as file:  # in place: sysfs is never empty in between
        file.write("18446744073709551614\n")
    wait_for(lambda: reads.last()[1][1] == 2**64 - 2)
    names, values = reads.last()
    assert names == ("mlx5_0", "eth0")
    assert values[2:3] + values[4:] == [0, 0, 0]
    times_ns = [values[0] for _, values in reads.ticks]
    assert np.all(np.diff(times_ns) > 0)


def test_a_counter_that_breaks_is_named_once_and_the_others_go_on(
    sysfs: Sysfs, sampler: NicSampler, caplog: pytest.LogCaptureFixture
) -> None:
    broken = sysfs.rdma("mlx5_0") / "port_rcv_data"
    sysfs.rdma("mlx5_1")
    sampler.watch(nics(sysfs, "mlx5_0", "mlx5_1"))
    reads = Reads(sampler)
    wait_for(lambda: len(reads.last()[0]) == 2)
    broken.write_text("")  # what is no number any more
    wait_for(lambda: reads.last()[0] == ("mlx5_1",))
    lost = next(values for names, values in reads.ticks if len(names) == 2 and UNREADABLE in values)
    assert lost[1:3] == [UNREADABLE, UNREADABLE]
    assert lost[4:] == [0, 0]
    assert len(lines(caplog, "nic_unreadable")) == 1
    assert "device=mlx5_0" in lines(caplog, "nic_unreadable")[0]


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file or directory"), ("", "invalid literal")])
def test_a_nic_that_can_t_be_read_is_named_once_and_leaves_no_descriptor_behind_and_the_others_are_read(
    sysfs: Sysfs, sampler: NicSampler, caplog: pytest.LogCaptureFixture, content: str | None, reason: str
) -> None:
    counters = sysfs.rdma("mlx5_0")
    sysfs.rdma("mlx5_1")
    wanted = nics(sysfs, "mlx5_0", "mlx5_1")
    if content is None:
        (counters / "port_rcv_data").unlink()
    else:  # opens, and is no number: as the counters of some cards whose link is down
        (counters / "port_rcv_data").write_text(content)
    sampler.watch(wanted)
    reads = Reads(sampler)
    wait_for(lambda: reads.last()[0] != () and len(reads.ticks) > 20)
    assert {names for names, _ in reads.ticks} == {("mlx5_1",)}
    [line] = lines(caplog, "nic_unreadable")
    assert reason in line
    open_files = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            open_files.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    assert not any(path.startswith(str(counters)) for path in open_files)


def test_a_slow_sampler_ends_long_before_its_next_read() -> None:
    slow = NicSampler(3600.0)
    closing = threading.Thread(target=slow.close, daemon=True)
    closing.start()
    wait_for(lambda: not closing.is_alive())


class Script:
    """A sampler that was told what it reads."""

    def __init__(self) -> None:
        self.ticks: list[Tick] = []
        self.watched: list[str] = []
        self.closes = 0

    def watch(self, nics: object) -> None:
        self.watched = list(nics)  # type: ignore[call-overload]

    def take(self) -> list[Tick]:
        ticks, self.ticks = self.ticks, []
        return ticks

    def close(self) -> None:
        self.closes += 1


def feed(sysfs: Sysfs, owners: dict[str, Owner]) -> tuple[NicFeed, Roster, Script]:
    """A feed of NICs that ranks have, and that are watched from now on."""
    roster, script = Roster("host"), Script()
    for name, owner in owners.items():
        sysfs.rdma(name)
        roster.assign(owner, None, name)
    made = NicFeed(roster, partial(find_nic, sysfs=sysfs.root), script)
    assert made.take() == []
    return made, roster, script


def test_a_nic_that_several_ranks_share_is_one_device(sysfs: Sysfs) -> None:
    made, roster, script = feed(sysfs, {"mlx5_0": FIRST})
    roster.assign(SECOND, None, "mlx5_0")
    assert made.take() == []
    assert script.watched == ["mlx5_0"]
    script.ticks = [(("mlx5_0",), [at * 10**7, at * 1000, 0]) for at in range(4)]
    [samples] = made.take()
    assert (samples.owner, samples.device) == (FIRST, "mlx5_0")
    np.testing.assert_allclose(samples.rates, [[400_000.0, 0.0]] * 3)


def test_a_nic_comes_and_another_goes(sysfs: Sysfs) -> None:
    sysfs.rdma("mlx5_1")
    made, roster, script = feed(sysfs, {"mlx5_0": FIRST})
    script.ticks = [(("mlx5_0",), [1, 0, 0]), (("mlx5_0",), [10**7 + 1, 10, 0])]
    roster.assign(SECOND, None, "mlx5_1")
    found = made.take()
    assert script.watched == ["mlx5_0", "mlx5_1"]
    script.ticks = [(("mlx5_0", "mlx5_1"), [2 * 10**7 + 1, 20, 0, 2 * 10**7, 5, 5])]
    found += made.take()
    assert [(s.device, s.times_ns.tolist()) for s in found] == [
        ("mlx5_0", [10**7 + 1]),
        ("mlx5_0", [2 * 10**7 + 1]),
        ("mlx5_1", []),
    ]


def test_a_nic_of_nobody_is_named_once_odd_properties_are_unknown(
    sysfs: Sysfs, caplog: pytest.LogCaptureFixture
) -> None:
    made, roster, _ = feed(sysfs, {})
    for owner, name in ((FIRST, "mlx5_9"), (SECOND, "mlx5_8")):
        roster.assign(owner, None, name)
        made.take()
    assert [text.split()[1] for text in lines(caplog, "nic_missing")] == ["device=mlx5_9", "device=mlx5_8"]
    for name, speed in (("eth0", "²³"), ("eth1", "9" * 5000), ("eth2", "\udcff")):
        sysfs.interface(name)
        (sysfs.root / "class" / "net" / name / "speed").write_text(speed, errors="surrogateescape")
        found = find_nic(name, sysfs.root)
        assert found is not None
        assert found.capacity_bytes_per_s is None
    sysfs.rdma("mlx5_0", rate="1.2.3.4 Gb/sec")
    assert find_nic("mlx5_0", sysfs.root) is not None


@pytest.mark.parametrize("count", [-1, -(2**40), 2**64, 10**23])
def test_a_count_that_no_counter_has_is_unknown_and_named_once(
    sysfs: Sysfs, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    made, _, script = feed(sysfs, {"mlx5_0": FIRST, "mlx5_1": SECOND})
    names, values = ("mlx5_0", "mlx5_1"), [[at * 10**7, at * 10, 0, at * 10**7, at * 10, 0] for at in range(4)]
    values[1][4] = values[2][4] = count
    script.ticks = [(names, one) for one in values]
    whole, broken = made.take()
    np.testing.assert_allclose(whole.rates[:, 0], [4000.0] * 3)
    assert np.isnan(broken.rates[:, 0]).all()
    assert lines(caplog, "nic_unreadable") == [
        f"event=nic_unreadable device=mlx5_1 reason='a counter must be below 2^64; got {count}'"
    ]


@pytest.mark.parametrize("name", ["../../../etc", "..", ".", "a/b", "n" * 300, "é" * 200, "\ud800", "n\0", ""])
def test_a_name_that_no_nic_has_is_looked_for_nowhere(sysfs: Sysfs, name: str) -> None:
    sysfs.interface("eth0")
    assert find_nic(name, sysfs.root) is None
    assert find_nic("eth0", sysfs.root) is not None
