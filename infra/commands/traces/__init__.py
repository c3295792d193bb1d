"""Commands that read, write, replay or judge trace directories.

Start at `analyze.py`. Each file is one command.
"""
