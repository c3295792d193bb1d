"""From the ring to records: identity of the rank, iterations, clock, columns.

Start at `source.py`.
"""
