"""The commands of the command line, a file each; `options.py` has the flags that they share.

Start at `worker.py`. A command imports its heavy modules when it runs, so that ``--help`` is quick.
"""
