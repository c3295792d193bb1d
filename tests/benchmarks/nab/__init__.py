"""NAB's labelled series, and NAB's scoring, on detectors of ours. Start at `__main__.py`."""
