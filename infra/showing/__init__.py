"""One screen about one verdict: its facts, its values, its pages. Start at `found.py`."""
