"""The network of one recording: a namespace and a NIC for each rank, bridges as switches, and shaping with ``tc``.

All of it lives in network namespaces without a name, that of this process and those of the ranks: the kernel takes
them down when the last process in them ends, whatever ended it.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterable, Sequence
from typing import IO, Final

from irregulars.errors import ServiceUnavailable
from tests.benchmarks.recordings.layout import Layout

LINE_MBIT: Final = 10_000
"""Rate of a healthy port, Mbit/s: above what processes can send here, so that only a fault is ever felt."""

GUARANTEED_MBIT: Final = 1
"""What each destination is sure of, Mbit/s: beside it all share the rate of the NIC."""

_JUMBO: Final = "mtu 9000 gso_max_segs 1"
"""Packets as on a fast network. Larger ones, which the kernel cuts at the last moment, pass a slow class whole."""

_NEW_NETWORK: Final = 0x4000_0000  # CLONE_NEWNET of linux/sched.h
_CALL_S: Final = 20.0


def enter_new_namespace() -> None:
    """Move this process to a network namespace of its own, in which there is nothing but ``lo``.

    Raises
    ------
    OSError
        If it may not: root may.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare(CLONE_NEWNET): {os.strerror(number)}")


class Network:
    """Switches in this process's namespace, and a NIC in that of each rank.

    Parameters
    ----------
    layout
        Which rank hangs on which switch.
    processes
        Process of each rank; each is in a network namespace of its own.
    """

    def __init__(self, layout: Layout, processes: Sequence[int]) -> None:
        self._layout, self._processes = layout, processes
        self._shells: dict[tuple[int | None, str], subprocess.Popen[str]] = {}

    def build(self) -> None:
        """Make bridges, NICs and the queues that faults change later."""
        run_batch(["ip"], build_commands(self._layout, self._processes))
        ranks = range(self._layout.world_size)
        fabric = [line for rank in ranks for line in shape_commands(port(rank), ())]
        for leaf in range(self._layout.leaves):
            fabric += [*shape_commands(f"up{leaf}", ()), *shape_commands(f"down{leaf}", ())]
        run_batch(["tc"], fabric)
        for rank in ranks:
            inside = ["nsenter", "-t", str(self._processes[rank]), "-n"]
            run_batch([*inside, "ip"], nic_commands(self._layout, rank))
            others = [self._layout.address(other) for other in ranks if other != rank]
            run_batch([*inside, "tc"], shape_commands(self._layout.nic(rank), others))

    def open_shell(self, rank: int | None, program: str) -> None:
        """Start a program that takes commands later, so that nothing needs to start then.

        Parameters
        ----------
        rank
            In whose namespace; None: in that of the switches.
        program
            ``tc`` or ``ip``.
        """
        if (rank, program) not in self._shells:
            prefix = [] if rank is None else ["nsenter", "-t", str(self._processes[rank]), "-n"]
            self._shells[rank, program] = subprocess.Popen(
                [*prefix, program, "-batch", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )

    def tell(self, rank: int | None, program: str, lines: Iterable[str]) -> None:
        """Have an open program run lines."""
        stdin = _piped(self._shells[rank, program].stdin)
        stdin.write("".join(f"{line}\n" for line in lines))
        stdin.flush()

    def close(self) -> None:
        """End the programs.

        Raises
        ------
        ServiceUnavailable
            If one of them refused a command: then the fault was never there.
        """
        errors = []
        for (_, program), shell in self._shells.items():
            try:
                _, error = shell.communicate(timeout=_CALL_S)
            except subprocess.TimeoutExpired:
                shell.kill()
                _, error = shell.communicate()
            if shell.returncode != 0:
                errors.append(f"{program}: {' '.join(error.split()) or shell.returncode}")
        self._shells = {}
        if errors:
            raise ServiceUnavailable(f"tc and ip must take their commands; one did not: {errors[0]}")


def port(rank: int) -> str:
    """Name the switch's port that a rank's NIC is plugged into."""
    return f"port{rank}"


def build_commands(layout: Layout, processes: Sequence[int]) -> list[str]:
    """Give the lines for ``ip -batch`` that make the switches and plug the ranks in."""
    lines = ["link set lo up", "link add spine type bridge", "link set spine mtu 9000 up"]
    for leaf in range(layout.leaves):
        lines += [
            f"link add leaf{leaf} type bridge", f"link set leaf{leaf} mtu 9000 up",
            f"link add up{leaf} {_JUMBO} type veth peer name down{leaf} {_JUMBO}",
            f"link set up{leaf} master leaf{leaf} up", f"link set down{leaf} master spine up",
        ]  # fmt: skip
    for rank, process in enumerate(processes):
        lines += [
            f"link add {port(rank)} {_JUMBO} type veth peer name {layout.nic(rank)} {_JUMBO} netns {process}",
            f"link set {port(rank)} master leaf{layout.leaf_number(rank)} up",
        ]
    return lines


def nic_commands(layout: Layout, rank: int) -> list[str]:
    """Give the lines for ``ip -batch`` that bring a rank's NIC up."""
    nic = layout.nic(rank)
    return ["link set lo up", f"address add {layout.address(rank)}/24 dev {nic}", f"link set {nic} up"]


def shape_commands(device: str, destinations: Sequence[str]) -> list[str]:
    """Give the lines for ``tc -batch`` that queue all that leaves through a device, at line rate.

    Class 1:1 holds everything. Below it, 1:2 takes what has no class of its own, and each destination has one: its
    last number + 16. These are guaranteed little and borrow from 1:1, so that its rate is that of the device.
    """
    lines = [
        f"qdisc add dev {device} root handle 1: htb default 2",
        f"class add dev {device} parent 1: classid 1:1 htb {_rate(LINE_MBIT, LINE_MBIT)}",
        f"class add dev {device} parent 1:1 classid 1:2 htb {_rate(GUARANTEED_MBIT, LINE_MBIT)}",
    ]
    for address in destinations:
        id = f"1:{_class_of(address):x}"
        match = f"protocol ip parent 1: prio 1 u32 match ip dst {address}/32 flowid {id}"
        lines.append(f"class add dev {device} parent 1:1 classid {id} htb {_rate(GUARANTEED_MBIT, LINE_MBIT)}")
        lines.append(f"filter add dev {device} {match}")
    return lines


def rate_commands(device: str, mbit: float, addresses: Sequence[str] = ()) -> list[str]:
    """Give the lines for ``tc -batch`` that set the rate of a device, or of what it sends to some addresses.

    >>> rate_commands("eth0", 80, ["10.77.0.4"])[0][:50]
    'class change dev eth0 parent 1:1 classid 1:14 htb '
    """
    if not addresses:
        return [f"class change dev {device} parent 1: classid 1:1 htb {_rate(mbit, mbit)}"]
    rate = _rate(min(GUARANTEED_MBIT, mbit), mbit)
    return [f"class change dev {device} parent 1:1 classid 1:{_class_of(one):x} htb {rate}" for one in addresses]


def _class_of(address: str) -> int:
    return int(address.rsplit(".", 1)[1]) + 16


def _rate(mbit: float, ceil_mbit: float) -> str:
    burst_kb = 16 if ceil_mbit < LINE_MBIT else 1_024
    return f"rate {mbit:g}mbit ceil {ceil_mbit:g}mbit burst {burst_kb}kb cburst {burst_kb}kb quantum 60000"


def run_batch(program: Sequence[str], lines: Sequence[str]) -> None:
    """Run lines with ``ip`` or ``tc``, the last word of `program`.

    Raises
    ------
    ServiceUnavailable
        If it refuses one.
    """
    text = "".join(f"{line}\n" for line in lines)
    command = [*program, "-batch", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_CALL_S, check=False)
    if done.returncode != 0:
        raise ServiceUnavailable(f"{program[-1]} must take its commands; it did not: {' '.join(done.stderr.split())}")


def _piped(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
