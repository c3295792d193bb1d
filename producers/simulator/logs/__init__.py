"""What the ranks of a simulated job would send, and the truth about it.

Start at `source.py`; `rows.py` makes batches of a run, `label.py` the truth.
"""
