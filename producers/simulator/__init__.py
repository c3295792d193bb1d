"""Simulated training jobs with known faults, for the demo, the tests and the benchmarks.

In the order of the data: what a job is (`settings.py`, `presets.py`, `faults.py`, `topology.py`, `network.py`), what
its ranks call (`calls.py`, `schedule.py`, `plan.py`), how long that takes with faults (`engine.py`, `effects.py`,
`noise.py`, `untidiness.py`, `bandwidth.py`), and what its ranks would send (`source.py`, `rows.py`, `truth.py`).
"""
