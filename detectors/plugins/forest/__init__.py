"""Holmes's detector of abnormal operators: a random forest over a rank's own past.

Start at `random_forest.py`, which scores with a model that `tests.benchmarks.train_operator_forest` has made.
"""
