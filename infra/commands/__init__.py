"""The commands of the command line; `options.py` has the flags that they share.

Start at `processes.py`. A command imports its heavy modules when it runs, so that ``--help`` is quick.
"""
