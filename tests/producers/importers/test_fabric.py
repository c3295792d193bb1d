"""Fabrics as ibnetdiscover, Slurm and a table describe them, and what ranks announce by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement, decode_announcement, encode_announcement
from irregulars.producers.importers.fabric import Fabric, read_fabric
from irregulars.producers.trace.job_file import read_job

SPINES = {"leaf-1": ("spine-1", "spine-2"), "leaf-2": ("spine-1", "spine-2")}
TABLE = """\
# below          above
node-0/mlx5_0    leaf-1
node-0/mlx5_1    leaf-2
node-1           leaf-1

leaf-1,spine-1
leaf-1,spine-2
leaf-2 spine-1
leaf-2 spine-2
"""
SLURM = """\
# topology/tree
SwitchName=leaf-1 Nodes=node-[0-1],login LinkSpeed=100
SwitchName=leaf-2 \\
    Nodes=node-02
switchname=spine-1 switches=leaf-[1-2]
SwitchName=spine-2 Switches=leaf-[1-2]
"""
# Two leafs below two spines, which are joined as well; the adapters of node-0 are on one leaf, those of node-1 on two
IBNETDISCOVER = """\
#
# Topology file: generated on Fri Nov 27 10:15:10 2026
#
vendid=0x2c9
devid=0xd2f0
switchguid=0x10(10)
Switch\t41 "S-0000000000000010"\t\t# "MF0;leaf-1:MQM8700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-0000000000000100"[1](101) \t\t# "node-0 mlx5_0" lid 11 4xHDR
[2]\t"H-0000000000000110"[1](111) \t\t# "node-0 mlx5_1" lid 12 4xHDR
[3]\t"H-0000000000000120"[1](121) \t\t# "node-1 mlx5_0" lid 13 4xHDR
[40]\t"S-0000000000000030"[1]\t\t# "MF0;spine-1:MQM8700/U1" lid 3 4xHDR
[41]\t"S-0000000000000040"[1]\t\t# "MF0;spine-2:MQM8700/U1" lid 4 4xHDR

Switch\t41 "S-0000000000000020"\t\t# "MF0;leaf-2:MQM8700/U1" enhanced port 0 lid 2 lmc 0
[1]\t"H-0000000000000130"[1](131) \t\t# "node-1 mlx5_1" lid 14 4xHDR
[40]\t"S-0000000000000030"[2]\t\t# "MF0;spine-1:MQM8700/U1" lid 3 4xHDR
[41]\t"S-0000000000000040"[2]\t\t# "MF0;spine-2:MQM8700/U1" lid 4 4xHDR

Switch\t41 "S-0000000000000030"\t\t# "MF0;spine-1:MQM8700/U1" enhanced port 0 lid 3 lmc 0
[1]\t"S-0000000000000010"[40]\t\t# "MF0;leaf-1:MQM8700/U1" lid 1 4xHDR
[2]\t"S-0000000000000020"[40]\t\t# "MF0;leaf-2:MQM8700/U1" lid 2 4xHDR
[3]\t"S-0000000000000040"[3]\t\t# "MF0;spine-2:MQM8700/U1" lid 4 4xHDR

Switch\t41 "S-0000000000000040"\t\t# "MF0;spine-2:MQM8700/U1" enhanced port 0 lid 4 lmc 0
[1]\t"S-0000000000000010"[41]\t\t# "MF0;leaf-1:MQM8700/U1" lid 1 4xHDR
[2]\t"S-0000000000000020"[41]\t\t# "MF0;leaf-2:MQM8700/U1" lid 2 4xHDR
[3]\t"S-0000000000000030"[3]\t\t# "MF0;spine-1:MQM8700/U1" lid 3 4xHDR

Ca\t1 "H-0000000000000100"\t\t# "node-0 mlx5_0"
[1](101) \t"S-0000000000000010"[1]\t\t# lid 11 lmc 0 "MF0;leaf-1:MQM8700/U1" lid 1 4xHDR

Ca\t1 "H-0000000000000110"\t\t# "node-0 mlx5_1"
[1](111) \t"S-0000000000000010"[2]\t\t# lid 12 lmc 0 "MF0;leaf-1:MQM8700/U1" lid 1 4xHDR

Ca\t1 "H-0000000000000120"\t\t# "node-1 mlx5_0"
[1](121) \t"S-0000000000000010"[3]\t\t# lid 13 lmc 0 "MF0;leaf-1:MQM8700/U1" lid 1 4xHDR

Ca\t1 "H-0000000000000130"\t\t# "node-1 mlx5_1"
[1](131) \t"S-0000000000000020"[1]\t\t# lid 14 lmc 0 "MF0;leaf-2:MQM8700/U1" lid 2 4xHDR
"""


def fabric_of(text: str, folder: Path) -> Fabric:
    path = folder / "fabric"
    path.write_text(text)
    return read_fabric(path)


def place(fabric: Fabric, host: str | None, nic: str | None, switch: str | None = None) -> Announcement:
    return fabric.place(Announcement("job", 0, 3, 8, 8, (), host=host, nic=nic, switch=switch))


@pytest.mark.parametrize(("text", "leaf_of", "skipped"), [
    (TABLE, {("node-0", "mlx5_0"): "leaf-1", ("node-0", "mlx5_1"): "leaf-2", ("node-1", None): "leaf-1"}, {}),
    (SLURM, {("node-0", None): "leaf-1", ("node-1", None): "leaf-1", ("login", None): "leaf-1",
             ("node-02", None): "leaf-2"}, {"key linkspeed": 1}),
    (IBNETDISCOVER, {("node-0", None): "leaf-1", ("node-0", "mlx5_0"): "leaf-1", ("node-0", "mlx5_1"): "leaf-1",
                     ("node-1", "mlx5_0"): "leaf-1", ("node-1", "mlx5_1"): "leaf-2"},
     {"link between switches of one level": 1}),
])  # fmt: skip
def test_each_form_tells_leafs_and_spines(
    tmp_path: Path, text: str, leaf_of: dict[tuple[str, str | None], str], skipped: dict[str, int]
) -> None:
    fabric = fabric_of(text, tmp_path)
    assert (fabric.leaf_of, fabric.above, fabric.skipped) == (leaf_of, SPINES, skipped)


def test_a_rank_gets_the_switch_of_its_nic_and_what_is_above_it(tmp_path: Path) -> None:
    fabric = fabric_of(TABLE, tmp_path)
    own = place(fabric, "node-0", "mlx5_1")
    assert (own.switch, own.fabric) == ("leaf-2", {"leaf-2": ("spine-1", "spine-2")})
    assert place(fabric, "node-1.example.org", "mlx5_7").switch == "leaf-1"
    assert place(fabric, "node-9", None).switch is None
    assert place(fabric, "node-0", "mlx5_1", switch="leaf-1").fabric == {"leaf-1": ("spine-1", "spine-2")}
    assert decode_announcement(encode_announcement(own)) == own


@pytest.mark.parametrize(("text", "reason"), [
    ("node-0 leaf-0\nnode-1\n", r"fabric, line 2: must be two names, below and above; got 'node-1'"),
    ("# nothing\n", r"fabric: must hold cables, output of ibnetdiscover, or Slurm's topology.conf; got none of them"),
    ("SwitchName=a Nodes=n[0-99999999]\n", r"line 1: must list names as node\[0-3,7\]; got 'n\[0-99999999\]'"),
    ("SwitchName=a Nodes=n[0-\n", r"line 1: must list names as node\[0-3,7\]; got 'n\[0-'"),
    ("SwitchName=a Nodes=n[0-999999]m[0-999999]\n", r"names must be at most 1048576 together; got more"),
])  # fmt: skip
def test_what_is_no_fabric_is_refused_in_one_line(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        fabric_of(text, tmp_path)


def test_a_job_file_tells_its_fabric() -> None:
    job = read_job(Path("tests/recordings/bench/tp2pp2dp2-spine"))
    assert job.fabric == {f"leaf-{number}": ("spine-0",) for number in range(4)}
