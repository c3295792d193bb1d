"""Traces of the PyTorch profiler.

Start at `kineto_trace.py` (one file); `job.py` joins those of a job's ranks.
"""
