"""Logs of NCCL Inspector.

Start at `lines.py` (one process); `job.py` joins those of a job's processes, `live.py` reads them as they grow.
"""
