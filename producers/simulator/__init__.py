"""Simulated training jobs with known faults, for the demo, the tests and the benchmarks.

In the order of the data: the job (`settings.py`, `faults.py`, `topology.py`, `network.py`), the calls
of its ranks (`calls.py`, `schedule.py`, `plan.py`), how long that takes with faults (`engine.py`, `effects.py`,
`noise.py`, `untidiness.py`), and the records that its ranks would send (`source.py`, `rows.py`,
`truth.py`).
"""
