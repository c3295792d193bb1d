"""A node's GPUs and NICs as a source of samples.

Start at `node_source.py`, then `nic_feed.py` and `gpu.py`; `roster.py` knows which ranks live here.
"""
