"""The commands of the command line, a file each.

Start at `analyze.py`; `options.py` is what they share.
"""
