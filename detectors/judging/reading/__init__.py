"""Reads operators back from the log, as few as the walk over the critical path needs.

Start at `operator_reader.py`. `iteration_rows.py` is what is known of an iteration before anything is read.
"""
