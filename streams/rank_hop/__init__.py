"""The first hop: one rank's rows become one evidence row for each iteration.

Start at `group_monitor.py`, then `rank_monitor.py` and `rank_attempt.py`: rows wait in `pending_rows.py` until their
iteration is complete (`closing_times.py`), and `evidence_reduction.py` makes evidence of it.
"""
