"""What one simulated job is: shape, cluster, network, noise and faults.

Start at `settings.py`; `faults.py` reads faults from text, `presets.py` says how untidy a job is.
"""
