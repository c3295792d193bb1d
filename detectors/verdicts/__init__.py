"""The life of verdicts: when a cause was seen often enough to accuse, what is told, when it is over.

Start at `tracker.py`. `opening.py` says when a cause accuses, `same_cause.py` whether two are one incident,
`open_verdict.py` is one verdict while it lives, `revision.py` and `text.py` what people read of it, `severity.py` how
urgent it is. Numbers are in `thresholds.py`.
"""
