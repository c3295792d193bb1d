"""Where process groups come from: those that exist, and those that are made later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

GLOO_THREADS: Final = 2
_IN_THREADS: Final = ("gloo", "mpi", "fake")


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A process group that this rank is a member of.

    Parameters
    ----------
    name
        Torch's name: unique among the groups that exist, but used again after they were destroyed.
    ranks
        Global, in the order of the group.
    device
        Type of the device on whose streams operators run, as NCCL's do; ``cpu`` where threads run them, as gloo's.
    lanes
        How many collectives of CPU tensors its backend runs at once.
    """

    process_group: Any
    name: str
    ranks: tuple[int, ...]
    description: str
    device: str
    lanes: int


class ProcessGroups:
    """Reports every group of this process once.

    Parameters
    ----------
    on_group
        Is told of each group; what it raises goes to `on_error`.
    """

    def __init__(self, on_group: Callable[[NewGroup], None], on_error: Callable[[Exception], None]) -> None:
        self._on_group, self._on_error = on_group, on_error
        self._originals: list[tuple[Any, str, Any]] = []

    def follow(self) -> None:
        """Report the groups that exist, and from now on those that are made."""
        import torch.distributed
        from torch.distributed import distributed_c10d as c10d

        places = ((c10d, "_new_process_group_helper"), (c10d, "split_group"), (torch.distributed, "split_group"))
        for module, name in places:
            if hasattr(module, name):
                self._originals.append((module, name, getattr(module, name)))
        for module, name, original in self._originals:
            setattr(module, name, self._reporting(original))
        for process_group in list(c10d._world.pg_map):
            self._report(process_group, None)

    def leave(self) -> None:
        """Put torch's functions back."""
        for module, name, original in self._originals:
            setattr(module, name, original)
        self._originals = []

    def _reporting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            ranks = kwargs.get("global_ranks_in_group", args[2] if len(args) > 2 else None)
            self._report(made[0] if isinstance(made, tuple) else made, ranks if isinstance(ranks, list) else None)
            return made

        return make

    def _report(self, process_group: Any, ranks: Sequence[int] | None) -> None:
        try:
            from torch.distributed import ProcessGroup

            if isinstance(process_group, ProcessGroup):
                self._on_group(_describe(process_group, ranks))
        except Exception as error:
            self._on_error(error)


def _describe(process_group: Any, ranks: Sequence[int] | None) -> NewGroup:
    from torch.distributed import distributed_c10d as c10d

    if process_group in c10d._world.pg_group_ranks:
        ranks = c10d.get_process_group_ranks(process_group)
    devices = [device.type for device in getattr(process_group, "_device_types", ())]
    return NewGroup(
        process_group,
        str(process_group.group_name),
        tuple(ranks or range(process_group.size())),
        str(getattr(process_group, "group_desc", "")),
        next((device for device in devices if device != "cpu" and _is_on_stream(process_group, device)), "cpu"),
        _lanes(process_group, devices),
    )


def _is_on_stream(process_group: Any, device: str) -> bool:
    import torch

    return process_group._get_backend(torch.device(device)).name() not in _IN_THREADS


def _lanes(process_group: Any, devices: list[str]) -> int:
    import torch

    if "cpu" not in devices:
        return 1
    options = getattr(process_group._get_backend(torch.device("cpu")), "options", None)
    return max(1, int(getattr(options, "_threads", GLOO_THREADS)))
