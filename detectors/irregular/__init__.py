"""Which iterations are δ-irregular, and which ranks stand out by their own work.

`window.py` judges iterations by the setting δ. `late_rank.py` compares ranks, and remembers how late they were.
"""
