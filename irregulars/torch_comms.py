"""Log what a training process communicates: ``from irregulars import torch_comms``."""

from irregulars.producers.torch_comms import (
    follow,
    iteration,
    lost_rows,
    moved,
    name_group,
    phase,
    report,
    start,
    stop,
    undelivered_rows,
)

__all__ = [
    "follow",
    "iteration",
    "lost_rows",
    "moved",
    "name_group",
    "phase",
    "report",
    "start",
    "stop",
    "undelivered_rows",
]
