"""What ranks call in an iteration, in which order, and who meets whom.

Start at `calls.py`; `plan.py` lays the whole iteration out as flat arrays.
"""
