"""The heat map rank × iteration and the iteration times, as data for the browser. Start at `routes.py`."""
