"""Which operators were slow by themselves, and how long an iteration takes without.

`healthy_pieces.py` says what each piece usually takes, `replay.py` runs the iteration again with it.
"""
