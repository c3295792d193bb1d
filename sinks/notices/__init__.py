"""What people and machines are told about verdicts: start at `notice.py`, then `policy.py`; channels have a room."""
