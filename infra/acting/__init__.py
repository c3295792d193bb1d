"""Consumers of the topic `actions`: what carries out, or undoes, what a verdict proposes. Start at `actor.py`."""
