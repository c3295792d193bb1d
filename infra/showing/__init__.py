"""One screen about one verdict: what was read, what follows from it, how it is told. Start at `screen.py`."""
