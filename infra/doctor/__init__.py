"""Finds faults of an installation, one line each. Start at `diagnosis.py`."""
