"""One screen about one verdict, for `irregulars show`: what was read, what follows, and how it is told. Start at `screen.py`."""
