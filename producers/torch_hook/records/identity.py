"""Who this rank is and where it lives, from what torchrun, Slurm and the script say."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_ATTEMPTS = ("TORCH_COMMS_ATTEMPT", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_JOBS = ("TORCH_COMMS_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


@dataclass(frozen=True, slots=True)
class Identity:
    """A rank's place in the job; `None` where it is not known.

    Parameters
    ----------
    job, attempt
        The same on all ranks.
    local_world_size
        Ranks on this host.
    """

    job: str
    attempt: int = 0
    host: str = field(default_factory=socket.gethostname)
    gpu: int | None = None
    nic: str | None = None
    switch: str | None = None
    local_world_size: int | None = None

    def clock(self, world_size: int) -> str:
        """Say whether all ranks read one clock: those of one host do."""
        return "shared" if self.local_world_size == world_size else "per_host"


def identity_of(
    job: str | None,
    nic: str | None,
    switch: str | None,
    environment: Mapping[str, str] = os.environ,
    *,
    has_gpus: bool = True,
) -> Identity:
    """Put together what the call says and what the launcher set.

    ``has_gpus`` says whether the machine has any: on one without, a local rank is no GPU's index.

    >>> identity_of(None, None, None, {"SLURM_JOB_ID": "17", "LOCAL_RANK": "3"}).job
    '17'
    >>> identity_of("mine", "mlx5_0", None, {"LOCAL_RANK": "3"}).gpu
    3
    >>> identity_of("mine", "eth0", None, {"LOCAL_RANK": "3"}, has_gpus=False).gpu is None
    True
    >>> identity_of(None, None, None, {"TORCH_COMMS_HOST": "node-7"}).host
    'node-7'
    """
    named = next((environment[name] for name in _JOBS if environment.get(name, "none") not in ("", "none")), None)
    return Identity(
        job=job or named or "training",
        attempt=next((n for name in _ATTEMPTS if (n := _integer(environment, name)) is not None), 0),
        host=environment.get("TORCH_COMMS_HOST") or socket.gethostname(),  # a container's own name is no node's
        gpu=_gpu(environment) if has_gpus else None,
        nic=nic or environment.get("TORCH_COMMS_NIC"),
        switch=switch or environment.get("TORCH_COMMS_SWITCH"),
        local_world_size=_integer(environment, "LOCAL_WORLD_SIZE"),
    )


def machine_has_gpus(devices: Path = Path("/dev")) -> bool:
    """Tell whether this machine has GPUs of NVIDIA (also below Windows) or AMD, without asking their drivers."""
    return any(devices.glob("nvidia[0-9]*")) or any((devices / name).exists() for name in ("kfd", "dxg"))


def _gpu(environment: Mapping[str, str]) -> int | None:
    """Find the GPU's index on the host: a launcher counts those that the process may see.

    >>> [_gpu({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": text}) for text in ("4,5", "6", "GPU-8f2a,GPU-91c0", "")]
    [5, 6, None, 1]
    """
    local_rank = _integer(environment, "LOCAL_RANK", "SLURM_LOCALID")
    visible = [text.strip() for text in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if text.strip()]
    if local_rank is None or not visible:
        return local_rank
    place = local_rank if len(visible) > 1 else 0  # a launcher may show each process its own GPU alone
    return _integer({"seen": visible[place]}, "seen") if place < len(visible) else None


def _integer(environment: Mapping[str, str], *names: str) -> int | None:
    texts = (environment.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isascii() and text.isdigit()), None)
