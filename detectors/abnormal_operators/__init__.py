"""Which operators were slow by themselves, and how long an iteration takes without.

`usual_pieces.py` learns how long each piece usually takes, `replay.py` runs the iteration again with that.
"""
