from __future__ import annotations

from dataclasses import replace

from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.producers.node.roster import Owner, Roster


def announced(rank: int, gpu: int | None = None, nic: str | None = None, attempt: int = 0) -> Announcement:
    return Announcement("job", attempt, rank, 8, 8, (), ("commops", "iterations"), gpu=gpu, nic=nic)


def test_an_announcement_is_completed_by_what_the_host_knows() -> None:
    roster = Roster("node-3", {1: "mlx5_1"}, gpus=range(8))
    found = roster.admit(announced(5, gpu=1))
    assert (found.host, found.nic) == ("node-3", "mlx5_1")
    assert found.sources == ("commops", "iterations", "bandwidth", "gpu_health")
    assert roster.gpus == {1: Owner("job", 0, 5)}
    assert roster.nics == {"mlx5_1": Owner("job", 0, 5)}


def test_nothing_is_promised_that_nobody_samples_and_what_a_rank_says_of_itself_stays() -> None:
    roster = Roster("node-3", {1: "mlx5_1"}, is_sampling_nics=False)
    assert roster.admit(announced(5, gpu=1)).sources == ("commops", "iterations")
    assert Roster("node-3", gpus=range(2)).admit(announced(5, gpu=2)).sources == ("commops", "iterations")
    said = replace(announced(5, gpu=1, nic="eth7"), host="elsewhere")
    found = Roster("node-3", {1: "mlx5_1"}).admit(said)
    assert (found.host, found.nic, found.sources) == ("elsewhere", "eth7", ("commops", "iterations", "bandwidth"))


def test_devices_belong_to_the_first_that_names_them_until_a_new_attempt() -> None:
    roster = Roster("node-3")
    sources = [roster.admit(announced(rank, nic="mlx5_0")).sources for rank in (4, 3, 4)]
    assert ["bandwidth" in one for one in sources] == [True, False, True]
    assert roster.nics == {"mlx5_0": Owner("job", 0, 4)}
    roster = Roster("node-3", gpus=range(8))
    roster.admit(announced(4, gpu=0, nic="mlx5_0"))
    found = roster.admit(announced(6, gpu=0, nic="mlx5_0", attempt=1))
    assert found.sources == ("commops", "iterations", "bandwidth", "gpu_health")
    assert set(roster.nics.values()) == set(roster.gpus.values()) == {Owner("job", 1, 6)}


def test_who_has_ended_has_no_devices() -> None:
    roster = Roster("node-3", gpus=range(8))
    for rank in (4, 5):
        roster.admit(announced(rank, gpu=rank, nic=f"mlx5_{rank}"))
    roster.release(Heartbeat("job", 0, 4, state="ended"))
    assert set(roster.nics) == {"mlx5_5"}
    assert set(roster.gpus) == {5}
