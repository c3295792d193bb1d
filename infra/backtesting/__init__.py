"""How good a detector is on jobs whose truth is known.

Start at `scoring.py`: what counts as an alarm, and as right. `recorded.py` gives the frames that a monitor would give
to a detector.
"""
