"""The life of verdicts: when a cause was seen often enough to accuse, the text, when it is over.

Start at `tracker.py`. `opening.py` decides when a cause accuses, and whether two are one incident. `open_verdict.py`
is one verdict while it lives, `revision.py` its text, `severity.py` its urgency.
"""
