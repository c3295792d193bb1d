"""The commands of the command line, a file each.

Start at `worker.py`; `options.py` is what they share, and what reads or writes trace directories has a room of its
own.
"""
