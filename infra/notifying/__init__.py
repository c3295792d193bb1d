"""The process that tells people: alerts in, notices out. Start at `process.py`."""
