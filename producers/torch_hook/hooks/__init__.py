"""Hooks that see operators inside of torch: native, in Python, or in front of the dispatcher.

Start at `recording_hook.py`; all write into the bounded `ring.py`.
"""
