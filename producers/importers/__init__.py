"""Files and services of other tools as trace directories or as a live source.

Start at `importing.py`. A tool's files begin with its name: `kineto_…` (PyTorch's profiler), `inspector_…`
(NCCL Inspector), `flight_recorder.py`, `ras_…` (NCCL's RAS service). `following.py` reads files while they grow.
"""
