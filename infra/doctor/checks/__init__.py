"""What follows from what was read, pure. Start at `findings.py`; `facts.py` is what was read."""
