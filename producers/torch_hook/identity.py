"""The rank of this process and where it runs, from torchrun, Slurm and the script; and the id of the job's start."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

# Of the variables that are set the first counts: ours, then those of torchrun, then those of Slurm.
_ATTEMPTS = ("TORCH_COMMS_ATTEMPT", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_JOBS = ("TORCH_COMMS_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


@dataclass(frozen=True, slots=True)
class Identity:
    """A rank's place in the job; `None` where it is not known."""

    # job, attempt: The same on all ranks
    job: str
    attempt: int = 0
    host: str = field(default_factory=socket.gethostname)
    gpu: int | None = None
    nic: str | None = None
    switch: str | None = None
    local_world_size: int | None = None  # ranks on this host

    def clock(self, world_size: int) -> str:
        """Return ``shared`` if all ranks read one clock, since they run on one host; else ``per_host``."""
        return "shared" if self.local_world_size == world_size else "per_host"


def identity_of(
    job: str | None,
    nic: str | None,
    switch: str | None,
    environment: Mapping[str, str] = os.environ,
    *,
    has_gpus: bool = True,
) -> Identity:
    """Return the identity by the arguments and, where they are None, by the variables that the launcher set.

    ``has_gpus``: whether the machine has any: on one without, a local rank is no GPU's index.

    >>> identity_of(None, None, None, {"SLURM_JOB_ID": "17", "LOCAL_RANK": "3"}).job
    '17'
    >>> identity_of("mine", "mlx5_0", None, {"LOCAL_RANK": "3"}).gpu
    3
    >>> identity_of("mine", "eth0", None, {"LOCAL_RANK": "3"}, has_gpus=False).gpu is None
    True
    >>> identity_of(None, None, None, {"TORCH_COMMS_HOST": "node-7"}).host
    'node-7'
    """
    # torchrun calls a run ``none`` that was given no id.
    named = next((environment[name] for name in _JOBS if environment.get(name, "none") not in ("", "none")), None)
    return Identity(
        job=job or named or "training",
        attempt=next((n for name in _ATTEMPTS if (n := _integer(environment, name)) is not None), 0),
        host=environment.get("TORCH_COMMS_HOST") or socket.gethostname(),  # a container's host name is not the node's
        gpu=_gpu(environment) if has_gpus else None,
        nic=nic or environment.get("TORCH_COMMS_NIC"),
        switch=switch or environment.get("TORCH_COMMS_SWITCH"),
        local_world_size=_integer(environment, "LOCAL_WORLD_SIZE"),
    )


def machine_has_gpus(devices: Path = Path("/dev")) -> bool:
    """Whether this machine has GPUs of NVIDIA (also below Windows) or AMD, by their device files.

    False in a container that has GPU 2 and 3 of the machine: its processes count them as 0 and 1, so that no index
    that they know is the machine's.
    """
    found = (path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*"))
    indices = sorted(int(name) for name in found if name.isdecimal())
    if indices:
        return indices == list(range(len(indices)))
    return any((devices / name).exists() for name in ("kfd", "dxg"))


# Lists of the GPUs that a process may see, each of those in the one behind it
_VISIBLE: Final = (("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), ("ROCR_VISIBLE_DEVICES",))


def _gpu(environment: Mapping[str, str]) -> int | None:
    """Return the GPU's index on the host: a launcher counts only those that the process may see. None: not known.

    >>> [_gpu({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": text}) for text in ("4,5", "6", "GPU-8f2a,GPU-91c0", "")]
    [5, 6, None, 1]

    Where each process has a control group with its GPU alone, that is 0 in all of them:

    >>> [_gpu({"SLURM_LOCALID": rank, "CUDA_VISIBLE_DEVICES": "0"}) for rank in "0123"]
    [0, None, None, None]
    >>> of_amd = {"LOCAL_RANK": "1", "ROCR_VISIBLE_DEVICES": "4,5"}
    >>> _gpu(of_amd), _gpu(of_amd | {"HIP_VISIBLE_DEVICES": "1,0"})
    (5, 4)
    """
    local_rank = _integer(environment, "LOCAL_RANK", "SLURM_LOCALID")
    if local_rank is None:
        return None
    listed = (next(filter(None, (_listed(environment, name) for name in names)), []) for names in _VISIBLE)
    lists = [own for own in listed if own]
    at = local_rank
    if lists and len(lists[0]) == 1:  # a launcher may show each process its own GPU alone
        if lists[0] == ["0"] and local_rank > 0:
            return None
        at = 0
    seen = [at]
    for own in lists:
        if at >= len(own) or (index := _integer({"seen": own[at]}, "seen")) is None:
            return None
        at, seen = index, [int(one) for one in own if one.isascii() and one.isdigit()]
    return _of_step(environment, at, seen)


def _of_step(environment: Mapping[str, str], index: int, seen: Sequence[int]) -> int | None:
    """Return the index on the host of one that counts from 0 on in Slurm's control group; None: it may be two.

    Slurm's own list has the indices on the host. ``seen``: those that the process may use, counted as `index` is.

    >>> [_of_step({"SLURM_STEP_GPUS": own}, 1, [0, 1]) for own in ("4,5", "0,1,2,3", "1,2", "")]
    [5, 1, 2, 1]
    >>> _of_step({"SLURM_STEP_GPUS": "4,5"}, 5, [4, 5]), _of_step({"SLURM_STEP_GPUS": "1,2,3"}, 1, [1])
    (5, None)
    """
    own = _listed(environment, "SLURM_STEP_GPUS")
    if "SLURM_STEP_ID" not in environment:  # steps on all hosts inherit that of the batch script
        own = own or _listed(environment, "SLURM_JOB_GPUS")
    if not own or not all(one.isascii() and one.isdigit() for one in own):
        return index
    of_host = list(map(int, own))
    found = {index} if set(seen) <= set(of_host) else set()
    if max(seen) < len(of_host):
        found.add(of_host[index])
    # Neither where the script has set the list anew, of other GPUs than Slurm's.
    return index if not found else found.pop() if len(found) == 1 else None


def _listed(environment: Mapping[str, str], name: str) -> list[str]:
    return [text.strip() for text in environment.get(name, "").split(",") if text.strip()]


def _integer(environment: Mapping[str, str], *names: str) -> int | None:
    texts = (environment.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isascii() and text.isdigit()), None)


_START_KEY: Final = "irregulars/start/"
_PROCESSES_KEY: Final = "irregulars/processes/"
_WAIT_S: Final = 5.0  # the store answers within a millisecond. One that has gone would block until its own timeout.


class Start(NamedTuple):
    """A start of the job, as a rank's process finds it."""

    id: str | None = None  # the same on all ranks; None: the store of the process group does not answer
    # Whether the rank asked before in this start: then by another process, or before the group was resized
    is_again: bool = False


def agreed_start(attempt: int, rank: int) -> Start:
    """Return the start whose id the first rank that asks put into the store of the process group.

    Any rank may be the first: no rank waits for another, and no collective is needed. A connection of our own leaves
    that of the training alone. A new launcher has a new store; torchrun keeps its own when it starts the ranks again,
    and counts that as an attempt, but where nodes came or went: a rank asks again then in one start.
    """
    found: list[Start] = []

    def ask() -> None:
        with suppress(Exception):  # of the store: whichever it is, training goes on
            from torch import distributed
            from torch.distributed import distributed_c10d as c10d

            world: Any = distributed.group.WORLD
            # Versions of torch differ: not all groups give their store, and not all stores can be cloned.
            store: Any = world.get_group_store() if hasattr(world, "get_group_store") else c10d._get_default_store()
            store = store.clone() if hasattr(store, "clone") else store
            id = store.compare_set(f"{_START_KEY}{attempt}", "", uuid4().hex).decode()
            found.append(Start(id, store.add(f"{_PROCESSES_KEY}{attempt}/{rank}", 1) > 1))

    asking = threading.Thread(target=ask, name="irregulars-start", daemon=True)
    asking.start()
    asking.join(_WAIT_S)
    return found[0] if found else Start()
