"""The topic ``actions``: proposals for devices, and their consumers. Start at `actions.py`, then `actor.py`."""
