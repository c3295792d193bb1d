"""How good a detector is on jobs whose truth is known.

Start at `scoring.py`, which defines alarms and right alarms. `recorded.py` gives the frames that a monitor would give
to a detector.
"""
