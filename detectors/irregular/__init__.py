"""Which iterations are δ-irregular, and which ranks stand out by their own work.

`window.py` decides δ. `late_rank.py` compares the ranks of one iteration, `late_rank_history.py` remembers.
"""
