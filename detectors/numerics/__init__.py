"""Numbers that go wrong: replicas that differ, replays that disagree, losses and norms that jump.

Arrays in, arrays out; `numerics_judge` makes verdicts of them.
"""
