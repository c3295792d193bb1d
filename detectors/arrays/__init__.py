"""What numpy lacks for rows that belong to groups: packed keys, and medians of many groups at once.

Start at `row_keys.py`; `grouped_medians.py` builds on it.
"""
