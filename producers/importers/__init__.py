"""Files of other tools as trace directories or as a live source.

Start at `importing.py`; a room for each tool: `kineto`, `nccl_inspector`, `flight_recorder`, `clog`. `following.py`
reads files while they grow.
"""
