"""Settings of processes and agents, read once, and the parts made from them.

Start at `settings.py`, then `wiring.py`.
"""
