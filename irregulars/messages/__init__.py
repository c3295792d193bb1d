"""Messages on the topics, as columns and as bytes.

Start at `records.py` (batches that producers send), then `announcements.py` (who sends), `evidence.py` (from the
first hop to the second; its lists of any length are `ragged.py`) and `judgements.py` (the results).
"""
