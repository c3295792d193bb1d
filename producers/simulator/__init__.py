"""Simulated training jobs with known faults, for the demo, the tests and the benchmarks.

Rooms in the order of the data: `job` (what it is), `program` (what its ranks call), `run` (what that takes, with
faults), `logs` (what its ranks would send). Start at `job/settings.py`.
"""
