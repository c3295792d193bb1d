"""Operators of a message: looked at together, cut by rank and iteration, summed up. Start in `message_rows.py`.

`row_summaries.py` and `block_sums.py` call the compiled loops; `operator_reduction.py` is what numpy does instead.
"""
