"""Detectors that can be exchanged: the protocol, the checks each must pass, and those that ship.

Start at `protocol.py`; `baseline.py` is the shortest example, `loading.py` finds yours by name.
"""
