"""Dumps of PyTorch's flight recorder: the operators around a hang.

Start at `dumps.py` (one rank); `job.py` joins them. `plain_pickle.py` reads pickles without running anything.
"""
