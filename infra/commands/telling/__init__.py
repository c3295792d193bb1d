"""Commands around alerts: follow them, tell people, mute them, say who was right, and act on them.

Start at `alerts.py`. Each file is one command.
"""
