"""What people and machines are told about verdicts, and over which channels. Start at `notice.py`."""
