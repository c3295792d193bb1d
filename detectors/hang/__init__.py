"""Who keeps others waiting in a job that hangs.

Start at `find_hang.py`: it follows chains of waiting (`wait_graph.py`) to the ranks at their ends.
"""
