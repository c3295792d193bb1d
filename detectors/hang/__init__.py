"""Who keeps everybody waiting for ever.

Start at `find_hang.py`: it follows chains of waiting (`wait_graph.py`) to the ranks at their ends.
"""
