"""Models of River and scikit-learn as detectors, named in one line of the settings.

Start at `naming.py`: what such a line says. `outliers.py` and `drifts.py` are the two kinds of adapters.
"""
