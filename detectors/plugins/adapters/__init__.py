"""Models of River and scikit-learn as detectors, named in one line of the settings.

Start at `naming.py`, which reads such a line. `outliers.py` and `drifts.py` are the two kinds of adapters.
"""
