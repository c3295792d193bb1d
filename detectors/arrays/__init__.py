"""Array operations that numpy lacks: runs, packed keys, and medians of many groups of rows at once.

Start at `runs.py` (equal neighbours). `row_keys.py` sorts and numbers groups, and searches in them;
`grouped_medians.py` builds on both.
"""
