"""Runs a job iteration by iteration by its true dependencies, with faults and noise.

Start at `engine.py`; `effects.py` says what faults do.
"""
