"""Commands for those who write detectors: list, make, check and backtest them.

Start at `plugins.py`.
"""
