"""Iterations of jobs that mark none, inferred from their operators.

Start at `inference.py` (a whole recording) or `online.py` (a running job); `inferring_source.py` stands before a
source.
"""
