"""Notices about verdicts, to people and machines: `notice.py` is one, `policy.py` decides, `process.py` delivers."""
