"""The topic ``actions``: what is proposed for devices, and its consumers. Start at `actions.py`, then `actor.py`."""
