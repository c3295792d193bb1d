"""States of monitors on their compacted topics: in bounded messages, only changes, and quick to read again.

Start at `records.py`, then `snapshot_writer.py` and `snapshot_log.py`.
"""
